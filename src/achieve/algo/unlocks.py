"""Learning more from rare unlocks, by the number of unlocks before them.

Two options of PPO. The depth of an unlock is the number of unlocks before it in its episode; the rate of a depth is the
share of recent episodes that came beyond it. Both go by rewards alone.

- `ppo.depth_rarity`: PPO learns from rewards of unlocks times ``clip((0.2 / rate)^power, 1, 5)``.
- `ppo.unlock_coef`: steps that unlocked something are kept, and every minibatch is joined by some of them, whose
  actions are imitated: ``-log pi(a|s)``. Of ``n`` kept unlocks of one depth each is drawn in proportion to
  ``1 / sqrt(n)``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, from_numpy

from achieve.algo.frontier import depths
from achieve.data.buffer import RolloutBuffer
from achieve.data.transfer import upload

MOST = 64
"""Depths that are told apart."""
FADING = 0.998
FEWEST = 256
"""Kept unlocks before any are imitated."""
COMMON, LARGEST = 0.2, 5.0
ROOM = 8192


class Unlocks:
    """Rates of depths, and a ring of the newest unlocks."""

    def __init__(self, buffer: RolloutBuffer, threshold: float, *, keep: bool) -> None:
        self._buffer, self._threshold = buffer, np.float32(threshold)
        self._depths = np.zeros(buffer.num_envs, np.int64)
        self._rates = np.full(MOST, 0.02)
        self.labels, self.envs = False, None
        self._seen = np.zeros((buffer.num_envs, MOST), bool)
        room = ROOM if keep else 0
        self.observations = torch.zeros(room, *buffer.observations.shape[2:], dtype=buffer.observations.dtype, device=buffer.device)
        self.memory = torch.zeros(room, buffer.memory.shape[2], device=buffer.device)
        self.actions = torch.zeros(room, dtype=torch.int64, device=buffer.device)
        self._kind = np.full(room, -1, np.int64)
        self._next = np.zeros(1, np.int64)

    def tensors(self) -> dict[str, Tensor]:
        arrays = {"depths": self._depths, "rates": self._rates, "kind": self._kind, "next": self._next}
        kept = {"observations": self.observations, "memory": self.memory, "actions": self.actions}
        return {name: from_numpy(array) for name, array in arrays.items()} | (kept if len(self._kind) else {})

    def take_in(self, power: float) -> None:
        """Weigh the unlocks of the newest rollout, keep them, and take in the episodes that ended in it."""
        buffer = self._buffer
        rows = slice(buffer.filled - buffer.length, buffer.filled)
        unlocked = buffer.rewards[rows].astype(np.float32) > self._threshold
        if self.labels:
            log = np.stack(self.envs.unlock_log); self.envs.unlock_log.clear()
            assert log.shape == unlocked.shape and (log >= 0)[unlocked].all()  # an unlock and a fatal loss of health may cancel out
            depth = np.where(unlocked, log, 0)
            counted = unlocked
        else:
            depth = np.minimum(depths(unlocked, buffer.starts()[rows], self._depths), MOST - 1)
        if buffer.reward_weights is not None:
            weights = np.clip((COMMON / np.maximum(self._rates, 1e-3)) ** power, 1, LARGEST)
            buffer.reward_weights[rows] = np.where(unlocked, weights[depth], 1)
        after, ended = depth + unlocked, buffer.dones[rows]
        if self.labels:
            for t in range(len(ended)):
                for i in np.flatnonzero(unlocked[t]): self._seen[i, depth[t, i]] = True
                for i in np.flatnonzero(ended[t]):
                    self._rates = self._rates * FADING + (1 - FADING) * self._seen[i]
                    self._seen[i] = False
        else:
            for count in after[ended]:
                self._rates = self._rates * FADING + (1 - FADING) * (np.arange(MOST) < count)
            self._depths[:] = np.where(ended[-1], 0, after[-1])
        if len(self._kind):
            where = np.flatnonzero(unlocked.ravel())[-len(self._kind):]
            slots = (self._next[0] + np.arange(len(where))) % len(self._kind)
            index = upload(where + rows.start * buffer.num_envs, buffer.device)
            at = upload(slots, buffer.device)
            for name in ("observations", "memory", "actions"):
                getattr(self, name)[at] = buffer.flat(name)[index]
            self._kind[slots] = depth.ravel()[where]
            self._next += len(where)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of kept unlocks; none while there are few."""
        there = np.flatnonzero(self._kind >= 0)
        if len(there) < FEWEST:
            return np.zeros(0, np.int64)
        counts = np.bincount(self._kind[there], minlength=MOST)
        share = (1 / np.sqrt(counts[self._kind[there]])).cumsum()
        return there[np.searchsorted(share, rng.random(size) * share[-1]).clip(0, len(there) - 1)]
