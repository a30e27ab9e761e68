"""The rollouts since the last auxiliary phase, on the learner's device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.data.trajectories import Trajectory, cut_trajectories

MOST_LOCKED = 2**30
"""Bytes of host memory to lock for saving rows."""


class RolloutBuffer:
    """A buffer of ``rollouts`` rollouts of ``length`` steps of ``num_envs`` environments.

    Tensors are [S + 1, N, ...] with ``S = rollouts * length``. The row after a rollout holds the next observation,
    whose value bootstraps the rollout; the next rollout starts by overwriting that row. Rewards and episode ends stay
    on the host.

    Attributes:
        observations: [S + 1, N, ...] of ``dtype``, images [S + 1, N, H, W, C] as bytes.
        memory: [S + 1, N, D], the memory each action was chosen with (D is 0 for a network without memory).
        states: [S + 1, N, C], the state of the recurrent core that each step began with (C is 0 without a core).
        actions, log_probs, values: [S + 1, N].
        advantages, returns: [S, N], filled in after each rollout.
        rewards, dones: NumPy arrays [S, N].
        reward_weights: NumPy [S, N], by which PPO multiplies the rewards it learns from; None if it takes them as they
            are.
        fresh: NumPy [N], whether row 0 is the first of an episode.
        filled: rows of complete rollouts.
        first_row: the number of row 0, counted from the beginning of the run.
    """

    def __init__(
        self,
        rollouts: int,
        length: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        memory_size: int,
        device: torch.device,
        dtype: torch.dtype = torch.uint8,
        state_size: int = 0,
    ) -> None:
        self.length = length
        self.rows = rows = rollouts * length
        self.num_envs = num_envs
        self.device = device

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.observations = room(rows + 1, num_envs, *observation_shape, dtype=dtype)
        self.memory = room(rows + 1, num_envs, memory_size)
        self.states = room(rows + 1, num_envs, state_size)
        self.actions = room(rows + 1, num_envs, dtype=torch.int64)
        self.log_probs = room(rows + 1, num_envs)
        self.values = room(rows + 1, num_envs)
        self.advantages = room(rows, num_envs)
        self.returns = room(rows, num_envs)
        self.rewards = np.zeros((rows, num_envs), dtype=np.float32)
        self.dones = np.zeros((rows, num_envs), dtype=bool)
        self.reward_weights: NDArray[np.float32] | None = None
        self.fresh = np.ones(num_envs, dtype=bool)
        self.filled = 0
        self.first_row = 0
        self._settle: Callable[[], None] = lambda: None

    @staticmethod
    def nbytes(
        rollouts: int,
        length: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        memory_size: int,
        itemsize: int,
        state_size: int = 0,
    ) -> int:
        """Return the memory of a buffer on its device."""
        # Observation, memory, state, action; log-probability, value, advantage and return of a step.
        of_step = math.prod(observation_shape) * itemsize + 4 * (memory_size + state_size) + 8 + 4 * 4
        return (rollouts * length + 1) * num_envs * of_step

    @property
    def steps(self) -> int:
        """Capacity in steps, summed over all environments."""
        return self.rows * self.num_envs

    def weigh_rewards(self) -> None:
        """Make room for weights of rewards, all 1 so far."""
        self.reward_weights = np.ones_like(self.rewards)

    def learned_rewards(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the rewards of these rows that PPO learns from."""
        rewards = self.rewards[first:last]
        return rewards if self.reward_weights is None else rewards * self.reward_weights[first:last]

    def trajectories(self, threshold: float) -> list[Trajectory]:
        """Return the complete episodes in the buffer."""
        return cut_trajectories(self.rewards, self.dones, self.fresh, threshold)

    def starts(self) -> NDArray[np.bool_]:
        """Return which rows are the first of an episode: [S, N]."""
        return np.concatenate([self.fresh[None], self.dones[:-1]])

    @property
    def full(self) -> bool:
        """Whether an auxiliary phase is due."""
        return self.filled == self.rows

    def clear(self) -> None:
        """Empty the buffer for the next rollouts, which may continue episodes."""
        self._settle()
        self._settle = lambda: None
        if self.filled:
            self.fresh = self.dones[self.filled - 1].copy()
        self.first_row += self.filled
        self.filled = 0

    # Saving: the observations, memories and states of every row are too many to be saved each time, the rest is little.

    def small(self) -> dict[str, Tensor]:
        """Return everything else. The tensors are live: copying into them restores them."""
        names = ("rewards", "dones") if self.reward_weights is None else ("rewards", "dones", "reward_weights")
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in names}
        return {name: getattr(self, name) for name in ("actions", "log_probs", "values", "returns")} | arrays

    def no_rows(self) -> dict[str, Tensor]:
        """Return observations, memories and, with a recurrent core, states of no rows."""
        names = ("observations", "memory", "states") if self.states.shape[2] else ("observations", "memory")
        return {name: getattr(self, name)[:0] for name in names}

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, Tensor]:
        """Return observations, memories and states of rows on the host, to be written to a file.

        Host memory is not copied; ``settle``, which waits for the file, is called before the buffer is overwritten.
        """
        here = slice(first - self.first_row, last - self.first_row)
        rows = {name: getattr(self, name)[here] for name in self.no_rows()}
        if self._mirror is None:
            self._settle = settle
            return {name: values.cpu() for name, values in rows.items()}
        settle()  # the last file may still be written from the same memory
        lent = {name: self._mirror[name][here].copy_(values, non_blocking=True) for name, values in rows.items()}
        torch.cuda.current_stream(self.device).synchronize()
        return lent

    @cached_property
    def _mirror(self) -> dict[str, Tensor] | None:
        """Page-locked memory for all rows of a buffer on a GPU, unless that is much: the GPU waits for these copies."""
        like = {name: getattr(self, name) for name in self.no_rows()}
        if self.device.type != "cuda" or sum(values.nbytes for values in like.values()) > MOST_LOCKED:
            return None
        return _locked(like)

    def restore(self, first: int, rows: dict[str, Tensor]) -> None:
        """Put rows back where :meth:`lend` took them."""
        start = first - self.first_row
        for name, values in rows.items():
            getattr(self, name)[start : start + len(values)].copy_(values)

    def flat(self, name: str) -> Tensor:
        """Return a tensor with time and environments merged: [(S + 1) * N, ...]."""
        tensor: Tensor = getattr(self, name)
        return tensor.flatten(0, 1)


def _locked(like: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Return page-locked memory for tensors like these; None where the host has none to give."""
    try:
        return {name: torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for name, v in like.items()}
    except RuntimeError:  # PyTorch's own error, or CUDA's: a limit, or little memory
        return None
