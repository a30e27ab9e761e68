"""From a buffer of rollouts to whole episodes and their achievements.

Everything here is plain index arithmetic on the host: it sees rewards and episode ends, never labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Trajectory:
    """One whole episode inside the buffer.

    Attributes:
        steps: [L], where each step lies in the flattened buffer (time major, environments minor).
        unlocks: [m], the steps t < L - 1 at which an achievement was unlocked; it is ``(o_t, a_t, o_{t+1})``.
    """

    steps: IntArray
    unlocks: IntArray

    def __len__(self) -> int:
        return len(self.steps)


def cut_trajectories(
    rewards: NDArray[np.float32], dones: NDArray[np.bool_], fresh: NDArray[np.bool_], threshold: float
) -> list[Trajectory]:
    """Episodes that lie in the buffer as a whole, ordered by environment and time.

    Args:
        rewards: [S, N].
        dones: [S, N]: step s ended an episode, and row s + 1 starts another.
        fresh: [N]: row 0 is the first of an episode. Where it is not, that episode is dropped; so is one that goes on
            past the last row.
        threshold: a reward above it is an unlock. Compared in float32, where Crafter's 0.1 stays below 0.15.
    """
    unlocked = rewards.astype(np.float32) > np.float32(threshold)
    num_envs = dones.shape[1]
    trajectories = []
    for env in range(num_envs):
        ends = np.flatnonzero(dones[:, env]) + 1
        starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if index == 0 and not fresh[env]:
                continue
            # An unlock at an episode's very last step has no next observation of its own.
            unlocks = np.flatnonzero(unlocked[start : end - 1, env])
            steps = np.arange(start, end, dtype=np.int64) * num_envs + env
            trajectories.append(Trajectory(steps, unlocks.astype(np.int64)))
    return trajectories


def next_achievement(unlocks: IntArray, length: int) -> IntArray:
    """``g_t^+``: for each step, the index of the first unlock at or after it; ``m`` after the last. [m] -> [L]."""
    return np.searchsorted(unlocks, np.arange(length), side="left").astype(np.int64)


def previous_achievement(unlocks: IntArray, length: int) -> IntArray:
    """``g_t^-``: for each step, the index of the last unlock before it; -1 before the first. [m] -> [L]."""
    return (np.searchsorted(unlocks, np.arange(length), side="left") - 1).astype(np.int64)


def anchor_steps(unlocks: IntArray, length: int) -> tuple[IntArray, IntArray]:
    """The two observations whose latents make up each step's anchor.

    Returns:
        ``before`` [L] and ``after`` [L], as steps of the trajectory. Past the last unlock the anchor is
        ``normalise(0 - phi(o_{L-1}))``: ``before`` is L - 1 and ``after`` is -1, which stands for the zero vector.
    """
    following = next_achievement(unlocks, length)
    padded = np.append(unlocks, length - 1)
    before = padded[following]
    after = np.where(following < len(unlocks), before + 1, -1)
    return before, after
