"""Over seeds and action sequences: parity, determinism, save and restore, pure rendering."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from achieve.envs import make_vec
from achieve.envs.crafter import CrafterEnv

from .parity.lockstep import LockStep

NUM_ACTIONS = 17
# Numba compiles on first use and the original needs a tenth of a second per world.
settings.register_profile(
    "games", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("games")

seeds = st.integers(0, 2**63 - 1)


@st.composite
def action_lists(draw: st.DrawFn, max_runs: int = 12) -> list[int]:
    """Runs of one action each: they get further than single random actions do."""
    run = st.tuples(st.integers(0, NUM_ACTIONS - 1), st.integers(1, 12))
    runs = draw(st.lists(run, min_size=1, max_size=max_runs))
    return [action for action, times in runs for _ in range(times)]


def play(env: CrafterEnv, actions: Sequence[int]) -> str:
    """A digest of everything the environment returns for the actions, across resets."""
    digest = hashlib.sha256()
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        digest.update(observation.tobytes())
        digest.update(repr((reward, terminated, truncated, _plain(info))).encode())
        if terminated or truncated:
            observation, _ = env.reset()
            digest.update(observation.tobytes())
    return digest.hexdigest()


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in info.items()}


def compare_short_episodes(seed: int, actions: list[int], length: int) -> None:
    game = LockStep(seed=seed, length=length)
    game.reset()
    for action in actions:
        *_, done, _ = game.step(action)
        if done:
            game.reset()


@settings(max_examples=10)
@given(seed=seeds, actions=action_lists(), length=st.integers(1, 60))
def test_short_episodes_equal_the_original(seed: int, actions: list[int], length: int) -> None:
    compare_short_episodes(seed, actions, length)


@pytest.mark.long
@settings(max_examples=80, derandomize=False)
@given(seed=seeds, actions=action_lists(40), length=st.integers(1, 400))
def test_new_episodes_equal_the_original(seed: int, actions: list[int], length: int) -> None:
    """Other episodes at every run; a failure prints the one to reproduce."""
    compare_short_episodes(seed, actions, length)


@settings(max_examples=12)
@given(
    seed=seeds,
    width=st.integers(9, 40),
    height=st.integers(9, 40),
    view=st.tuples(st.integers(4, 9), st.integers(6, 9)),
    unit=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    spare=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    actions=action_lists(max_runs=4),
)
def test_any_geometry_equals_the_original(
    seed: int,
    width: int,
    height: int,
    view: tuple[int, int],
    unit: tuple[int, int],
    spare: tuple[int, int],
    actions: list[int],
) -> None:
    size = (view[0] * unit[0] + spare[0], view[1] * unit[1] + spare[1])
    game = LockStep(seed=seed, area=(width, height), view=view, size=size)
    game.reset()
    for action in actions:
        if game.step(action)[2]:
            break


@settings(max_examples=40)
@given(
    seed=seeds,
    before=action_lists(40),
    after=action_lists(40),
    other_seed=seeds,
    length=st.integers(20, 400),
)
def test_restored_environment_continues_alike(
    seed: int, before: list[int], after: list[int], other_seed: int, length: int
) -> None:
    env = CrafterEnv(seed=seed, length=length)
    env.reset()
    play(env, before)
    state = env.save_state()
    expected = play(env, after)
    restored = CrafterEnv(seed=other_seed, length=length)
    restored.load_state(state)
    assert restored.save_state() == state
    assert play(restored, after) == expected
    # Loading back into the one that has moved on rewinds it.
    env.load_state(state)
    assert play(env, after) == expected


@settings(max_examples=30)
@given(
    seed=seeds,
    actions=action_lists(40),
    sizes=st.lists(st.tuples(st.integers(27, 200), st.integers(27, 200)), max_size=3),
)
def test_rendering_does_not_change_the_game(
    seed: int, actions: list[int], sizes: list[tuple[int, int]]
) -> None:
    quiet = CrafterEnv(seed=seed)
    watched = CrafterEnv(seed=seed, render_mode="rgb_array")
    first, _ = quiet.reset()
    assert np.array_equal(first, watched.reset()[0])
    for action in actions:
        expected = quiet.step(action)
        observed = watched.step(action)
        assert np.array_equal(expected[0], observed[0])
        assert expected[1:4] == observed[1:4]
        for _ in range(2):
            np.testing.assert_array_equal(watched.render(), observed[0])
        for size in sizes:
            watched.render(size=size)
        if expected[2] or expected[3]:
            assert np.array_equal(quiet.reset()[0], watched.reset()[0])
    assert quiet.save_state() == watched.save_state()


def _vector_digest(num_envs: int, threads: int, steps: int, seed: int) -> str:
    vec: Any = make_vec("crafter", num_envs=num_envs, seed=seed, threads=threads, length=70)
    digest = hashlib.sha256()
    actions = np.random.default_rng(seed).integers(0, NUM_ACTIONS, (steps, num_envs))
    digest.update(vec.reset()[0].tobytes())
    for row in actions:
        observations, rewards, terminations, truncations, _ = vec.step(row)
        for array in (observations, rewards, terminations, truncations):
            digest.update(np.ascontiguousarray(array).tobytes())
    for array in vec.pop_episodes():
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(vec.save_state())
    vec.close()
    return digest.hexdigest()


@pytest.mark.parametrize("num_envs", [1, 5, 32])
def test_thread_count_changes_nothing(num_envs: int) -> None:
    expected = _vector_digest(num_envs, 1, 160, 3)
    for threads in (2, 3, 7):
        assert _vector_digest(num_envs, threads, 160, 3) == expected


def test_other_processes_agree() -> None:
    """Whatever the hash seed of the interpreter, and however many threads it uses."""
    expected = _vector_digest(6, 1, 120, 9)
    program = (
        "import sys\n"
        "from tests.envs.test_properties import _vector_digest\n"
        "print(_vector_digest(6, int(sys.argv[1]), 120, 9))"
    )
    for hash_seed, threads in (("1", 1), ("77", 3)):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join([root, os.path.join(root, "src"), os.environ.get("PYTHONPATH", "")])
        result = subprocess.run(
            [sys.executable, "-c", program, str(threads)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == expected


@settings(max_examples=15)
@given(
    sub_seeds=st.lists(seeds, min_size=1, max_size=6),
    threads=st.integers(1, 4),
    length=st.integers(5, 60),
    data=st.randoms(use_true_random=False),
)
def test_vector_equals_single_environments(
    sub_seeds: list[int], threads: int, length: int, data: Any
) -> None:
    vec: Any = make_vec(
        "crafter", num_envs=len(sub_seeds), seed=sub_seeds, threads=threads, length=length
    )
    singles = [CrafterEnv(seed=seed, length=length) for seed in sub_seeds]
    observations, _ = vec.reset()
    for row, env in zip(observations, singles, strict=True):
        assert np.array_equal(row, env.reset()[0])
    finished = []
    returns = np.zeros(len(singles))
    lengths = np.zeros(len(singles), int)
    for tick in range(1, 80):
        actions = np.array([data.randrange(NUM_ACTIONS) for _ in singles])
        observations, rewards, terminations, truncations, _ = vec.step(actions)
        for i, env in enumerate(singles):
            observation, reward, terminated, truncated, info = env.step(int(actions[i]))
            returns[i] += reward
            lengths[i] += 1
            if terminated or truncated:
                finished.append(
                    (i, tick, lengths[i], returns[i], tuple(info["achievements"].values()))
                )
                observation, _ = env.reset()
                returns[i], lengths[i] = 0.0, 0
            assert np.array_equal(observations[i], observation)
            assert rewards[i] == reward
            assert (terminations[i], truncations[i]) == (terminated, truncated)
    episodes = vec.pop_episodes()
    assert len(vec.pop_episodes().env) == 0
    assert [
        (env, tick, length, total, tuple(achievements))
        for env, tick, length, total, achievements in zip(
            *(array.tolist() for array in episodes), strict=True
        )
    ] == finished
    vec.close()
