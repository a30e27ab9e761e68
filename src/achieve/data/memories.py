"""The memories that go with stored steps.

A step's memory is the representation of the last achievement before it, and changes only where one is unlocked. So each
representation is stored once, and each step holds its number: 1,024 floats for every unlock in place of every step.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.data.transfer import upload

IntArray = NDArray[np.int64]
ROOM = 1024


class MemoryBank:
    """Vectors by number, given out in rising order from 1; number 0 is the empty memory.

    Those below the oldest number still in use are overwritten; where too many are in use, the room doubles.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.next = 1
        self._room = ROOM
        self._vectors = torch.zeros(ROOM + 1, size, device=device)  # the last row stays empty

    @property
    def size(self) -> int:
        """Of a vector."""
        return self._vectors.shape[1]

    def add(self, vectors: Tensor, oldest: int) -> IntArray:
        """Numbers for these vectors [K, D]; none below ``oldest`` will be asked for again."""
        numbers = np.arange(self.next, self.next + len(vectors), dtype=np.int64)
        self._make_room(self.next + len(vectors) - oldest, oldest)
        self.put(numbers, vectors)
        return numbers

    def put(self, numbers: IntArray, vectors: Tensor) -> None:
        """Store vectors under given numbers, in rising order, as :meth:`add` once gave them out."""
        if len(numbers):
            self._make_room(int(numbers[-1] - numbers[0]) + 1, int(numbers[0]))
            self._vectors.index_copy_(0, self._places(numbers), vectors.to(self._vectors))
            self.next = max(self.next, int(numbers[-1]) + 1)

    def rows(self, numbers: IntArray) -> IntArray:
        """Where the vectors with these numbers lie."""
        return np.where(numbers > 0, numbers % self._room, self._room)

    def take(self, rows: Tensor) -> Tensor:
        """The vectors at these rows: [B] -> [B, D]."""
        return self._vectors.index_select(0, rows)

    def _make_room(self, wanted: int, oldest: int) -> None:
        if wanted <= self._room:
            return
        live = np.arange(max(1, oldest, self.next - self._room), self.next, dtype=np.int64)
        kept = self.take(self._places(live))
        while self._room < wanted:
            self._room *= 2
        self._vectors = self._vectors.new_zeros(self._room + 1, self.size)
        self._vectors.index_copy_(0, self._places(live), kept)

    def _places(self, numbers: IntArray) -> Tensor:
        return upload(self.rows(numbers), self._vectors.device)
