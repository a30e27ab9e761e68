"""Statistics against loops that spell them out, against scipy, and against every resample there is."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from achieve.analysis.statistics import (
    bootstrap,
    compare,
    improvement_with_interval,
    interquartile_mean,
    iqm_with_interval,
    mean_with_interval,
    probability_of_improvement,
    summarize,
)
from achieve.errors import ConfigError

RUNS = [[3.0, 8.0], [5.0, 1.0], [4.0, 9.0], [10.0, 2.0], [6.0, 7.0]]


def slow_iqm(values: Sequence[float]) -> float:
    """Take the smallest and the largest away, one after the other, a quarter of them each."""
    left = list(values)
    for _ in range(len(values) // 4):
        left.remove(min(left))
        left.remove(max(left))
    return sum(left) / len(left)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 10, 23])
def test_interquartile_mean(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert interquartile_mean(values) == pytest.approx(slow_iqm(values.tolist()))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_interquartile_mean_pools_the_axes_it_is_given() -> None:
    draws = np.random.default_rng(0).normal(size=(3, 5, 4))
    expected = [slow_iqm(draw.reshape(-1).tolist()) for draw in draws]
    np.testing.assert_allclose(interquartile_mean(draws, axis=(1, 2)), expected)


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    ours, theirs = [3.0, 5.0, 5.0, 1.0], [5.0, 2.0, 0.0]
    won = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in ours for b in theirs)
    assert probability_of_improvement(ours, theirs) == pytest.approx(won / 12)
    u = stats.mannwhitneyu(ours, theirs).statistic
    assert probability_of_improvement(ours, theirs) == pytest.approx(u / 12)
    assert probability_of_improvement(theirs, ours) == pytest.approx(1 - won / 12)


def test_probability_of_improvement_compares_task_by_task() -> None:
    # All pairs of the first task are won and all of the second lost; pooled values would say something else.
    assert probability_of_improvement([[9.0, 0.0], [8.0, 1.0]], [[7.0, 5.0], [6.0, 90.0], [5.0, 4.0]]) == 0.5


def test_intervals_are_those_of_all_resamples() -> None:
    values = [1.0, 2.0, 4.0, 16.0]
    means = [float(np.mean(draw)) for draw in itertools.product(values, repeat=4)]
    exact = np.percentile(means, [2.5, 97.5])
    found = mean_with_interval(values, resamples=60_000)
    assert found.value == pytest.approx(5.75)
    # The distribution is one of few steps, so that the percentiles of many draws fall on the very same.
    assert (found.low, found.high) == pytest.approx(tuple(exact))
    iqms = [slow_iqm(draw) for draw in itertools.product(values, repeat=4)]
    iqm = iqm_with_interval(values, resamples=60_000)
    assert (iqm.low, iqm.high) == pytest.approx(tuple(np.percentile(iqms, [2.5, 97.5])))


def test_improvement_interval_is_that_of_all_resamples() -> None:
    ours, theirs = [2.0, 5.0, 7.0], [1.0, 6.0]
    exact = [
        probability_of_improvement(a, b)
        for a in itertools.product(ours, repeat=3)
        for b in itertools.product(theirs, repeat=2)
    ]
    found = improvement_with_interval(ours, theirs, resamples=40_000)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(exact, [2.5, 97.5])))


def test_tasks_are_drawn_apart_and_never_mixed() -> None:
    # Each task is constant over runs: drawing within tasks can change nothing, drawing over all values would.
    flat = mean_with_interval([[1.0, 100.0], [1.0, 100.0], [1.0, 100.0]], resamples=200)
    assert (flat.value, flat.low, flat.high) == (50.5, 50.5, 50.5)
    # Runs (0, 1) and (1, 0) always have the mean 0.5 when drawn whole; drawn by task they do not.
    crossed = mean_with_interval([[0.0, 1.0], [1.0, 0.0]], resamples=2000)
    assert (crossed.low, crossed.high) == (0.0, 1.0)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def mean(draws: np.ndarray) -> np.ndarray:
        calls.append(len(draws))
        return draws.mean(axis=(1, 2))

    whole = bootstrap(RUNS, mean, resamples=500)
    monkeypatch.setattr("achieve.analysis.statistics._CHUNK", 70)
    parts = bootstrap(RUNS, mean, resamples=500)
    assert sum(calls) == 2 * (1 + 500) and max(calls[2:]) == 7
    assert parts.value == whole.value
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), rel=0.15)


def test_summary_of_runs() -> None:
    summary = summarize([10.0, float("nan"), 12.0, 17.0, 11.0])
    assert summary.runs == 4 and summary.values == (10.0, 12.0, 17.0, 11.0)
    assert summary.mean == 12.5
    assert summary.std == pytest.approx(np.sqrt(np.mean(np.square(np.array(summary.values) - 12.5))))
    assert summary.iqm.value == 11.5
    told = summary.as_dict()
    assert told["mean_interval"][0] < 12.5 < told["mean_interval"][1]
    assert summarize([10.0, 12.0, 17.0, 11.0]) == summary  # the same seed, the same draws


def test_one_run_has_no_interval() -> None:
    summary = summarize([21.8])
    assert summary.std == 0 and str(summary.iqm) == "21.80"
    assert summary.as_dict()["iqm_interval"] is None
    assert np.isnan(improvement_with_interval([1.0, 2.0], [0.5]).low)


def test_groups_are_compared_with_each_other() -> None:
    found = compare({"ad": [3.0, 4.0], "ppo": [1.0, 2.0], "none": [float("nan")]}, resamples=50)
    assert set(found) == {("ad", "ppo"), ("ppo", "ad")}
    assert found["ad", "ppo"].value == 1.0 and found["ppo", "ad"].value == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summarize([float("nan")]), "no run with a figure"),
        (lambda: mean_with_interval([]), r"shape \(0,\)"),
        (lambda: mean_with_interval([1.0, float("inf")]), "not a finite number"),
        (lambda: mean_with_interval([1.0, 2.0], resamples=0), "resamples is 0"),
        (lambda: mean_with_interval([1.0, 2.0], confidence=95), "confidence is 95"),
        (lambda: probability_of_improvement([[1.0, 2.0]], [[1.0]]), "2 and 1 tasks"),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match=message):
        call()
