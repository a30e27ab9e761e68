"""The figures shown while a run goes on agree with those read from its log."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from achieve.envs import ENVIRONMENTS
from achieve.envs.base import FinishedEpisodes
from achieve.scoring.episodes import Episodes
from achieve.scoring.running_score import RECENT, RunningScore
from achieve.scoring.score import score_run

NAMES = tuple(f"a{k}" for k in range(22))


def episodes(count: int, seed: int) -> FinishedEpisodes:
    rng = np.random.default_rng(seed)
    return FinishedEpisodes(
        env=rng.integers(0, 8, count),
        tick=np.sort(rng.integers(1, 10_000, count)),
        length=rng.integers(1, 400, count),
        episode_return=rng.normal(3, 2, count).round(1),
        achievements=rng.poisson(rng.random(22), (count, 22)),
    )


def part(finished: FinishedEpisodes, first: int, last: int) -> FinishedEpisodes:
    return FinishedEpisodes(*(column[first:last] for column in finished))


@pytest.mark.parametrize("budget", [1, 999, 20_000, 10**9])
@pytest.mark.parametrize("seed", range(5))
def test_score_equals_that_of_the_log(budget: int, seed: int) -> None:
    finished = episodes(300, seed)
    tally = RunningScore(NAMES, budget)
    cuts = [0, *sorted(np.random.default_rng(seed).integers(0, 300, 7).tolist()), 300]
    for first, last in pairwise(cuts):
        tally.add(part(finished, first, last))
        so_far = part(finished, 0, last)
        log = Episodes(
            so_far.tick * 8, so_far.length, so_far.episode_return, so_far.achievements, NAMES
        )
        expected = score_run(log, budget=budget)
        assert tally.counted == expected.episodes
        assert tally.score == pytest.approx(expected.score, rel=1e-12, nan_ok=True)
        assert tally.episodes == last


def test_episode_past_the_budget_ends_the_count() -> None:
    """A short one after a long one that did not fit does not count either: the protocol's order is fixed."""
    one = np.ones((3, 22), dtype=np.int64)
    finished = FinishedEpisodes(
        np.arange(3), np.arange(3), np.array([60, 50, 10]), np.zeros(3), one
    )
    tally = RunningScore(NAMES, budget=100)
    tally.add(finished)
    assert tally.counted == 1
    tally.add(finished)
    assert (tally.counted, tally.episodes) == (1, 6)


def test_recent_episodes_are_the_last_hundred() -> None:
    finished = episodes(250, 1)
    tally = RunningScore(NAMES, 10**9)
    assert np.isnan(tally.mean_return) and np.isnan(tally.score)
    tally.add(finished)
    figures = tally.figures()
    assert figures["mean_return"] == pytest.approx(finished.episode_return[-RECENT:].mean())
    assert figures["mean_length"] == pytest.approx(finished.length[-RECENT:].mean())
    assert figures["episodes"] == 250


def test_goal_is_counted_in_the_last_hundred() -> None:
    spec = replace(ENVIRONMENTS["heist"], goal="a3")
    finished = episodes(250, 4)
    tally = RunningScore(NAMES, 10**9, spec)
    assert np.isnan(tally.score)
    tally.add(finished)
    assert tally.score == pytest.approx(100 * (finished.achievements[-RECENT:, 3] > 0).mean())
    figures = tally.figures()
    assert figures["a3_success_rate"] == tally.score and "score" not in figures


@pytest.mark.parametrize("goal", [None, "a3"])
@pytest.mark.parametrize("cut", [0, 1, 130, 250])
def test_saved_tally_goes_on_as_if_never_saved(cut: int, goal: str | None) -> None:
    finished = episodes(250, 2)
    spec = replace(ENVIRONMENTS["crafter"], goal=goal)
    straight = RunningScore(NAMES, 30_000, spec)
    straight.add(finished)
    before, after = RunningScore(NAMES, 30_000, spec), RunningScore(NAMES, 30_000, spec)
    before.add(part(finished, 0, cut))
    after.load(json.loads(json.dumps(before.save())))
    after.add(part(finished, cut, 250))
    assert after.save() == straight.save()
    assert after.figures() == straight.figures()
