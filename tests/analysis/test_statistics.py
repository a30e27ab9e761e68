"""Intervals of few seeds: against scipy, against formulas spelled out, and never certain."""

import math

import numpy as np
import pytest
from scipy import stats

from achieve.analysis.statistics import (
    PERCENT,
    caution,
    compare,
    difference,
    improvement,
    iqm_with_interval,
    mean_with_interval,
    share,
    summarize,
)
from achieve.errors import ConfigError


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_mean_has_students_interval(count: int) -> None:
    values = np.random.default_rng(count).normal(20, 2, count)
    found = mean_with_interval(values.tolist())
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 10, 23])
def test_interquartile_mean_is_scipys(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert iqm_with_interval(values.tolist()).value == pytest.approx(stats.trim_mean(values, 0.25))


def test_interquartile_means_interval_is_yuens() -> None:
    """With one trimmed at either end, spelled out; and scipy's test of two samples has the same standard error."""
    values = [1.0, 4.0, 5.0, 6.0, 30.0]
    winsorised = np.array([4.0, 4.0, 5.0, 6.0, 6.0])
    error = math.sqrt(4 * winsorised.var(ddof=1) / (3 * 2))
    found = iqm_with_interval(values)
    assert found.value == 5.0 and found.high - 5.0 == pytest.approx(stats.t.ppf(0.975, 2) * error)
    far = [value + 100 for value in values]
    tested = stats.ttest_ind(far, values, trim=0.2, equal_var=False)  # the errors of both are the same
    assert 100 / (math.sqrt(2) * error) == pytest.approx(tested.statistic)
    three = [10.0, 12.0, 17.0]
    assert iqm_with_interval(three) == mean_with_interval(three)


def test_a_percentage_does_not_leave_its_range() -> None:
    assert mean_with_interval([80.0, 95.0]).high > 100
    found = summarize([80.0, 95.0], PERCENT)
    assert (found.mean.low, found.mean.high) == (0.0, 100.0) and found.iqm.high == 100.0


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    ours, theirs = [3.0, 5.0, 5.0, 1.0], [5.0, 2.0, 0.0]
    won = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in ours for b in theirs)
    found = improvement(ours, theirs)
    assert found.value == pytest.approx(won / 12) and found.won == "8 of 12 pairs"
    back = improvement(theirs, ours)
    assert (back.value, back.low, back.high) == pytest.approx((1 - found.value, 1 - found.high, 1 - found.low))


def test_improvement_interval_solves_newcombes_equation() -> None:
    ours, theirs = [2.0, 5.0, 7.0, 8.0], [1.0, 6.0, 3.0]
    found = improvement(ours, theirs)
    for limit in (found.low, found.high):
        spread = 1 + 2.5 * ((1 - limit) / (2 - limit) + limit / (1 + limit))
        variance = limit * (1 - limit) * spread / 12
        assert (found.value - limit) ** 2 == pytest.approx(stats.t.ppf(0.975, 5) ** 2 * variance)
    assert found.low < found.value < found.high


@pytest.mark.parametrize(("n", "m"), [(2, 2), (2, 9), (3, 3), (3, 4), (4, 4), (5, 5), (10, 10)])
def test_winning_all_pairs_is_not_certain(n: int, m: int) -> None:
    ours, theirs = [100.0 + i for i in range(n)], [float(i) for i in range(m)]
    found = improvement(ours, theirs)
    assert found.value == 1.0 and 0.1 < found.low < 0.9 and found.high == 1.0
    # It may not say more than the exact test of ranks: where that does not tell the agents apart, 0.5 is within.
    if stats.mannwhitneyu(ours, theirs, method="exact").pvalue > 0.05:
        assert found.low < 0.5
    assert "1.00" not in str(found) and str(found).endswith(", 1)")
    lost = str(improvement(theirs, ours))
    assert "0.00" not in lost and lost.startswith("<0.") and "(0, " in lost


def test_certainty_is_not_printed_by_rounding_either() -> None:
    ours, theirs = [*range(1, 30), -1.0], [0.0] * 30
    ours[0] = 0
    assert str(improvement([*map(float, range(1, 400)), 0.0], [0.0] * 400)).startswith(">0.99 [")
    assert str(improvement([float(v) for v in ours], theirs)).startswith("0.9")


