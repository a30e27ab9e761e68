"""Replay buffer: a ring of the newest steps, each frame stored once.

Rows are vector steps and columns environments, so the next frame of a step is one row below. Frames are on the GPU or
in host memory; actions, rewards and episode ends, a few bytes per step, stay on the host. Rows are counted from the
beginning of the run; the index of a step is ``row * num_envs + column``.
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

MOST_LOCKED = 2**29
"""Bytes of rows that are copied to page-locked memory at once."""


@dataclass(frozen=True)
class ReplayShape:
    """Sizes of a replay buffer, and the discount of its transitions."""

    rows: int
    num_envs: int
    frame: tuple[int, ...]
    memory_size: int = 0
    gamma: float = 0.95
    dtype: torch.dtype = torch.uint8
    """Of the frames: bytes, or float32 where an environment shows other numbers."""

    @property
    def nbytes(self) -> int:
        """Memory of all frames."""
        return self.rows * self.num_envs * math.prod(self.frame) * self.dtype.itemsize


class Transitions(NamedTuple):
    """Transitions without their images: arrays [B]."""

    following: IntArray
    """The next step, from which the return is bootstrapped."""
    actions: IntArray
    rewards: NDArray[np.float32]
    discounts: NDArray[np.float32]
    """``gamma``, or 0 where the step ended its episode, be it by a time limit."""


class Replay:
    """The ring buffer and how transitions are sampled from it.

    Args:
        device: where images and memories are used.
        storage: where frames are stored.
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
        # The number of the next memory when each row began.
        self.marks = np.ones(rows, dtype=np.int64)
        self.memories = MemoryBank(shape.memory_size, device)
        self.row = 0
        """The current row: its frames are stored when it begins, its outcome when it ends."""
        self.first = 0
        """The first row that may be sampled: not 0 in a run resumed without its replay buffer."""
        self._lent_from: int | None = None
        self._settle: Callable[[], None] = lambda: None

    # Writing

    def begin(self, frames: Tensor, ages: NDArray[np.int32]) -> None:
        """Store the observations [N, H, W, C] of a new row, and their step numbers within their episodes [N]."""
        if self._lent_from is not None and self.row - self.shape.rows >= self._lent_from:
            self._settle()
            self._lent_from = None
        place = self.row % self.shape.rows
        start = place * self.shape.num_envs
        self._frames[start : start + self.shape.num_envs].copy_(frames, non_blocking=True)
        self.ages[place] = ages
        self.marks[place] = self.memories.next

    def note(self, numbers: IntArray) -> None:
        """Store the numbers of the memories with which the actions of this row are chosen [N]."""
        self.numbers[self.row % self.shape.rows] = numbers

    def remember(self, vectors: Tensor) -> IntArray:
        """Store new memories [K, D]. Returns their numbers."""
        return self.memories.add(vectors, self._oldest_number())

    def _oldest_number(self) -> int:
        """Return the smallest number of a memory that a stored step may refer to; numbers increase with time."""
        oldest = self.lowest % self.shape.rows
        in_use = self.numbers[oldest]
        return min([int(self.marks[oldest]), *in_use[in_use > 0].tolist()])

    def end(self, actions: NDArray[np.int64], rewards: NDArray[np.float64], dones: NDArray[np.bool_]) -> None:
        """Complete the current row with its actions and their outcome."""
        place = self.row % self.shape.rows
        self.actions[place], self.rewards[place], self.dones[place] = actions, rewards, dones
        self.row += 1

    # Contents

    @property
    def lowest(self) -> int:
        """The oldest row that may be sampled."""
        return max(self.first, self.row - self.shape.rows + 1)

    @property
    def stored(self) -> int:
        """Complete steps in the buffer."""
        return min(self.row - self.first, self.shape.rows) * self.shape.num_envs

    @property
    def drawable(self) -> int:
        """Steps that may be sampled, once the current row has begun."""
        return (self.row - self.lowest) * self.shape.num_envs

    # Sampling

    def draw(self, rng: np.random.Generator, batches: int, size: int) -> IntArray:
        """Return indices of steps [batches, size], sampled uniformly."""
        low = self.lowest * self.shape.num_envs
        return rng.integers(low, low + self.drawable, (batches, size))

    def transitions(self, index: IntArray) -> Transitions:
        """Return the transitions of steps [B]."""
        places = self.places(index)
        return Transitions(
            following=index + self.shape.num_envs,
            actions=self.actions.reshape(-1)[places].astype(np.int64),
            rewards=self.rewards.reshape(-1)[places],
            discounts=np.float32(self.shape.gamma) * ~self.dones.reshape(-1)[places],
        )

    def places(self, index: IntArray) -> IntArray:
        """Return the positions of steps in the ring."""
        return index % (self.shape.rows * self.shape.num_envs)

    def images(self, index: IntArray) -> Tensor:
        """Return the observations of steps [B], on the device."""
        places = self.places(index)
        if self.storage == self.device:
            return self._frames.index_select(0, upload(places, self.device))
        chosen = torch.empty(len(places), *self.shape.frame, dtype=self.shape.dtype, pin_memory=True)
        torch.index_select(self._frames, 0, torch.from_numpy(places), out=chosen)
        return chosen.to(self.device, non_blocking=True)

    def newest(self) -> Tensor:
        """Return the observations of the row that has begun [N, H, W, C], on the device, until they are overwritten."""
        if self.storage == self.device:
            return self._rows(self.row, self.row + 1)[0]
        return self.images(self.row * self.shape.num_envs + np.arange(self.shape.num_envs))

    def memory(self, index: IntArray) -> Tensor:
        """Return the memories with which steps were taken [B, D], on the device."""
        numbers = self.numbers.reshape(-1)[self.places(index)]
        return self.memories.take(upload(self.memories.rows(numbers), self.device))

    def unlocks(self) -> tuple[IntArray, IntArray]:
        """Return the numbers [K] of the memories whose frames are all stored, in order, and their unlocking steps.

        To be called between two rows: a memory made by the last of them has no number yet.
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
        """Return the arrays on the host. They are the live ones: copying into them restores them."""
        return {name: getattr(self, name) for name in ("actions", "rewards", "dones", "ages", "numbers", "marks")}

    def live_memories(self) -> Tensor:
        """Return the memories that stored steps may still refer to [K, D], up to the newest."""
        numbers = np.arange(self._oldest_number(), self.memories.next, dtype=np.int64)
        return self.memories.take(upload(self.memories.rows(numbers), self.device))

    def put_memories(self, vectors: Tensor) -> None:
        """Restore what :meth:`live_memories` returned."""
        last = self.memories.next
        self.memories.put(np.arange(last - len(vectors), last, dtype=np.int64), vectors)

    @property
    def rows(self) -> int:
        """Capacity in rows."""
        return self.shape.rows

    def no_rows(self) -> dict[str, Tensor]:
        """Return the frames of no rows."""
        return {"frames": self._frames[:0].view(0, self.shape.num_envs, *self.shape.frame)}

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, Tensor]:
        """Return the frames of rows [R, N, H, W, C] on the host, to be written to a file.

        The rows must not cross the end of the ring. Host memory is not copied; ``settle``, which waits for the file, is
        called before one of these rows is overwritten. From a GPU they go to page-locked memory, which PyTorch keeps
        for the next time, unless they are many.
        """
        rows = self._rows(first, last)
        if self.storage.type == "cpu":
            self._lent_from = first if self._lent_from is None else min(self._lent_from, first)
            self._settle = settle
        if self.storage.type != "cuda" or rows.nbytes > MOST_LOCKED:
            return {"frames": rows.cpu()}
        lent = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows, non_blocking=True)
        torch.cuda.current_stream(self.storage).synchronize()
        return {"frames": lent}

    def restore(self, first: int, rows: dict[str, Tensor]) -> None:
        """Put rows back where :meth:`lend` took them."""
        self._rows(first, first + len(rows["frames"])).copy_(rows["frames"])

    def tail(self) -> Tensor:
        """Return the newest frames [1, N, H, W, C] on the host, which acting needs; none before the first step."""
        return self._rows(max(self.row - 1, 0), self.row).cpu().clone()

    def put_tail(self, frames: Tensor) -> None:
        """Restore what :meth:`tail` returned."""
        self._rows(self.row - len(frames), self.row).copy_(frames)

    def _rows(self, first: int, last: int) -> Tensor:
        """Return a view of rows that do not cross the end of the ring [R, N, H, W, C]."""
        begin, num_envs = first % self.shape.rows * self.shape.num_envs, self.shape.num_envs
        part = self._frames[begin : begin + (last - first) * num_envs]
        return part.view(last - first, num_envs, *self.shape.frame)
