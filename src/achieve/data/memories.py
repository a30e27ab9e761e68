"""The memories of the steps in the replay buffer.

The memory of a step is the representation of the previous achievement, which changes only at an unlock. So each
representation is stored once, and each step refers to it by number: 1,024 floats per unlock instead of per step.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from achieve.data.transfer import upload

IntArray = NDArray[np.int64]
CAPACITY = 1024
"""Memories there is room for at first."""


class MemoryBank:
    """A ring of vectors, numbered in order from 1; number 0 is the empty memory.

    Vectors below the oldest number in use are overwritten. If too many are in use, the capacity doubles.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.next = 1
        self._capacity = CAPACITY
        self._vectors = torch.zeros(CAPACITY + 1, size, device=device)  # the last row stays zero

    def add(self, vectors: Tensor, oldest: int) -> IntArray:
        """Store vectors [K, D], when none below ``oldest`` is needed any more. Returns their numbers [K]."""
        numbers = np.arange(self.next, self.next + len(vectors), dtype=np.int64)
        self._reserve(self.next + len(vectors) - oldest, oldest)
        self.put(numbers, vectors)
        return numbers

    def put(self, numbers: IntArray, vectors: Tensor) -> None:
        """Store vectors under consecutive numbers that :meth:`add` returned once, in order."""
        if len(numbers):
            self._reserve(int(numbers[-1] - numbers[0]) + 1, int(numbers[0]))
            self._vectors.index_copy_(0, self._places(numbers), vectors.to(self._vectors))
            self.next = max(self.next, int(numbers[-1]) + 1)

    def rows(self, numbers: IntArray) -> IntArray:
        """Return the positions of the vectors with these numbers."""
        return np.where(numbers > 0, numbers % self._capacity, self._capacity)

    def take(self, rows: Tensor) -> Tensor:
        """Return the vectors at positions: [B] -> [B, D]."""
        return self._vectors.index_select(0, rows)

    def _reserve(self, wanted: int, oldest: int) -> None:
        if wanted <= self._capacity:
            return
        live = np.arange(max(1, oldest, self.next - self._capacity), self.next, dtype=np.int64)
        kept = self.take(self._places(live))
        while self._capacity < wanted:
            self._capacity *= 2
        self._vectors = self._vectors.new_zeros(self._capacity + 1, self._vectors.shape[1])
        self._vectors.index_copy_(0, self._places(live), kept)

    def _places(self, numbers: IntArray) -> Tensor:
        return upload(self.rows(numbers), self._vectors.device)
