"""Episodes that are kept beyond the phase they were played in, to be learned from again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.data.trajectories import IntArray
from achieve.data.transfer import upload
from achieve.settings import NonNegativeInt, PositiveInt, Range, UnfitError

MEMORIES = 8192
"""Unlocks of kept episodes there is room for; older episodes are left aside meanwhile."""
FOLDER = "kept"
"""Where a checkpoint has the rows."""


class KeptEpisodes:
    """The newest episodes that were added, as many as fit into a ring of ``rows`` steps.

    Steps are numbered from the first one ever added; step ``n`` is at position ``n % rows``. What a loss reads stays at
    the same address, as captured graphs need it.

    Attributes:
        observations: [R, ...], on the device.
        actions: [R], on the device.
        rewards: NumPy [R], as the environment gave them.
        returns: [R], on the device; filled in before each phase, like all that follows.
        memories: [U + 1, M], on the device: the memories after each unlock, the first one empty.
        memory_of: [R], on the device: which of them each step was taken with.
        states: [R, C], on the device: the state of the recurrent core that each step begins with (C is 0 without one).
        worth: NumPy, the positions of the steps to learn from.
    """

    def __init__(
        self,
        rows: int,
        observation_shape: tuple[int, ...],
        memory_size: int,
        device: torch.device,
        dtype: torch.dtype = torch.uint8,
        state_size: int = 0,
    ) -> None:
        self.rows = rows
        self.device = device
        self.observations = torch.zeros(rows, *observation_shape, dtype=dtype, device=device)
        self.actions = torch.zeros(rows, dtype=torch.int64, device=device)
        self.rewards: NDArray[np.float32] = np.zeros(rows, np.float32)
        self.returns = torch.zeros(rows, device=device)
        self.memories = torch.zeros(MEMORIES + 1, memory_size, device=device)
        self.memory_of = torch.zeros(rows, dtype=torch.int64, device=device)
        self.states = torch.zeros(rows, state_size, device=device)
        self.worth: IntArray = np.zeros(0, np.int64)
        self._lengths: list[int] = []
        self._next = 0
        self._settle: Callable[[], None] = lambda: None

    @staticmethod
    def nbytes(
        rows: int, observation_shape: tuple[int, ...], memory_size: int, itemsize: int, state_size: int = 0
    ) -> int:
        """Return the memory this takes on its device."""
        # Observation, state, action, return, number of the memory.
        of_step = math.prod(observation_shape) * itemsize + 4 * state_size + 8 + 4 + 8
        return rows * of_step + (MEMORIES + 1) * memory_size * 4

    def __len__(self) -> int:
        return len(self._lengths)

    def episodes(self) -> list[IntArray]:
        """Return the positions of each episode's steps, the oldest episode first."""
        ends = self.saved_rows()[0] + np.cumsum(self._lengths, dtype=np.int64)
        return [np.arange(end - n, end) % self.rows for end, n in zip(ends, self._lengths, strict=True)]

    def add(self, observations: Tensor, actions: Tensor, rewards: NDArray[np.float32]) -> None:
        """Keep an episode [L, ...], in place of the oldest ones if there is no room; not one that is too long."""
        length = len(rewards)
        if not 0 < length <= self.rows:
            return
        self._settle()
        self._settle = lambda: None
        while sum(self._lengths) + length > self.rows:
            self._lengths.pop(0)
        where = np.arange(self._next, self._next + length) % self.rows
        index = upload(where, self.device)
        self.observations.index_copy_(0, index, observations)
        self.actions.index_copy_(0, index, actions)
        self.rewards[where] = rewards
        self._lengths.append(length)
        self._next += length

    def remember(self, returns: NDArray[np.float32], memory_of: IntArray, memories: Tensor, worth: IntArray) -> None:
        """Set what is computed before a phase: returns [R], memories [U, M] from number 1 on, who has which [R]."""
        self.returns.copy_(torch.from_numpy(returns))
        self.memory_of.copy_(torch.from_numpy(memory_of))
        self.memories[1 : 1 + len(memories)] = memories
        self.worth = worth

    # Saving: rows go into files of their own, which are written once.

    def state(self) -> dict[str, Any]:
        """Return what else is to be saved, as JSON."""
        return {"next": self._next, "lengths": list(self._lengths)}

    def hints(self) -> dict[str, Any]:
        """Return the types of :meth:`state`."""
        return {"next": NonNegativeInt, "lengths": Annotated[list[PositiveInt], Range(0, self.rows)]}

    def check(self, state: dict[str, Any]) -> None:
        """Raise UnfitError for a state that cannot be."""
        held = sum(state["lengths"])
        if held > min(self.rows, state["next"]):
            raise UnfitError(f"kept has {held} steps, of {state['next']} that were added, with room for {self.rows}")

    @staticmethod
    def span(state: dict[str, Any]) -> tuple[int, int]:
        """Return the number of the oldest step of a state and the one after the newest."""
        return state["next"] - sum(state["lengths"]), state["next"]

    def load(self, state: dict[str, Any]) -> None:
        """Take over a state; :meth:`restore` brings the rows."""
        self._next, self._lengths = state["next"], list(state["lengths"])

    def saved_rows(self) -> tuple[int, int]:
        """Return the number of the oldest step and the one after the newest."""
        return self.span(self.state())

    def no_rows(self) -> dict[str, Tensor]:
        """Return what is saved of a step, of no steps."""
        return {name: rows[:0] for name, rows in self._saved().items()}

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, Tensor]:
        """Return steps on the host, to be written to a file.

        Host memory is not copied; ``settle``, which waits for the file, is called before it is overwritten.
        """
        here = slice(first % self.rows, first % self.rows + last - first)
        if self.device.type == "cpu":
            self._settle = settle
            return {name: rows[here] for name, rows in self._saved().items()}
        return {name: rows[here].to("cpu", copy=True) for name, rows in self._saved().items()}

    def restore(self, first: int, rows: dict[str, Tensor]) -> None:
        """Put steps back where :meth:`lend` took them."""
        start = first % self.rows
        for name, mine in self._saved().items():
            mine[start : start + len(rows[name])].copy_(rows[name])

    def _saved(self) -> dict[str, Tensor]:
        return {
            "observations": self.observations,
            "actions": self.actions,
            "rewards": torch.from_numpy(self.rewards),
        }
