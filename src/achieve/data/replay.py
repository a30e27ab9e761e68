"""Replay: a ring of the newest steps, each frame stored once, as bytes.

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

from achieve.data.memories import MemoryBank
from achieve.data.sumtree import FloatArray, IntArray, SumTree
from achieve.data.transfer import upload


@dataclass(frozen=True)
class ReplayShape:
    """What a replay is made for."""

    rows: int
    num_envs: int
    frame: tuple[int, int, int]
    """Of one frame; images have ``frame_stack`` times as many channels."""
    memory_size: int = 0
    gamma: float = 0.95
    n_step: int = 1
    frame_stack: int = 1

    @property
    def image(self) -> tuple[int, int, int]:
        height, width, channels = self.frame
        return height, width, channels * self.frame_stack

    @property
    def nbytes(self) -> int:
        """Of all frames."""
        return self.rows * self.num_envs * math.prod(self.frame)


class Transitions(NamedTuple):
    """What is learned from, without the images: arrays [B]."""

    following: IntArray
    """Where the step lies that the return is bootstrapped from."""
    actions: IntArray
    returns: NDArray[np.float32]
    """Discounted rewards of ``n`` steps, or up to the end of the episode."""
    discounts: NDArray[np.float32]
    """``gamma^n``, or 0 where the episode ended on the way, by a time limit too."""


class Replay:
    """The ring, how steps are drawn from it, and what is learned from them.

    Args:
        device: where images and memories are wanted.
        storage: where frames are kept.
        exponent: of the priorities by which steps are drawn; None draws them uniformly.
    """

    def __init__(
        self, shape: ReplayShape, device: torch.device, storage: torch.device, *, exponent: float | None = None
    ) -> None:
        self.shape = shape
        self.device = device
        self.storage = storage
        rows, num_envs = shape.rows, shape.num_envs
        # The last frame stays empty: it stands for those before an episode's first.
        self._frames = torch.empty(rows * num_envs + 1, *shape.frame, dtype=torch.uint8, device=storage)
        self._frames[-1].zero_()
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
        self.tree = SumTree(rows * num_envs) if exponent is not None else None
        self._exponent = exponent or 0.0
        self.top_priority = 1.0
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
        if self.tree is not None:
            self._enter_and_leave(self.tree)

    def note(self, numbers: IntArray) -> None:
        """The numbers of the memories the actions of this row are chosen with [N]."""
        self.numbers[self.row % self.shape.rows] = numbers

    def remember(self, vectors: Tensor) -> IntArray:
        """Numbers for new memories [K, D]."""
        return self.memories.add(vectors, self._oldest_number())

    def _oldest_number(self) -> int:
        """The smallest number of a memory that a stored step may still ask for: numbers only rise with time."""
        oldest = max(self.first, self.oldest_frame) % self.shape.rows
        in_use = self.numbers[oldest]
        return min([int(self.marks[oldest]), *in_use[in_use > 0].tolist()])

    def end(
        self, actions: NDArray[np.int64], rewards: NDArray[np.float64], dones: NDArray[np.bool_]
    ) -> None:
        """What was done in the row under way, and what came of it; it is complete then."""
        place = self.row % self.shape.rows
        self.actions[place], self.rewards[place], self.dones[place] = actions, rewards, dones
        self.row += 1

    def _enter_and_leave(self, tree: SumTree) -> None:
        columns = np.arange(self.shape.num_envs)
        leaving = self.lowest - 1
        if leaving >= 0:
            tree.set(self.places(leaving * self.shape.num_envs + columns), 0.0)
        entering = self.row - self.shape.n_step
        if entering >= self.lowest:
            tree.set(self.places(entering * self.shape.num_envs + columns), self.top_priority)

    # What is there

    @property
    def oldest_frame(self) -> int:
        """The oldest row whose frame is still there."""
        return max(0, self.row - self.shape.rows + 1)

    @property
    def lowest(self) -> int:
        """The oldest row that may be drawn: with all the frames of its image."""
        return max(self.first, self.row - self.shape.rows + self.shape.frame_stack)

    @property
    def stored(self) -> int:
        """Complete steps since the beginning, at most as many as there is room for."""
        return min(self.row - self.first, self.shape.rows) * self.shape.num_envs

    @property
    def drawable(self) -> int:
        """Steps that may be drawn, once the row under way has begun."""
        return max(0, self.row - self.shape.n_step + 1 - self.lowest) * self.shape.num_envs

    # Drawing

    def draw(self, rng: np.random.Generator, batches: int, size: int) -> IntArray:
        """Indices of steps [batches, size]: uniform, or by priority, one from each of ``size`` equal shares of it."""
        low, num_envs = self.lowest * self.shape.num_envs, self.shape.num_envs
        if self.tree is None:
            return rng.integers(low, low + self.drawable, (batches, size))
        points = (np.arange(size) + rng.random((batches, size))) * (self.tree.total / size)
        places = self.tree.find(points.ravel()).reshape(batches, size)
        rows = places // num_envs
        # The row of a place: the last one, up to the row under way, that lies there.
        rows = self.row - (self.row - rows) % self.shape.rows
        return rows * num_envs + places % num_envs

    def importance(self, index: IntArray, beta: float) -> NDArray[np.float32]:
        """``(n P(i))^-beta`` of drawn steps [batches, size], over the largest of their batch; ones if uniform."""
        if self.tree is None:
            return np.ones(index.shape, dtype=np.float32)
        shares = self.tree.get(self.places(index)) / self.tree.total
        weights = (self.drawable * shares) ** -beta
        return (weights / weights.max(1, keepdims=True)).astype(np.float32)

    def set_priorities(self, index: IntArray, priorities: FloatArray) -> None:
        """New priorities of drawn steps [B]; those that can no longer be drawn stay out."""
        assert self.tree is not None
        weights = np.maximum(priorities, 1e-6) ** self._exponent
        current = index >= self.lowest * self.shape.num_envs
        if current.any():
            self.tree.set(self.places(index[current]), weights[current])
            self.top_priority = max(self.top_priority, float(weights[current].max()))

    def transitions(self, index: IntArray) -> Transitions:
        """What is learned from these steps [B]."""
        shape = self.shape
        returns = np.zeros(len(index), dtype=np.float32)
        discounts = np.ones(len(index), dtype=np.float32)
        rewards, dones = self.rewards.reshape(-1), self.dones.reshape(-1)
        for ahead in range(shape.n_step):
            places = self.places(index + ahead * shape.num_envs)
            returns += discounts * rewards[places]
            discounts *= np.float32(shape.gamma) * ~dones[places]
        actions = self.actions.reshape(-1)[self.places(index)].astype(np.int64)
        return Transitions(index + shape.n_step * shape.num_envs, actions, returns, discounts)

    def places(self, index: IntArray) -> IntArray:
        """Where steps lie in the ring."""
        return index % (self.shape.rows * self.shape.num_envs)

    def frame_places(self, index: IntArray) -> IntArray:
        """Where the frames of these steps' images lie [B * frame_stack], the oldest of each image first."""
        depth = self.shape.frame_stack
        if depth == 1:
            return self.places(index)
        back = np.arange(depth - 1, -1, -1)
        places = self.places(index[:, None] - back * self.shape.num_envs)
        before = back > self.ages.reshape(-1)[self.places(index)][:, None]
        return np.where(before, len(self._frames) - 1, places).ravel()

    def images(self, index: IntArray) -> Tensor:
        """The images of these steps [B]: bytes [B, H, W, C * frame_stack] on the device."""
        places = self.frame_places(index)
        if self.storage == self.device:
            frames = self._frames.index_select(0, upload(places, self.device))
        else:
            chosen = torch.empty(len(places), *self.shape.frame, dtype=torch.uint8, pin_memory=True)
            torch.index_select(self._frames, 0, torch.from_numpy(places), out=chosen)
            frames = chosen.to(self.device, non_blocking=True)
        depth = self.shape.frame_stack
        if depth == 1:
            return frames
        height, width, channels = self.shape.frame
        return torch.cat(frames.view(-1, depth, height, width, channels).unbind(1), dim=3)

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
        begin = first % self.shape.rows * self.shape.num_envs
        count = (last - first) * self.shape.num_envs
        part = self._frames[begin : begin + count]
        if part.device.type == "cpu":
            self._lent_from = first if self._lent_from is None else min(self._lent_from, first)
            self._settle = settle
        return part.cpu().view(last - first, self.shape.num_envs, *self.shape.frame)

    def restore(self, first: int, frames: Tensor) -> None:
        """Put rows back where :meth:`lend` took them."""
        begin = first % self.shape.rows * self.shape.num_envs
        self._frames[begin : begin + len(frames) * self.shape.num_envs].copy_(frames.flatten(0, 1))

    def tail(self) -> Tensor:
        """The newest frames [frame_stack + 1, N, H, W, C] on the host, or as many as there are: enough to act on."""
        rows = np.arange(max(0, self.row - self.shape.frame_stack - 1), self.row)
        index = (rows[:, None] * self.shape.num_envs + np.arange(self.shape.num_envs)).ravel()
        places = torch.from_numpy(self.places(index)).to(self.storage)
        return self._frames.index_select(0, places).cpu().view(len(rows), self.shape.num_envs, *self.shape.frame)

    def put_tail(self, frames: Tensor) -> None:
        """What :meth:`tail` gave, back in its place."""
        for back, row in enumerate(reversed(frames.unbind()), 1):
            self.restore((self.row - back) % self.shape.rows, row[None])
