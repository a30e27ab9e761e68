"""Many at once: each depends on its own seed alone, resets in the same step, and its episodes are counted."""

from __future__ import annotations

import numpy as np
import pytest

from achieve.envs.base import AchievementVecEnv
from achieve.envs.minigrid import DoorKeyTreeVecEnv
from tests.envs.common import wrong_actions

from .common import Solver


def actions_for(num_envs: int, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 7, (steps, num_envs))


def test_the_interface() -> None:
    vec = DoorKeyTreeVecEnv(3, seed=0)
    assert isinstance(vec, AchievementVecEnv) and vec.exact_resume
    assert len(vec.achievement_names) == 10
    obs, infos = vec.reset()
    assert vec.observation_space.contains(obs) and infos == {}
    obs, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
    assert obs.shape == (3, 64, 64, 3) and obs.dtype == np.uint8
    assert rewards.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_


def test_an_environment_depends_on_its_own_seed_alone() -> None:
    many = DoorKeyTreeVecEnv(6, seed=4, threads=None, max_steps=40)
    alone = DoorKeyTreeVecEnv(1, seed=[many.seeds[2]], threads=1, max_steps=40)
    assert (many.reset()[0][2] == alone.reset()[0][0]).all()
    for chosen in actions_for(6, 130):
        ours, theirs = many.step(chosen), alone.step(chosen[2:3])
        assert all((a[2] == b[0]).all() for a, b in zip(ours[:4], theirs[:4], strict=True))


def test_seeds() -> None:
    first, second = (DoorKeyTreeVecEnv(64, seed=seed).seeds for seed in (0, 1))
    assert len({*first, *second}) == 128
    assert DoorKeyTreeVecEnv(8, seed=0).seeds == first[:8]
    assert DoorKeyTreeVecEnv(2, seed=[5, 2**31 - 1]).seeds == (5, 2**31 - 1)
    assert DoorKeyTreeVecEnv(2, seed=None).seeds != DoorKeyTreeVecEnv(2, seed=None).seeds


def test_resetting_goes_on_and_with_a_seed_starts_again() -> None:
    vec = DoorKeyTreeVecEnv(2, seed=4)
    first, second = vec.reset()[0], vec.reset()[0]
    assert not (first == second).all()
    assert (vec.reset(seed=4)[0] == first).all()
    assert (vec.reset()[0] == second).all()
    assert (vec.reset(seed=list(vec.seeds))[0] == first).all()


def test_autoreset_shows_the_next_episode_and_reports_the_last() -> None:
    vec = DoorKeyTreeVecEnv(3, seed=1, depth=2, max_steps=60)
    other = DoorKeyTreeVecEnv(3, seed=1, depth=2, max_steps=60, infos="none")
    vec.reset(), other.reset()
    solver = Solver(vec, 0)
    lengths, returns, expected = np.zeros(3, int), np.zeros(3), []
    for tick, chosen in enumerate(actions_for(3, 200), 1):
        chosen[0] = solver.action()
        obs, rewards, terminated, truncated, infos = vec.step(chosen)
        assert other.step(chosen)[4] == {}
        lengths += 1
        returns += rewards
        done = terminated | truncated
        assert ("final_obs" in infos) == done.any()
        for i in np.flatnonzero(done):
            achieved = [int(infos["final_info"]["achievements"][name][i]) for name in vec.achievement_names]
            assert sum(achieved) == returns[i] and (achieved[-1] == 1) == terminated[i]
            assert not (infos["final_obs"][i] == obs[i]).all()
            expected.append((i, tick, lengths[i], returns[i], achieved))
            lengths[i], returns[i] = 0, 0
            if i == 0:
                solver.begin()
        assert (obs == vec.observe()).all()
    assert any(e[0] == 0 and e[3] == 4 for e in expected) and any(e[2] == 60 for e in expected)
    for popped in (vec.pop_episodes(), other.pop_episodes()):
        rows = zip(*(column.tolist() for column in popped), strict=True)
        assert list(rows) == expected
        assert popped.episode_return.dtype == np.float64
        assert {popped.env.dtype, popped.tick.dtype, popped.length.dtype, popped.achievements.dtype} == {
            np.dtype(np.int64)
        }
    empty = vec.pop_episodes()
    assert len(empty.env) == 0 and empty.achievements.shape == (0, 4)


def test_a_reset_forgets_episodes_and_ticks() -> None:
    vec = DoorKeyTreeVecEnv(2, seed=0, max_steps=5)
    vec.reset()
    for _ in range(7):
        vec.step([6, 6])
    vec.reset()
    assert len(vec.pop_episodes().env) == 0
    for _ in range(5):
        vec.step([6, 6])
    assert vec.pop_episodes().tick.tolist() == [5, 5]


def test_observations_are_copies_unless_out_is_given() -> None:
    vec = DoorKeyTreeVecEnv(2, seed=0)
    first, _ = vec.reset()
    kept = first.copy()
    second, rewards, *_ = vec.step([1, 2])
    rewards[:] = 9
    assert not np.shares_memory(first, second) and (first == kept).all()
    storage = np.full((3, 2, 64, 64, 3), 77, np.uint8)
    returned, rewards, *_ = vec.step([0, 6], out=storage[1])
    assert np.shares_memory(returned, storage) and (returned == vec.observe()).all()
    assert (storage[0] == 77).all() and (storage[2] == 77).all() and not (storage[1] == 77).all()
    assert (storage[1][:, 63] == 0).all() and (storage[1][:, :, 63] == 0).all()
    assert (rewards == 0).all()
    assert vec.reset(out=storage[0])[0].base is storage


@pytest.mark.parametrize("actions", wrong_actions(7))
def test_wrong_actions_are_refused_and_change_nothing(actions) -> None:
    vec = DoorKeyTreeVecEnv(3, seed=0)
    vec.reset()
    before = vec.save_state()
    with pytest.raises(ValueError, match="whole number"):
        vec.step(actions)
    assert vec.save_state() == before
    vec.step([0, 1, 2])


def test_wrong_actions_name_the_environment() -> None:
    vec = DoorKeyTreeVecEnv(3, seed=0)
    vec.reset()
    with pytest.raises(ValueError, match="from 0 to 6, got 99 for environment 1"):
        vec.step([0, 99, 2])


@pytest.mark.parametrize("out", [np.zeros((2, 64, 64, 3), np.float32), np.zeros((3, 64, 64, 3), np.uint8), [0]])
def test_wrong_out_is_refused(out) -> None:
    vec = DoorKeyTreeVecEnv(2, seed=0)
    vec.reset()
    before = vec.save_state()
    for call in (lambda: vec.step([0, 1], out=out), lambda: vec.reset(out=out)):
        with pytest.raises(ValueError, match=r"uint8 array of shape \(2, 64, 64, 3\)"):
            call()
    assert vec.save_state() == before


@pytest.mark.parametrize(
    "arguments,said",
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 2.0}, "num_envs"),
        ({"infos": "some"}, "infos must be one of none, final, all, got 'some'"),
        ({"threads": 0}, "threads"),
        ({"num_envs": 2, "seed": [1]}, "2 seeds, got 1"),
        ({"seed": -1}, "negative"),
        ({"depth": 9}, "colours for 5 keys"),
        ({"room_size": 2}, "room_size"),
        ({"keep_keys": 1}, "keep_keys must be true or false, got 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DoorKeyTreeVecEnv(**arguments)


def test_step_before_reset() -> None:
    vec = DoorKeyTreeVecEnv(2)
    for call in (lambda: vec.step([0, 0]), vec.observe):
        with pytest.raises(RuntimeError, match="reset"):
            call()
