"""Entropic partial transport of one pair of episodes, by Dykstra's projections, entry by entry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def plan(cost: Floats, reg: float = 0.05, iterations: int = 100) -> Floats:
    """Rows to at most one, columns to at most one, all to the mass, so many times, each with its own correction."""
    m, n = cost.shape
    if min(m, n) == 0:
        return np.zeros((m, n))
    mass = min(m, n)
    t = np.exp(-cost / reg)
    t = t * (mass / t.sum())
    corrections = [np.ones((m, n)) for _ in range(3)]
    for _ in range(iterations):
        for which in range(3):
            start = t
            t = t * corrections[which]
            if which == 0:
                t = np.stack([row * min(1.0, 1.0 / row.sum()) for row in t])
            elif which == 1:
                t = np.stack([column * min(1.0, 1.0 / column.sum()) for column in t.T]).T
            else:
                t = t * (mass / t.sum())
            corrections[which] = corrections[which] * start / t
    return t
