"""Learning more from rare unlocks: two options of PPO, which need no labels.

The kinds of unlocks are discovered (`achieve.algo.kinds`), and so is how rare each is.

- ``ppo.rarity_power``: PPO learns from the reward of an unlock times ``(rate / p)^power``, from 1 to a limit, where a
  share ``p`` of episodes has an unlock of its kind.
- ``ppo.imitation_coef``: unlocks are kept, each with the steps that led to it. Every minibatch is joined by some of
  these steps, whose actions are imitated: the loss has ``-coef log pi(a|s)`` in addition. What has become rare, or was
  found only a few times, would otherwise be unlearned before it comes again.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, from_numpy

from achieve.algo.kinds import CAPACITY, UnlockKinds, rarity_weights
from achieve.config import PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.data.trajectories import IntArray, find_unlocks
from achieve.data.transfer import upload

FEWEST = 256
"""Kept unlocks before any are imitated, if there is room for so many."""
import os
RNEARER = float(os.environ.get('RNEARER', 0.85))
PAIRS = 'PAIRS' in os.environ
NEARER = float(os.environ.get('NEARER', 0.85))
"""How much less often a step is drawn than the one after it, on the way to an unlock."""


def steps_before(
    unlocks: Int[np.ndarray, " U"], starts: Bool[np.ndarray, " steps"], num_envs: int, reach: int
) -> tuple[Int[np.ndarray, "U {reach}"], Int[np.ndarray, " U"]]:
    """Return the steps up to each unlock, its own first, and how many there are.

    Steps are positions in a flattened rollout [T * N] and go back no further than the rollout and the episode do; the
    last one is then repeated. ``starts`` says which steps are their episode's first.
    """
    at, going = unlocks, np.ones(len(unlocks), bool)
    steps, lengths = [at], np.ones(len(unlocks), np.int64)
    for _ in range(reach - 1):
        going = going & (at >= num_envs) & ~starts[at]
        at = np.where(going, at - num_envs, at)
        lengths += going
        steps.append(at)
    return np.stack(steps, axis=1), lengths


def places(kept: Int[np.ndarray, " C"], new: Int[np.ndarray, " U"], rng: np.random.Generator) -> Int[np.ndarray, " U"]:
    """Return where new unlocks go: to a free place, else to that of one of the kind of which most are kept.

    ``kept`` are the kinds in each place, -1 where it is free, and ``new`` those of the new ones, at most as many as
    there are places. None takes the place of another new one.
    """
    kinds, replaceable = kept.copy(), np.ones(len(kept), bool)
    where = np.zeros(len(new), np.int64)
    for i, kind in enumerate(new):
        free = np.flatnonzero(kinds < 0)
        if len(free):
            where[i] = free[0]
        else:
            held = np.bincount(kinds)
            held[np.bincount(kinds[replaceable], minlength=len(held)) == 0] = 0  # all of it is new
            where[i] = rng.choice(np.flatnonzero(replaceable & (kinds == held.argmax())))
        kinds[where[i]], replaceable[where[i]] = kind, False
    return where


class KeptUnlocks:
    """Unlocks with the steps that led to them.

    Attributes:
        observations, memory, actions: [C * R, ...], step ``k`` before unlock ``c`` at ``c * R + k``.
    """

    def __init__(self, capacity: int, reach: int, buffer: RolloutBuffer) -> None:
        self._buffer, self._reach = buffer, reach
        self.observations = _room(buffer.observations, capacity * reach)
        self.memory = _room(buffer.memory, capacity * reach)
        self.actions = _room(buffer.actions, capacity * reach)
        self._after = _room(buffer.observations, capacity)
        self._kinds = np.full(capacity, -1, np.int64)
        self._lengths = np.zeros(capacity, np.int64)
        self.worth = torch.zeros(capacity)
        self.rare = np.zeros(capacity, bool)

    @staticmethod
    def nbytes(capacity: int, reach: int, observation: int, memory_size: int) -> int:
        """Return the memory of so many unlocks, with observations of so many bytes."""
        return capacity * (observation * (reach + 1) + reach * (4 * memory_size + 8))

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is to be saved. The tensors are live: copying into them restores it."""
        return {
            "observations": self.observations, "memory": self.memory, "actions": self.actions, "after": self._after,
            "kinds": from_numpy(self._kinds), "lengths": from_numpy(self._lengths),
        }  # fmt: skip

    def ranges(self, num_actions: int) -> dict[str, tuple[int, int]]:
        """Return the bounds of saved integers."""
        return {"actions": (0, num_actions - 1), "kinds": (-1, CAPACITY - 1 + num_actions), "lengths": (0, self._reach)}

    def __len__(self) -> int:
        return int((self._kinds >= 0).sum())

    @property
    def enough(self) -> bool:
        """Whether there are enough to imitate."""
        return len(self) >= min(FEWEST, len(self._kinds))

    def keep(self, steps: IntArray, kinds: IntArray, rng: np.random.Generator) -> None:
        """Keep unlocks at these steps of the newest rollout, the last ones if they are too many."""
        buffer, capacity = self._buffer, len(self._kinds)
        steps, kinds = steps[-capacity:], kinds[-capacity:]
        first, num_envs = buffer.filled - buffer.length, buffer.num_envs
        starts = buffer.starts()[first : buffer.filled].ravel()
        before, lengths = steps_before(steps, starts, num_envs, self._reach)
        where = places(self._kinds, kinds, rng)
        index = upload(before.ravel() + first * num_envs, buffer.device)
        to = upload((where[:, None] * self._reach + np.arange(self._reach)).ravel(), buffer.device)
        for name in ("observations", "memory", "actions"):
            getattr(self, name)[to] = buffer.flat(name)[index]
        after = upload(steps + (first + 1) * num_envs, buffer.device)
        self._after[upload(where, buffer.device)] = buffer.flat("observations")[after]
        self._kinds[where], self._lengths[where] = kinds, lengths

    def recognize(self, by: UnlockKinds) -> None:
        """Find the kind of each anew; where there are no kinds, all are of one."""
        there = np.flatnonzero(self._kinds >= 0)
        if not len(by.rates):
            self._kinds[there] = 0
        elif len(there):
            index = upload(there, self._buffer.device)
            own = index * self._reach
            pairs = torch.stack([self.observations[own], self._after[index]], dim=1)
            self._kinds[there] = by.recognize(by.describe(by.representations(pairs), self.actions[own]))

    def draw(self, size: int, rng: np.random.Generator) -> IntArray:
        """Return the positions of so many steps, drawn with replacement.

        Of ``n`` unlocks of one kind, each is drawn in proportion to ``1 / sqrt(n)``, and the step ``k`` before it in
        proportion to ``NEARER^k``.
        """
        there = np.flatnonzero(self._kinds >= 0)
        kinds = self._kinds[there]
        import os; share = (1.0 / np.bincount(kinds)[kinds] ** float(os.environ.get("EVEN", 0.5))).cumsum()
        chosen = there[np.searchsorted(share, rng.random(size) * share[-1], side="right").clip(max=len(there) - 1)]
        lengths = self._lengths[chosen]
        NEARER = np.where(self.rare[chosen], RNEARER, 0.85)
        lengths = np.where(self.rare[chosen], lengths, np.minimum(lengths, 4))
        back = np.log1p(-rng.random(size) * (1 - NEARER**lengths)) / np.log(NEARER)
        return chosen * self._reach + np.minimum(back.astype(np.int64), lengths - 1)


