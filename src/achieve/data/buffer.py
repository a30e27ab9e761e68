"""The experience of one phase: the rollouts since the last auxiliary phase, kept on the learner's device."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from achieve.data.trajectories import Trajectory, cut_trajectories


class RolloutBuffer:
    """Room for ``rollouts`` rollouts of ``length`` steps of ``num_envs`` environments.

    Tensors are [S + 1, N, ...] with ``S = rollouts * length``. The row after a rollout holds the observation that
    follows it (its value bootstraps the rollout); the next rollout starts by writing that row again. Rewards and
    episode ends are made on the host and stay there.

    Attributes:
        observations: [S + 1, N, ...] of ``dtype``, images [S + 1, N, H, W, C] as bytes.
        memory: [S + 1, N, D], the memory each action was chosen with (D is 0 for a network without memory).
        actions, log_probs, values: [S + 1, N].
        advantages, returns: [S, N], filled in after each rollout.
        rewards, dones: NumPy arrays [S, N].
        fresh: NumPy [N], whether row 0 is the first of an episode.
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
    ) -> None:
        rows = rollouts * length
        self.length = length
        self.rows = rows
        self.num_envs = num_envs
        self.device = device

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.observations = room(rows + 1, num_envs, *observation_shape, dtype=dtype)
        self.memory = room(rows + 1, num_envs, memory_size)
        self.actions = room(rows + 1, num_envs, dtype=torch.int64)
        self.log_probs = room(rows + 1, num_envs)
        self.values = room(rows + 1, num_envs)
        self.advantages = room(rows, num_envs)
        self.returns = room(rows, num_envs)
        self.rewards = np.zeros((rows, num_envs), dtype=np.float32)
        self.dones = np.zeros((rows, num_envs), dtype=bool)
        self.fresh = np.ones(num_envs, dtype=bool)
        self.filled = 0
        self._settle: Callable[[], None] = lambda: None

    @staticmethod
    def nbytes(
        rollouts: int, length: int, num_envs: int, observation_shape: tuple[int, ...], memory_size: int, itemsize: int
    ) -> int:
        """What a buffer takes on its device."""
        # Of a step: its observation and memory, action, log-probability, value, advantage and return.
        of_step = math.prod(observation_shape) * itemsize + 4 * memory_size + 8 + 4 * 4
        return (rollouts * length + 1) * num_envs * of_step

    @property
    def steps(self) -> int:
        """Steps there is room for, of all environments together."""
        return self.rows * self.num_envs

    def trajectories(self, threshold: float) -> list[Trajectory]:
        """The episodes that lie in the buffer as a whole."""
        return cut_trajectories(self.rewards, self.dones, self.fresh, threshold)

    @property
    def full(self) -> bool:
        return self.filled == self.rows

    def clear(self) -> None:
        """Start the next phase; whether its first row starts episodes follows from this one's last."""
        self._settle()
        self._settle = lambda: None
        if self.filled:
            self.fresh = self.dones[self.filled - 1].copy()
        self.filled = 0

    # Saving: observations and memories are too much to be saved as a whole each time, the rest is little.

    def small(self) -> dict[str, Tensor]:
        """Everything but observations and memories, as it lives: writing into it restores it."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in ("rewards", "dones")}
        return {name: getattr(self, name) for name in ("actions", "log_probs", "values", "returns")} | arrays

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, Tensor]:
        """Observations and memories of these rows on the host, to be written to a file.

        What lies in host memory is not copied: before the buffer is filled anew, ``settle`` is called, which waits for
        the writing.
        """
        self._settle = settle
        return {name: getattr(self, name)[first:last].cpu() for name in ("observations", "memory")}

    def restore(self, first: int, rows: dict[str, Tensor]) -> None:
        """Put rows back where :meth:`lend` took them."""
        for name, values in rows.items():
            getattr(self, name)[first : first + len(values)].copy_(values)

    def flat(self, name: str) -> Tensor:
        """A tensor with time and environments merged: [(S + 1) * N, ...]."""
        tensor: Tensor = getattr(self, name)
        return tensor.flatten(0, 1)
