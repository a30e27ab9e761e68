"""Learning more from rare unlocks.

Unlocks are told apart by their kind: the number of unlocks before them in their episode (`depth`), a cluster of ``nu``
and actions (`cluster`), or, as a bound, their name. The rate of a kind is the share of recent episodes with one.

- `ppo.depth_rarity`: PPO learns from rewards of unlocks times ``clip((0.2 / rate)^power, 1, 5)``.
- `ppo.unlock_coef`: unlocks are kept with the steps that led to them, and every minibatch is joined by some of these,
  whose actions are imitated: ``-log pi(a|s)``. Of ``n`` kept unlocks of one kind each is drawn in proportion to
  ``1 / sqrt(n)``, and the step ``k`` before it to ``0.85^k``. What is new takes the place of one of the kind with most.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, from_numpy

from achieve.algo.frontier import depths
from achieve.data.buffer import RolloutBuffer
from achieve.data.transfer import upload

MOST = 64
FADING = 0.998
FEWEST = 256
COMMON, LARGEST = 0.2, 5.0
ROOM = 8192
DECAY = 0.85


class Unlocks:
    """Rates of kinds, and kept unlocks."""

    def __init__(
        self, buffer: RolloutBuffer, threshold: float, *, keep: bool, reach: int = 1, balanced: bool = False,
        room: int = ROOM, by: str = "depth",
    ) -> None:
        self._buffer, self._threshold = buffer, np.float32(threshold)
        self.by, self.reach, self.balanced = by, reach, balanced
        self.kinds, self._version, self.envs = None, 0, None
        self._depths = np.zeros(buffer.num_envs, np.int64)
        self._rates = np.full(MOST, 0.02)
        self._seen = np.zeros((buffer.num_envs, MOST), bool)
        room = room if keep else 0
        shape, device = buffer.observations.shape[2:], buffer.device
        self._observations = torch.zeros(room, reach, *shape, dtype=buffer.observations.dtype, device=device)
        self._after = torch.zeros(room, *shape, dtype=buffer.observations.dtype, device=device)
        self._memory = torch.zeros(room, reach, buffer.memory.shape[2], device=device)
        self._actions = torch.zeros(room, reach, dtype=torch.int64, device=device)
        self._kind = np.full(room, -1, np.int64)
        self._length = np.zeros(room, np.int64)
        self._next = np.zeros(1, np.int64)
        self._rng = np.random.default_rng(0)

    observations = property(lambda self: self._observations.flatten(0, 1))
    memory = property(lambda self: self._memory.flatten(0, 1))
    actions = property(lambda self: self._actions.flatten(0, 1))

    def tensors(self) -> dict[str, Tensor]:
        arrays = {
            "depths": self._depths, "rates": self._rates, "kind": self._kind, "next": self._next, "length": self._length
        }  # fmt: skip
        kept = {
            "observations": self._observations, "after": self._after, "memory": self._memory, "actions": self._actions
        }  # fmt: skip
        return {name: from_numpy(array) for name, array in arrays.items()} | (kept if len(self._kind) else {})

    def take_in(self, power: float) -> None:
        """Weigh the unlocks of the newest rollout, keep them, and take in the episodes that ended in it."""
        buffer = self._buffer
        rows = slice(buffer.filled - buffer.length, buffer.filled)
        unlocked = buffer.rewards[rows].astype(np.float32) > self._threshold
        ended = buffer.dones[rows]
        if self.by == "label":
            log = np.stack(self.envs.unlock_log)
            self.envs.unlock_log.clear()
            kind = np.where(unlocked, log, 0)
        elif self.by == "cluster":
            kind = np.zeros(unlocked.shape, np.int64)
            self._rates[:] = 1
            if len(self.kinds.rates) and unlocked.any():
                steps = np.flatnonzero(unlocked.ravel()) + rows.start * buffer.num_envs
                with torch.no_grad():
                    kind[unlocked] = np.minimum(self.kinds.recognize(self.kinds.represent(steps)), MOST - 1)
                known = self.kinds.rates[:MOST]
                self._rates[: len(known)] = known
                if self._version != self.kinds.version:
                    self._version = self.kinds.version
                    self._recognize_kept()
        elif self.by == "action":
            kind = np.where(unlocked, buffer.actions[rows].cpu().numpy(), 0)
        else:
            kind = np.minimum(depths(unlocked, buffer.starts()[rows], self._depths), MOST - 1)
        if buffer.reward_weights is not None:
            weights = np.clip((COMMON / np.maximum(self._rates, 1e-3)) ** power, 1, LARGEST)
            buffer.reward_weights[rows] = np.where(unlocked, weights[kind], 1)
        if self.by in ("label", "action"):
            for t in range(len(ended)):
                for i in np.flatnonzero(unlocked[t]):
                    self._seen[i, kind[t, i]] = True
                for i in np.flatnonzero(ended[t]):
                    self._rates = self._rates * FADING + (1 - FADING) * self._seen[i]
                    self._seen[i] = False
        elif self.by == "depth":
            after = kind + unlocked
            for count in after[ended]:
                self._rates = self._rates * FADING + (1 - FADING) * (np.arange(MOST) < count)
            self._depths[:] = np.where(ended[-1], 0, after[-1])
        if len(self._kind):
            where = np.flatnonzero(unlocked.ravel())[-len(self._kind) :]
            self._keep(where, kind.ravel()[where], rows.start)

    def _keep(self, where: np.ndarray, kind: np.ndarray, first_row: int) -> None:
        buffer = self._buffer
        n, starts = buffer.num_envs, buffer.starts()[first_row : first_row + buffer.length].ravel()
        slots = self._free(kind)
        at, going, length = where.copy(), np.ones(len(where), bool), np.ones(len(where), np.int64)
        steps = [where]
        for _ in range(1, self.reach):  # the steps before, of the same episode and rollout
            going &= (at >= n) & ~starts[at]
            at = np.where(going, at - n, at)
            length += going
            steps.append(at)
        offset = first_row * n
        index, to = upload(np.stack(steps, 1) + offset, buffer.device), upload(slots, buffer.device)
        for name in ("observations", "memory", "actions"):
            table = buffer.flat(name)
            getattr(self, "_" + name)[to] = table[index.flatten()].unflatten(0, index.shape)
        self._after[to] = buffer.flat("observations")[index[:, 0] + n]
        self._kind[slots], self._length[slots] = kind, length

    def _free(self, kind: np.ndarray) -> np.ndarray:
        """Return the places where new unlocks are to go."""
        room = len(self._kind)
        slots = np.zeros(len(kind), np.int64)
        counts = np.bincount(self._kind[self._kind >= 0], minlength=MOST)
        taken = np.zeros(room, bool)
        for i, own in enumerate(kind):
            if not self.balanced or self._next[0] < room:
                slots[i] = self._next[0] % room
            else:
                most = counts.argmax()
                slots[i] = self._rng.choice(np.flatnonzero((self._kind == most) & ~taken))
                counts[most] -= 1
            counts[own] += 1
            taken[slots[i]] = True
            self._next += 1
        return slots

    @torch.no_grad()
    def _recognize_kept(self) -> None:
        there = np.flatnonzero(self._kind >= 0)
        if len(there):
            index = torch.from_numpy(there).to(self._actions.device)
            nu = self.kinds.representations(torch.stack([self._observations[index, 0], self._after[index]], 1))
            of = self.kinds.recognize(self.kinds.describe(nu, self._actions[index, 0]))
            self._kind[there] = np.minimum(of, MOST - 1)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of kept steps; none while there are few."""
        there = np.flatnonzero(self._kind >= 0)
        if len(there) < FEWEST:
            return np.zeros(0, np.int64)
        counts = np.bincount(self._kind[there], minlength=MOST)
        share = (1 / np.sqrt(counts[self._kind[there]])).cumsum()
        chosen = there[np.searchsorted(share, rng.random(size) * share[-1]).clip(0, len(there) - 1)]
        back = (np.log(1 - rng.random(size) * (1 - DECAY ** self._length[chosen])) / np.log(DECAY)).astype(np.int64)
        return chosen * self.reach + np.minimum(back, self._length[chosen] - 1)
