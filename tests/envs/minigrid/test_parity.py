"""The compiled game against the plain one: MiniGrid's own levels, rules, sight and pictures, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from achieve.envs.minigrid import DoorKeyTreeEnv, DoorKeyTreeVecEnv, PixelView, pixel_env
from achieve.envs.minigrid.engine import below
from tests.envs.common import assert_same

from .common import BOTH_RULES, LAYOUTS, Solver
from .solver import level_of


def unwrapped(env: PixelView) -> DoorKeyTreeEnv:
    base = env.unwrapped
    assert isinstance(base, DoorKeyTreeEnv)
    return base


def lockstep(layout: str, num_envs: int, ticks: int, share: float, draw_every: int = 1, **more: Any) -> tuple[int, int]:
    """Plays both side by side, each action the solver's with probability ``share``; returns episodes and rewards.

    Pictures are compared every ``draw_every`` steps, since MiniGrid takes a millisecond for one; the grid, the
    agent, rewards and ends always.
    """
    arguments = {**LAYOUTS[layout], **more}
    vec = DoorKeyTreeVecEnv(num_envs, seed=3, infos="final", **arguments)
    plain = [pixel_env(**arguments) for _ in range(num_envs)]
    obs, _ = vec.reset()
    for env, seed, image in zip(plain, vec.seeds, obs, strict=True):
        assert (env.reset(seed=seed)[0] == image).all()
    solvers = [Solver(vec, i) for i in range(num_envs)]
    rng = np.random.default_rng(1)
    episodes, rewarded = 0, 0
    disturbed = np.zeros(num_envs, bool)
    for tick in range(ticks):
        by_solver = rng.random(num_envs) < share
        actions = rng.integers(0, 7, num_envs)
        for i in np.flatnonzero(by_solver):
            if disturbed[i]:
                solvers[i].begin()
            actions[i] = solvers[i].action()
        disturbed = ~by_solver
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for i, env in enumerate(plain):
            base = unwrapped(env)
            _, reward, ended, over, info = base.step(int(actions[i]))
            assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, over)
            rewarded += reward > 0
            if ended or over:
                episodes += 1
                assert (infos["final_obs"][i] == env.observation(None)).all()
                final = infos["final_info"]["achievements"]
                assert {name: final[name][i] for name in info["achievements"]} == info["achievements"]
                base.reset()
                solvers[i].begin()
            grid, agent = level_of(base)
            assert (vec._worlds.grid[i] == grid).all() and (vec._worlds.agent[i] == agent).all()
            if tick % draw_every == 0:
                assert (obs[i] == env.observation(None)).all()
    return episodes, rewarded


@BOTH_RULES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lockstep_with_minigrid(layout: str, keep_keys: bool) -> None:
    more = {"max_steps": 400, "keep_keys": keep_keys}
    episodes, rewarded = lockstep(layout, num_envs=2, ticks=450, share=0.9, draw_every=3, **more)
    assert rewarded > 20 and episodes > 0


def test_lockstep_through_endings() -> None:
    """Short episodes: ends by the goal, by the time limit, and by both at once."""
    episodes, rewarded = lockstep("smallest", num_envs=4, ticks=300, share=0.7, max_steps=20)
    assert episodes > 60 and rewarded > 60


@BOTH_RULES
def test_lockstep_under_random_play(keep_keys: bool) -> None:
    lockstep("default", num_envs=4, ticks=300, share=0.0, max_steps=150, keep_keys=keep_keys)


@pytest.mark.long
@BOTH_RULES
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lockstep_for_long(layout: str, share: float, keep_keys: bool) -> None:
    lockstep(layout, num_envs=4, ticks=1500, share=share, keep_keys=keep_keys)


def test_random_numbers_are_numpys() -> None:
    vec = DoorKeyTreeVecEnv(2, seed=[0, 2**31 - 1], infos="none")
    for seed, state in zip(vec.seeds, vec._worlds.random, strict=True):
        generator = np.random.default_rng(seed)
        counts = np.random.default_rng(5).integers(1, 50, 3000).tolist()
        counts += [2**31 + 1, 3 * 2**30, 2**32 - 1] * 200  # where a draw is often rejected
        assert [below(state, count) for count in counts] == [generator.integers(0, count) for count in counts]


@pytest.mark.parametrize("infos", ["all", "final"])
def test_infos_are_those_of_gymnasiums_own_vector_environment(infos: str) -> None:
    arguments = {**LAYOUTS["smallest"], "max_steps": 15}
    ours = DoorKeyTreeVecEnv(3, seed=2, infos=infos, **arguments)
    theirs = SyncVectorEnv([lambda: pixel_env(**arguments)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    first, first_infos = ours.reset()
    expected, expected_infos = theirs.reset(seed=list(ours.seeds))
    assert (first == expected).all()
    assert_same(first_infos, expected_infos if infos == "all" else {})
    ends = 0
    for actions in np.random.default_rng(0).integers(0, 7, (60, 3)):
        *got, info = ours.step(actions)
        *wanted, wanted_info = theirs.step(actions)
        for mine, other in zip(got, wanted, strict=True):
            assert (mine == other).all() and mine.dtype == other.dtype
        ends += int((got[2] | got[3]).sum())
        if infos == "final":
            wanted_info = {k: v for k, v in wanted_info.items() if k.lstrip("_").startswith("final")}
        assert_same(info, wanted_info)
    assert ends > 6
