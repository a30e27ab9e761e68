"""A binary tree of sums, from which places are drawn in proportion to their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class SumTree:
    """Weights of ``size`` places; a draw and a change cost one step for each doubling of that number.

    Node ``i`` has the children ``2 i`` and ``2 i + 1``; the leaves are the nodes from ``leaves`` on. A node is always
    the sum of its two children, so that a tree rebuilt from its leaves is the same to the bit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.leaves = 1 << max(0, size - 1).bit_length()
        self._nodes: FloatArray = np.zeros(2 * self.leaves)

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    @property
    def weights(self) -> FloatArray:
        """Of all places [size]."""
        return self._nodes[self.leaves : self.leaves + self.size]

    def get(self, places: IntArray) -> FloatArray:
        """The weights of these places."""
        return self._nodes[self.leaves + places]

    def set(self, places: IntArray, weights: FloatArray | float) -> None:
        """Give these places new weights; where a place is named twice, the later weight stays."""
        nodes = self.leaves + places
        self._nodes[nodes] = weights
        while nodes[0] > 1:  # all nodes are of one level
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def fill(self, weights: FloatArray) -> None:
        """Give all places [size] new weights."""
        self._nodes[self.leaves : self.leaves + self.size] = weights
        first = self.leaves
        while first > 1:
            first >>= 1
            level = self._nodes[2 * first : 4 * first]
            self._nodes[first : 2 * first] = level[0::2] + level[1::2]

    def find(self, points: FloatArray) -> IntArray:
        """For each point of [0, total), the place whose stretch of the line of all weights it lies in."""
        nodes = np.ones(len(points), dtype=np.int64)
        rest = points.copy()
        while nodes[0] < self.leaves:
            left = 2 * nodes
            before = self._nodes[left]
            # Rounding can carry a point past the last weight: never into a subtree without any.
            right = (rest >= before) & (self._nodes[left + 1] > 0)
            rest -= np.where(right, before, 0.0)
            nodes = left + right
        return nodes - self.leaves
