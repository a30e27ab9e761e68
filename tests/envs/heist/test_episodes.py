"""Where episodes fail, as read from Procgen's states, beside what the environment counts."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("procgen", reason="`make heist` installs Procgen")

from achieve.envs.heist.vec import HeistVecEnv
from benchmarks import heist_episodes
from benchmarks.heist_episodes import Played


def test_counts_are_those_of_the_environment() -> None:
    found = heist_episodes.play(heist_episodes.random_policy(3), 12, 5, {})
    act = heist_episodes.random_policy(3)
    counted = []
    with closing(HeistVecEnv(12, 5, infos="final")) as envs:
        obs, _ = envs.reset()
        done_once = np.zeros(12, bool)
        while not done_once.all():
            obs, _, terminated, truncated, infos = envs.step(act(obs, None, None))
            ended = envs.pop_episodes()
            for i, length, unlocked in zip(ended.env, ended.length, ended.achievements, strict=True):
                if not done_once[i]:
                    locks = int(infos["final_info"]["locks"][i])
                    counted.append((locks, int(unlocked[:-1].sum()), bool(unlocked[-1]), int(length)))
            done_once |= terminated | truncated
    assert [(e.locks, e.opened, e.gem, e.length) for e in found] == counted
    assert all(e.keys >= e.opened and 0 < e.visited <= 1 for e in found)
    assert any(e.opened for e in found) and any(e.gem for e in found)


def test_shares_are_of_the_levels_that_have_so_many_locks() -> None:
    found = [Played(0, 0, 0, True, 50, 0.5), Played(1, 1, 0, False, 1000, 0.2), Played(3, 2, 1, False, 1000, 0.3)]
    *_, none, one, three, every = heist_episodes.to_markdown("x", found).splitlines()
    assert none.startswith("| 0 | 1 |  |  |  |  |  |  | 100 [")
    assert "| 1 | 1 | 100 [21, 100] | 0 [0, 79] |  |  |" in one
    assert three.startswith("| 3 | 1 | 100 [21, 100] | 100 [21, 100] | 100 [21, 100] | 0 [0, 79] | 0 [0, 79] | 0 [")
    assert "| all | 3 | 100 [34, 100] | 50 [9, 91] | 100 [21, 100] | 0 [0, 79] |" in every
    assert every.endswith("| 33 [6, 79] | 1000 | 33 |")