def test_coverage_of_three_seeds_and_five() -> None:
    """What is called 95 % holds the true probability in 95 % of repetitions, or more."""
    rng = np.random.default_rng(0)
    for count, shift in ((3, 0.0), (3, 2.0), (5, 1.0)):
        true = stats.norm.cdf(shift / math.sqrt(2))
        found = [improvement(rng.normal(shift, 1, count), rng.normal(0, 1, count)) for _ in range(200)]
        assert np.mean([one.low <= true <= one.high for one in found]) >= 0.94


@pytest.mark.parametrize("count", [2, 3, 10])
def test_difference_from_a_published_mean_is_welchs(count: int) -> None:
    rng = np.random.default_rng(count)
    ours, theirs = rng.normal(20, 2, count), rng.normal(22, 1, 10)
    found = difference(ours.tolist(), theirs.mean(), theirs.std(), 10)
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    exact = difference(ours.tolist(), 22.0, None, 10)
    expected = stats.ttest_1samp(ours, 22.0).confidence_interval(0.95)
    assert (exact.low + 22, exact.high + 22) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("ours", "mean", "said"),
    [
        ([9.0, 11.0], 10.5, "-0.50 [-13.21, +12.21], agrees"),  # t is 12.71 with one degree of freedom
        ([9.0, 11.0], 30.0, "-20.00 [-32.71, -7.29], lower"),
        ([9.0, 11.0], -10.0, "+20.00 [+7.29, +32.71], higher"),
        ([9.0], 10.0, "-1.00"),
        ([9.0, 9.0], 9.0, "+0.00 [+0.00, +0.00], agrees"),
    ],
)
def test_difference_says_whether_it_agrees(ours: list[float], mean: float, said: str) -> None:
    assert str(difference(ours, mean, None, 10)) == said


def test_summary_of_runs() -> None:
    summary = summarize([10.0, 12.0, 17.0, 11.0])
    assert summary.values == (10.0, 12.0, 17.0, 11.0)
    assert summary.mean.value == 12.5 and summary.iqm.value == 11.5
    assert summary.std == pytest.approx(np.sqrt(np.mean(np.square(np.array(summary.values) - 12.5))))
    told = summary.as_dict()
    assert told["mean"] == 12.5 and told["mean_interval"][0] < 12.5 < told["mean_interval"][1]


def test_one_run_has_no_interval() -> None:
    summary = summarize([21.8])
    assert summary.std == 0 and str(summary.iqm) == "21.80"
    assert summary.as_dict()["iqm_interval"] is None
    assert improvement([1.0, 2.0], [0.5]).limits is None


def test_groups_are_compared_with_each_other_once() -> None:
    found = compare({"ad": [3.0, 4.0], "ppo": [1.0, 2.0], "i": [5.0]})
    assert list(found) == [("ad", "ppo"), ("ad", "i"), ("ppo", "i")]
    assert found["ad", "ppo"].value == 1.0 and found["ad", "i"].value == 0.0


def test_few_seeds_are_said() -> None:
    (note,) = caution([("ad", 3), ("ppo", 5), ("none", 0)])
    assert note.startswith("Fewer than 5 seeds: ad (3). ")
    assert caution([("ad", 5), ("ppo", 10)]) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "no run with a figure"), ([1.0, math.inf], "not a finite"), ([math.nan], "not a finite")],
)
def test_bad_input(values: list[float], message: str) -> None:
    for call in (summarize, mean_with_interval, lambda values: improvement([1.0, 2.0], values)):
        with pytest.raises(ConfigError, match=message):
            call(values)


def test_a_share_has_wilsons_interval() -> None:
    """Spelled out, and never of width zero."""
    z, n = stats.norm.ppf(0.975), 49
    for count in (0, 1, 35, 49):
        p = count / n
        centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        found = share(count, n)
        assert (found.value, found.count, found.total) == (pytest.approx(100 * p), count, n)
        assert (found.low, found.high) == pytest.approx((100 * (centre - half), 100 * (centre + half)), abs=1e-6)
        assert found.low < found.high
    assert str(share(4, 49)) == "8 [3, 19]"
    assert share(4, 49).as_dict()["interval"] == [share(4, 49).low, share(4, 49).high]
    for count, total in ((1, 0), (-1, 3), (4, 3)):
        with pytest.raises(ConfigError, match="is no share"):
            share(count, total)
