"""Rare pairs: an option of PPO, a bonus for having together what rarely is together. It needs no labels.

What leads further often takes two things that an agent seldom has at once: iron in hand and a table beside it. Nothing
rewards the way there. So what is at hand counts (:meth:`achieve.nn.encoder.Encoder.things`): when two things are there
at once for the first time in an episode, the bonus is ``coef (1 - p / rate)``, if the share ``p`` of episodes in which
that happens is below ``rate``. A pair that has become usual is worth nothing any more.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from achieve.config import PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.encoder import Encoder

FADING = 0.986
"""What the episodes before a rollout count after it: a half after 49 rollouts."""
FEWEST = 50
"""Episodes before any pair is said to be rare."""
LIMIT = 0.5
"""Largest bonus of a step."""
READ_AT_ONCE = 1024


def worth(rates: Float[np.ndarray, "K K"], coef: float, rate: float) -> Float[np.ndarray, "K K"]:
    """Return what each pair is worth, ``coef (1 - p / rate)`` or nothing; it has one place, above the diagonal."""
    return np.triu(coef * np.clip(1 - rates / rate, 0, None), 1).astype(np.float32)


class RarePairs:
    """Counts which things are there together, and adds a bonus to what PPO learns from.

    Args:
        encoder: says what is at hand.
        buffer: whose newest rollout is taken in; its :attr:`~RolloutBuffer.bonuses` are written.
        config: of PPO.
    """

    def __init__(self, encoder: Encoder, buffer: RolloutBuffer, config: PPOConfig) -> None:
        self._encoder, self._buffer, self._config = encoder, buffer, config
        buffer.add_bonuses()
        kinds = self._things(buffer.observations[:1]).shape[2]
        self._seen = np.zeros((buffer.num_envs, kinds, kinds), bool)
        self._counts = np.zeros((kinds, kinds))
        self._episodes = np.zeros(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is to be saved. The tensors are live: copying into them restores it."""
        arrays = {"seen": self._seen, "counts": self._counts, "episodes": self._episodes}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @torch.no_grad()
    def _things(self, observations: Tensor) -> Bool[np.ndarray, "T N K"]:
        """Return what is at hand in each of these rows of the buffer."""
        parts = [self._encoder.things(part).cpu() for part in observations.flatten(0, 1).split(READ_AT_ONCE)]
        return torch.cat(parts).numpy().reshape(*observations.shape[:2], -1)

    def take_in(self) -> None:
        """Add the bonus of the newest rollout, once it is complete, and count what was there."""
        buffer, config = self._buffer, self._config
        assert buffer.bonuses is not None
        first, last = buffer.filled - buffer.length, buffer.filled
        value = np.zeros_like(self._counts, np.float32)
        if self._episodes[0] >= FEWEST:
            value = worth(self._counts / self._episodes, config.pair_bonus, config.pair_rate)
        there, dones = self._things(buffer.observations[first + 1 : last + 1]), buffer.dones[first:last]
        self._counts *= FADING
        self._episodes *= FADING
        for row, (now, done) in enumerate(zip(there, dones, strict=True), start=first):
            self._seen[done] = False  # what is at hand now belongs to the next episode
            together = now[:, :, None] & now[:, None, :]
            new = together & ~self._seen
            self._seen |= together
            self._counts += new.sum(0)
            bonus = np.minimum((new * value).sum((1, 2)), LIMIT)
            buffer.bonuses[row] = np.where(done, 0, bonus)
        self._episodes += dones.sum()

    def figures(self) -> dict[str, float]:
        """Return, for the log, the newest rollout's bonus per step."""
        buffer = self._buffer
        assert buffer.bonuses is not None
        return {"pair_bonus": float(buffer.bonuses[buffer.filled - buffer.length : buffer.filled].mean())}
