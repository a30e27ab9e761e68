"""The unlock rule, cutting a buffer into episodes, and labelling their steps."""

from __future__ import annotations

import numpy as np
import pytest

from achieve.data.trajectories import (
    anchor_steps,
    cut_trajectories,
    next_achievement,
)
from tests.oracles import episodes as literal

THRESHOLD = 0.15

# What Crafter pays: unlocks give 1, health moves by tenths; float32 and float64 round these differently.
REWARDS = {
    "nothing": (0.0, False),
    "regained health": (0.1, False),
    "regained health, as a difference": (1.0 - 0.9, False),
    "regained health, rounded up": (float(np.float32(0.1)), False),
    "damage": (-0.1, False),
    "heavy damage": (-0.7, False),
    "an unlock with heavy damage": (0.2, True),
    "the same, as a difference": (1.0 - 0.8, True),
    "the same, rounded": (float(np.float32(1.0) - np.float32(0.8)), True),
    "an unlock with damage": (0.9, True),
    "an unlock": (1.0, True),
    "an unlock with regained health": (1.1, True),
}


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_unlock_rule(name: str, dtype: type) -> None:
    reward, unlocked = REWARDS[name]
    rewards = np.array([[0.0], [reward], [0.0]], dtype=dtype)
    dones = np.array([[False], [False], [True]])
    (trajectory,) = cut_trajectories(rewards, dones, np.array([True]), THRESHOLD)
    assert trajectory.unlocks.tolist() == ([1] if unlocked else [])
    assert literal.is_unlock(reward) is unlocked


def random_buffer(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    steps, envs = rng.integers(1, 60), rng.integers(1, 5)
    rewards = rng.choice(
        [-0.1, 0.0, 0.1, 0.2, 0.9, 1.0], (steps, envs), p=[0.1, 0.5, 0.1, 0.1, 0.1, 0.1]
    )
    dones = rng.random((steps, envs)) < rng.choice([0.0, 0.05, 0.3, 1.0])
    return rewards.astype(np.float32), dones, rng.random(envs) < 0.5


@pytest.mark.parametrize("seed", range(60))
def test_cutting_random_buffers(seed: int) -> None:
    rewards, dones, fresh = random_buffer(seed)
    result = cut_trajectories(rewards, dones, fresh, THRESHOLD)
    expected = literal.trajectories(rewards, dones, fresh.tolist())
    assert [(t.steps.tolist(), t.unlocks.tolist()) for t in result] == expected
    assert all(len(t) == len(t.steps) for t in result)


def test_cutting_by_hand() -> None:
    """Two environments, six rows; the first starts mid-episode, the second afresh."""
    dones = np.array([[0, 0], [1, 0], [0, 0], [1, 1], [0, 0], [0, 1]], dtype=bool)
    rewards = np.array([[1, 1], [1, 0], [1, 0], [1, 1], [0, 1], [0, 1]], dtype=np.float32)
    result = cut_trajectories(rewards, dones, np.array([False, True]), THRESHOLD)
    assert [t.steps.tolist() for t in result] == [
        [4, 6],  # rows 2 and 3; rows 0 and 1 began before the buffer, rows 4 and 5 go on after it
        [1, 3, 5, 7],
        [9, 11],  # ends exactly on the last row and is kept
    ]
    # Unlocks at an episode's last step have no next observation of its own.
    assert [t.unlocks.tolist() for t in result] == [[0], [0], [0]]


def test_no_episode_ends() -> None:
    rewards = np.ones((5, 2), dtype=np.float32)
    dones = np.zeros((5, 2), dtype=bool)
    assert cut_trajectories(rewards, dones, np.array([True, True]), THRESHOLD) == []


EPISODES = {
    "no achievements": ([], 7),
    "one at the first step": ([0], 7),
    "one at the last usable step": ([5], 7),
    "one in the middle": ([3], 7),
    "several": ([1, 4, 8], 12),
    "consecutive": ([2, 3, 4], 8),
    "every step": (list(range(6)), 7),
    "first and last": ([0, 5], 7),
    "two steps": ([0], 2),
    "over-long": ([0, 1, 511, 512, 700, 1498], 1500),
}


@pytest.mark.parametrize("name", EPISODES)
def test_labels(name: str) -> None:
    unlocks, length = EPISODES[name]
    given = np.array(unlocks, dtype=np.int64)
    following = next_achievement(given, length)
    before, after = anchor_steps(given, length)
    assert len(following) == len(before) == len(after) == length
    for t in range(length):
        expected = literal.next_unlock(unlocks, t)
        assert following[t] == (len(unlocks) if expected is None else unlocks.index(expected))
        if expected is None:
            assert (before[t], after[t]) == (length - 1, -1)
        else:
            assert (before[t], after[t]) == (expected, expected + 1)


def test_labels_by_hand() -> None:
    """An unlock at t is the next achievement of step t itself."""
    unlocks = np.array([1, 3])
    assert next_achievement(unlocks, 6).tolist() == [0, 0, 1, 1, 2, 2]
    before, after = anchor_steps(unlocks, 6)
    assert before.tolist() == [1, 1, 3, 3, 5, 5]
    assert after.tolist() == [2, 2, 4, 4, -1, -1]
