"""Complete episodes and their achievements in a buffer of rollouts.

This is index arithmetic on the host. It sees rewards and episode ends, never achievement labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from achieve.envs.arrays import is_unlock

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Trajectory:
    """A complete episode in the buffer.

    Attributes:
        steps: [L], positions of the steps in the flattened buffer (time major, environments minor).
        unlocks: [m], places in ``steps``: the t < L - 1 at which an achievement ``(s_t, a_t, s_{t+1})`` was unlocked.
            Its two positions in the buffer are ``steps[unlocks]`` and ``steps[unlocks + 1]``.
    """

    steps: IntArray
    unlocks: IntArray

    def __len__(self) -> int:
        return len(self.steps)


def cut_trajectories(
    rewards: Float[np.ndarray, "S N"],
    dones: Bool[np.ndarray, "S N"],
    fresh: Bool[np.ndarray, " N"],
    threshold: float,
) -> list[Trajectory]:
    """Return the complete episodes in the buffer, ordered by environment and time.

    Args:
        rewards: of each step.
        dones: step s ended an episode, and row s + 1 starts another.
        fresh: row 0 is the first of an episode. If it is not, that episode is dropped, as is one that continues
            after the last row.
        threshold: a reward above it is an unlock.
    """
    unlocked = is_unlock(rewards, threshold)
    num_envs = dones.shape[1]
    trajectories = []
    for env in range(num_envs):
        ends = np.flatnonzero(dones[:, env]) + 1
        starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if index == 0 and not fresh[env]:
                continue
            # An unlock at the last step of an episode has no next observation.
            unlocks = np.flatnonzero(unlocked[start : end - 1, env])
            steps = np.arange(start, end, dtype=np.int64) * num_envs + env
            trajectories.append(Trajectory(steps, unlocks.astype(np.int64)))
    return trajectories


def find_unlocks(
    rewards: Float[np.ndarray, "S N"], dones: Bool[np.ndarray, "S N"], threshold: float
) -> tuple[Int[np.ndarray, " U"], Int[np.ndarray, " U"]]:
    """Return every unlock that has a next observation, in complete episodes or not.

    Returns:
        Their positions in the flattened buffer, in order; the next observation is ``N`` further on. And a number for
        each one's episode, from 0 on, unique to that episode.
    """
    unlocked = is_unlock(rewards, threshold) & ~dones
    (positions,) = np.nonzero(unlocked.ravel())
    ended = dones.cumsum(0) - dones  # episodes of the same environment that ended before
    numbers = (ended * dones.shape[1] + np.arange(dones.shape[1])).ravel()
    return positions.astype(np.int64), numbers[positions].astype(np.int64)


def next_achievement(unlocks: Int[np.ndarray, " m"], length: int) -> Int[np.ndarray, " {length}"]:
    """Return ``g_t^+``: for each step, the index of the first unlock at or after it; ``m`` after the last."""
    return np.searchsorted(unlocks, np.arange(length), side="left").astype(np.int64)


def anchor_steps(
    unlocks: Int[np.ndarray, " m"], length: int
) -> tuple[Int[np.ndarray, " {length}"], Int[np.ndarray, " {length}"]]:
    """Return the two observations whose latents make up each step's anchor.

    Returns:
        ``before`` and ``after``, as steps of the trajectory. Past the last unlock the anchor is
        ``normalise(0 - phi(s_{L-1}))``: ``before`` is L - 1 and ``after`` is -1, which stands for the zero vector.
    """
    following = next_achievement(unlocks, length)
    padded = np.append(unlocks, length - 1)
    before = padded[following]
    after = np.where(following < len(unlocks), before + 1, -1)
    return before, after
