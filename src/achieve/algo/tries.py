"""A bonus for actions hardly tried yet, counted for each number of unlocks before them."""

from __future__ import annotations

import numpy as np

from achieve.algo.frontier import depths
from achieve.data.buffer import RolloutBuffer

MOST = 64


class Tries:
    """How often each action was taken at each depth; PPO is rewarded ``coef / sqrt(n + 1)`` for one taken n times."""

    def __init__(self, buffer: RolloutBuffer, threshold: float, num_actions: int, coef: float) -> None:
        self._buffer, self._threshold, self._coef = buffer, np.float32(threshold), coef
        self._depths = np.zeros(buffer.num_envs, np.int64)
        self.counts = np.zeros((MOST, num_actions))
        buffer.bonus = np.zeros_like(buffer.rewards)

    def take_in(self) -> None:
        buffer = self._buffer
        rows = slice(buffer.filled - buffer.length, buffer.filled)
        unlocked = buffer.rewards[rows].astype(np.float32) > self._threshold
        depth = np.minimum(depths(unlocked, buffer.starts()[rows], self._depths), MOST - 1)
        ended = buffer.dones[rows]
        self._depths[:] = np.where(ended[-1], 0, (depth + unlocked)[-1])
        actions = buffer.actions[rows].cpu().numpy()
        buffer.bonus[rows] = self._coef / np.sqrt(self.counts[depth, actions] + 1)
        np.add.at(self.counts, (depth, actions), 1)
