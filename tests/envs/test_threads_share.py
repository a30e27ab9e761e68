"""One environment, several threads: saving waits for the step under way, and stepping for a save."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from achieve.envs import make_vec
from achieve.envs.arrays import _PREFIX
from achieve.envs.crafter import CrafterEnv
from tests.conftest import Optional

STEPS = 200
GYM = "tests.envs.gym.envs:Count"


@pytest.fixture(autouse=True)
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


def tick(state: bytes) -> int:
    _, _, size = _PREFIX.unpack_from(state)
    return int(json.loads(state[_PREFIX.size : _PREFIX.size + size])["episodes"]["tick"])


def run_beside(work: Any, beside: Any) -> None:
    """Calls ``beside`` again and again while ``work`` runs in another thread."""
    failure: list[BaseException] = []

    together = threading.Barrier(2)  # or quick work is over before anything happens beside it

    def guarded() -> None:
        together.wait()
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    together.wait()
    beside()
    while thread.is_alive():
        beside()
    thread.join()
    assert not failure, failure


def need(environment: str, optional: Optional) -> None:
    """Skips where what the environment needs is not installed."""
    try:
        make_vec(environment, 1, 0, 1).close()
    except ImportError as error:
        optional.check(False, f"{environment} ({error})")


@pytest.mark.parametrize("environment", ["crafter", "minigrid", "heist", GYM])
def test_a_state_saved_beside_a_stepping_thread_is_one_between_two_steps(environment: str, optional: Optional) -> None:
    need(environment, optional)
    num_envs = 16 if environment == "crafter" else 5
    make = lambda: make_vec(environment, num_envs, seed=3, threads=1, infos="none")  # noqa: E731
    vec, plain = make(), make()
    actions = np.random.default_rng(0).integers(0, vec.single_action_space.n, (STEPS, vec.num_envs))
    plain.reset()
    expected = {0: digest(plain.save_state())}
    for k, chosen in enumerate(actions, 1):
        plain.step(chosen)
        expected[k] = digest(plain.save_state())
    vec.reset()
    saved: list[bytes] = []
    run_beside(lambda: [vec.step(chosen) for chosen in actions], lambda: saved.append(vec.save_state()))
    torn = [tick(state) for state in saved if digest(state) != expected[tick(state)]]
    assert saved and not torn, f"{len(torn)} of {len(saved)} states mix two steps"
    assert digest(vec.save_state()) == expected[STEPS]
    vec.close()
    plain.close()


def test_a_single_environments_state_is_one_between_two_steps() -> None:
    env, plain = CrafterEnv(seed=3), CrafterEnv(seed=3)
    actions = np.random.default_rng(0).integers(0, 5, 150).tolist()
    plain.reset()
    expected = {digest(plain.save_state())}
    for action in actions:
        plain.step(action)
        expected.add(digest(plain.save_state()))
    env.reset()
    saved: list[str] = []
    run_beside(lambda: [env.step(action) for action in actions], lambda: saved.append(digest(env.save_state())))
    assert saved and set(saved) <= expected


@pytest.mark.parametrize("environment", ["crafter", "minigrid", "heist", GYM])
def test_everything_at_once_leaves_it_playable_and_no_episode_twice(environment: str, optional: Optional) -> None:
    """Loads, resets, looks and collections beside a stepping thread; what is counted afterwards adds up."""
    need(environment, optional)
    short = {"length": 20} if environment == "crafter" else {}
    vec = make_vec(environment, num_envs=5, seed=3, threads=1, infos="final", **short)
    vec.reset()
    if vec.exact_resume:
        vec.step([0] * 5)
    state, rng = vec.save_state(), np.random.default_rng(1)
    collected: list[tuple[int, ...]] = []

    def play() -> None:
        for chosen in np.random.default_rng(0).integers(0, vec.single_action_space.n, (STEPS, 5)):
            try:
                vec.step(chosen)
            except RuntimeError as error:  # a Gymnasium environment must be reset after a load
                assert "call reset()" in str(error)

    def disturb() -> None:
        episodes = vec.pop_episodes()
        collected.extend(zip(episodes.env.tolist(), episodes.tick.tolist(), strict=True))
        match rng.integers(4):
            case 0:
                vec.load_state(state)
                collected.clear()
            case 1:
                vec.reset()
                collected.clear()
            case 2:
                vec.save_state()
            case 3 if vec._begun:
                assert vec.observe().shape == vec.observation_space.shape

    run_beside(play, disturb)
    assert len(set(collected)) == len(collected)
    vec.reset()
    again = make_vec(environment, num_envs=5, seed=9, threads=1, **short)
    again.load_state(vec.save_state())
    if vec.exact_resume:
        assert again.save_state() == vec.save_state()
    vec.close()
    again.close()
