"""The most recent complete episodes of a replay buffer, as distillation needs them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from achieve.data.replay import Replay
from achieve.data.trajectories import IntArray, Trajectory
from achieve.data.transfer import upload

COPY_BATCH = 1024


class RecentEpisodes:
    """The episodes that ended in the newest rows, copied out of the ring one after another.

    An episode whose beginning has been overwritten is left out. The tensors stay in place from phase to phase, so that
    CUDA graphs on them can be replayed, until they need to grow.

    Args:
        room: initial capacity in steps.
    """

    def __init__(self, replay: Replay, room: int) -> None:
        self._replay = replay
        self._episodes: list[IntArray] = []
        self._allocate(room)

    def _allocate(self, room: int) -> None:
        replay, shape = self._replay, self._replay.shape
        self.steps = room
        self._tensors = {
            "observations": torch.zeros(room, *shape.frame, dtype=shape.dtype, device=replay.device),
            "memory": torch.zeros(room, shape.memory_size, device=replay.device),
            "actions": torch.zeros(room, dtype=torch.int64, device=replay.device),
        }

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self._replay.device

    def flat(self, name: str) -> Tensor:
        """Return a tensor of all steps."""
        return self._tensors[name]

    def gather(self, rows: int) -> int:
        """Copy the episodes that ended in the newest ``rows``, by environment and time. Returns their total length."""
        replay = self._replay
        self._episodes = ended_episodes(replay, max(0, replay.row - rows))
        count = sum(len(episode) for episode in self._episodes)
        if count > self.steps:
            self._allocate(self.steps * 2 ** math.ceil(math.log2(count / self.steps)))
        if not count:
            return 0
        index = np.concatenate(self._episodes)
        for start in range(0, count, COPY_BATCH):
            part = index[start : start + COPY_BATCH]
            here = slice(start, start + len(part))
            self._tensors["observations"][here] = replay.images(part)
            self._tensors["memory"][here] = replay.memory(part)
            actions = replay.actions.reshape(-1)[replay.places(part)].astype(np.int64)
            self._tensors["actions"][here] = upload(actions, self.device)
        return count

    def some(self, count: int) -> IntArray:
        """Return the replay indices of at most ``count`` of the steps, evenly spaced."""
        if not self._episodes:
            return np.zeros(0, dtype=np.int64)
        index = np.concatenate(self._episodes)
        return index[np.unique(np.linspace(0, len(index) - 1, count).astype(np.int64))]

    def trajectories(self, threshold: float) -> list[Trajectory]:
        """Return the episodes and their unlocks, as :func:`achieve.data.trajectories.cut_trajectories` does."""
        replay, made, start = self._replay, [], 0
        rewards = replay.rewards.reshape(-1)
        for episode in self._episodes:
            # An unlock at the last step of an episode has no next observation.
            unlocked = rewards[replay.places(episode[:-1])] > np.float32(threshold)
            steps = np.arange(start, start + len(episode), dtype=np.int64)
            made.append(Trajectory(steps, np.flatnonzero(unlocked).astype(np.int64)))
            start += len(episode)
        return made


def ended_episodes(replay: Replay, since: int) -> list[IntArray]:
    """Return the steps of each complete episode that ended in row ``since`` or later, by environment and time."""
    num_envs = replay.shape.num_envs
    rows = np.arange(max(since, replay.lowest), replay.row)
    places = rows % replay.shape.rows
    episodes = []
    for column in range(num_envs):
        for row in rows[replay.dones[places, column]]:
            start = row - replay.ages[row % replay.shape.rows, column]
            if start >= replay.lowest:
                episodes.append(np.arange(start, row + 1, dtype=np.int64) * num_envs + column)
    return episodes