def _room(like: Tensor, rows: int) -> Tensor:
    """Room for so many rows of a table [S, N, ...]."""
    return torch.zeros(rows, *like.shape[2:], dtype=like.dtype, device=like.device)


class RareUnlocks:
    """Weighs and keeps the unlocks of each rollout by their kinds."""

    def __init__(self, kinds: UnlockKinds, buffer: RolloutBuffer, config: PPOConfig, threshold: float) -> None:
        self._kinds, self._buffer, self._config, self._threshold = kinds, buffer, config, threshold
        self.kept: KeptUnlocks | None = None
        if config.imitation_coef:
            self.kept = KeptUnlocks(config.imitation_capacity, config.imitation_reach, buffer)
        if config.rarity_power:
            buffer.weigh_rewards()

    @torch.no_grad()
    def take_in(self, rng: np.random.Generator) -> None:
        """Weigh and keep the unlocks of the newest rollout, once it is complete."""
        buffer, kinds, config = self._buffer, self._kinds, self._config
        rows = slice(buffer.filled - buffer.length, buffer.filled)
        if PAIRS:
            if buffer.bonus is None:
                from achieve.algo.pairs import Pairs
                self.pairs = Pairs(kinds._network.encoder, buffer.num_envs)
                buffer.bonus = np.zeros_like(buffer.rewards)
            buffer.bonus[rows] = self.pairs(buffer.observations[rows.start : rows.stop + 1], buffer.dones[rows])
        steps, _ = find_unlocks(buffer.rewards[rows], buffer.dones[rows], self._threshold)
        known = len(steps) > 0 and len(kinds.rates) > 0
        of = np.zeros(len(steps), np.int64)
        if known:
            of = kinds.recognize(kinds.represent(steps + rows.start * buffer.num_envs))
        if buffer.reward_weights is not None:
            buffer.reward_weights[rows] = 1
            if known:
                weights = rarity_weights(kinds.rates[of], config.rarity_rate, config.rarity_power, config.rarity_limit)
                buffer.reward_weights[rows].reshape(-1)[steps] = weights
        if self.kept is not None:
            self.kept.keep(steps, of, rng)
            self._appraise()

    def _appraise(self):
        kept, rates, c = self.kept, self._kinds.rates, self._config
        k = kept._kinds
        r = rates[np.clip(k, 0, len(rates) - 1)] if len(rates) else np.ones(len(k))
        kept.worth.copy_(torch.from_numpy(rarity_weights(r, c.rarity_rate, c.rarity_power, c.rarity_limit)).float())
        kept.rare[:] = r < 0.05

    def figures(self) -> dict[str, float]:
        """Return, for the log, how much the newest rollout's unlocks count in the mean, and how many are kept."""
        buffer, figures = self._buffer, {}
        rows = slice(buffer.filled - buffer.length, buffer.filled)
        unlocked = buffer.rewards[rows] > np.float32(self._threshold)
        if buffer.reward_weights is not None and unlocked.any():
            figures["unlock_weight"] = float(buffer.reward_weights[rows][unlocked].mean())
        return figures if self.kept is None else {**figures, "kept_unlocks": len(self.kept)}

    @torch.no_grad()
    def learn_kinds(self) -> dict[str, float]:
        """Find the kinds anew, after an auxiliary phase and with its full buffer. Returns figures for the log."""
        figures = self._kinds.learn()
        if self.kept is not None:
            self.kept.recognize(self._kinds)
        return figures

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is to be saved, by name. The tensors are live."""
        kept = {} if self.kept is None else {f"kept.{name}": tensor for name, tensor in self.kept.tensors().items()}
        return {**{f"kinds.{name}": tensor for name, tensor in self._kinds.tensors().items()}, **kept}

    def ranges(self, num_actions: int) -> dict[str, tuple[int, int]]:
        """Return the bounds of saved integers."""
        kept = {} if self.kept is None else {f"kept.{k}": v for k, v in self.kept.ranges(num_actions).items()}
        return {**{f"kinds.{k}": v for k, v in self._kinds.ranges().items()}, **kept}
