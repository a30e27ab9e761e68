"""Replay: a ring of the newest steps, each frame stored once.

Rows are vector steps and columns environments, so that the frame after a step is the one below it. Frames lie on the
GPU or in host memory; actions, rewards and episode ends, a few bytes a step, are made on the host and stay there. Rows
are counted from the beginning of the run; a step's index is ``row * num_envs + column``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.data.memories import IntArray, MemoryBank
from achieve.data.transfer import upload


@dataclass(frozen=True)
class ReplayShape:
    """What a replay is made for."""

    rows: int
    num_envs: int
    frame: tuple[int, ...]
    memory_size: int = 0
    gamma: float = 0.95
    dtype: torch.dtype = torch.uint8
    """Of the frames: bytes, or float32 where an environment shows other numbers."""

    @property
    def nbytes(self) -> int:
        """Of all frames."""
        return self.rows * self.num_envs * math.prod(self.frame) * self.dtype.itemsize


class Transitions(NamedTuple):
    """What is learned from, without the images: arrays [B]."""

    following: IntArray
    """The step after, which the return is bootstrapped from."""
    actions: IntArray
    rewards: NDArray[np.float32]
    discounts: NDArray[np.float32]
    """``gamma``, or 0 where the step ended its episode, by a time limit too."""


class Replay:
    """The ring, how steps are drawn from it, and what is learned from them.

    Args:
        device: where images and memories are wanted.
        storage: where frames are kept.
    """

    def __init__(self, shape: ReplayShape, device: torch.device, storage: torch.device) -> None:
        self.shape = shape
        self.device = device
        self.storage = storage
        rows, num_envs = shape.rows, shape.num_envs
        self._frames = torch.empty(rows * num_envs, *shape.frame, dtype=shape.dtype, device=storage)
        self.actions = np.zeros((rows, num_envs), dtype=np.int32)
        self.rewards = np.zeros((rows, num_envs), dtype=np.float32)
        self.dones = np.zeros((rows, num_envs), dtype=bool)
        self.ages = np.zeros((rows, num_envs), dtype=np.int32)
        self.numbers = np.zeros((rows, num_envs), dtype=np.int64)
        # The number the next memory would have had when each row began.
        self.marks = np.ones(rows, dtype=np.int64)
        self.memories = MemoryBank(shape.memory_size, device)
        self.row = 0
        """The row under way: its frame is there once it has begun, its outcome when it has ended."""
        self.first = 0
        """The first row that may be drawn: not 0 in a run continued without its replay."""
        self._lent_from: int | None = None
        self._settle: Callable[[], None] = lambda: None

    # Writing

    def begin(self, frames: Tensor, ages: NDArray[np.int32]) -> None:
        """Store the observations [N, H, W, C] of the next row, and how many steps into their episodes they are."""
        if self._lent_from is not None and self.row - self.shape.rows >= self._lent_from:
            self._settle()
            self._lent_from = None
        place = self.row % self.shape.rows
        start = place * self.shape.num_envs
        self._frames[start : start + self.shape.num_envs].copy_(frames, non_blocking=True)
        self.ages[place] = ages
        self.marks[place] = self.memories.next

    def note(self, numbers: IntArray) -> None:
        """The numbers of the memories the actions of this row are chosen with [N]."""
        self.numbers[self.row % self.shape.rows] = numbers

    def remember(self, vectors: Tensor) -> IntArray:
        """Numbers for new memories [K, D]."""
        return self.memories.add(vectors, self._oldest_number())

    def _oldest_number(self) -> int:
        """The smallest number of a memory that a stored step may still ask for: numbers only rise with time."""
        oldest = self.lowest % self.shape.rows
        in_use = self.numbers[oldest]
        return min([int(self.marks[oldest]), *in_use[in_use > 0].tolist()])

    def end(
        self, actions: NDArray[np.int64], rewards: NDArray[np.float64], dones: NDArray[np.bool_]
    ) -> None:
        """What was done in the row under way, and what came of it; it is complete then."""
        place = self.row % self.shape.rows
        self.actions[place], self.rewards[place], self.dones[place] = actions, rewards, dones
        self.row += 1

    # What is there

    @property
    def lowest(self) -> int:
        """The oldest row that may be drawn: its frame is still there."""
        return max(self.first, self.row - self.shape.rows + 1)

    @property
    def stored(self) -> int:
        """Complete steps since the beginning, at most as many as there is room for."""
        return min(self.row - self.first, self.shape.rows) * self.shape.num_envs

    @property
    def drawable(self) -> int:
        """Steps that may be drawn, once the row under way has begun."""
        return (self.row - self.lowest) * self.shape.num_envs

    # Drawing

    def draw(self, rng: np.random.Generator, batches: int, size: int) -> IntArray:
        """Indices of steps [batches, size], each as likely as the others."""
        low = self.lowest * self.shape.num_envs
        return rng.integers(low, low + self.drawable, (batches, size))

    def transitions(self, index: IntArray) -> Transitions:
        """What is learned from these steps [B]."""
        places = self.places(index)
        return Transitions(
            following=index + self.shape.num_envs,
            actions=self.actions.reshape(-1)[places].astype(np.int64),
            rewards=self.rewards.reshape(-1)[places],
            discounts=np.float32(self.shape.gamma) * ~self.dones.reshape(-1)[places],
        )

    def places(self, index: IntArray) -> IntArray:
        """Where steps lie in the ring."""
        return index % (self.shape.rows * self.shape.num_envs)

    def images(self, index: IntArray) -> Tensor:
        """The observations of these steps [B], on the device."""
        places = self.places(index)
        if self.storage == self.device:
            return self._frames.index_select(0, upload(places, self.device))
        chosen = torch.empty(len(places), *self.shape.frame, dtype=self.shape.dtype, pin_memory=True)
        torch.index_select(self._frames, 0, torch.from_numpy(places), out=chosen)
        return chosen.to(self.device, non_blocking=True)

    def memory(self, index: IntArray) -> Tensor:
        """The memories these steps were taken with [B, D], on the device."""
        numbers = self.numbers.reshape(-1)[self.places(index)]
        return self.memories.take(upload(self.memories.rows(numbers), self.device))

    def unlocks(self) -> tuple[IntArray, IntArray]:
        """Numbers [K] of the memories whose frames are all here, rising, and the steps [K] that unlocked them.

        To be asked between two rows: a memory made by the last of them has no number yet.
        """
        rows = np.arange(self.lowest, self.row)
        numbers = self.numbers[rows % self.shape.rows]
        # A number appears first in the step after the unlock; an episode's first step has none.
        after, columns = np.nonzero((numbers[1:] > 0) & (numbers[1:] != numbers[:-1]))
        found = numbers[1:][after, columns]
        order = np.argsort(found)
        return found[order], ((rows[0] + after) * self.shape.num_envs + columns)[order] if len(rows) else found

    # Saving

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that is kept on the host, as it lives: writing into it restores it."""
        return {
            "actions": self.actions, "rewards": self.rewards, "dones": self.dones,
            "ages": self.ages, "numbers": self.numbers, "marks": self.marks,
        }  # fmt: skip

    def live_memories(self) -> Tensor:
        """The memories stored steps may still ask for [K, D], up to the newest."""
        numbers = np.arange(self._oldest_number(), self.memories.next, dtype=np.int64)
        return self.memories.take(upload(self.memories.rows(numbers), self.device))

    def put_memories(self, vectors: Tensor) -> None:
        """What :meth:`live_memories` gave, back in its place."""
        last = self.memories.next
        self.memories.put(np.arange(last - len(vectors), last, dtype=np.int64), vectors)

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> Tensor:
        """Frames of the rows from ``first`` up to ``last`` [R, N, H, W, C] on the host, to be written to a file.

        The rows must not lie on both sides of the ring's end. What lies in host memory is not copied: before one of
        these rows is overwritten, ``settle`` is called, which waits for the writing.
        """
        if self.storage.type == "cpu":
            self._lent_from = first if self._lent_from is None else min(self._lent_from, first)
            self._settle = settle
        return self._rows(first, last).cpu()

    def restore(self, first: int, frames: Tensor) -> None:
        """Put rows back where :meth:`lend` took them."""
        self._rows(first, first + len(frames)).copy_(frames)

    def tail(self) -> Tensor:
        """The newest frames [1, N, H, W, C] on the host, none before the first step: enough to act on."""
        if not self.row:
            return torch.empty(0, self.shape.num_envs, *self.shape.frame, dtype=self.shape.dtype)
        return self._rows(self.row - 1, self.row).cpu().clone()

    def put_tail(self, frames: Tensor) -> None:
        """What :meth:`tail` gave, back in its place."""
        for back, row in enumerate(reversed(frames.unbind()), 1):
            self.restore((self.row - back) % self.shape.rows, row[None])

    def _rows(self, first: int, last: int) -> Tensor:
        """A view of rows that do not lie on both sides of the ring's end [R, N, H, W, C]."""
        begin, num_envs = first % self.shape.rows * self.shape.num_envs, self.shape.num_envs
        part = self._frames[begin : begin + (last - first) * num_envs]
        return part.view(last - first, num_envs, *self.shape.frame)
