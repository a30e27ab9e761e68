"""The daylight curve, as the original computes it, for every step number in use.

It is evaluated with NumPy's scalar functions, one step at a time: compiled code and NumPy's array functions round the
power differently. Values are kept for the life of the process.
"""

from __future__ import annotations

import threading

import numpy as np

_BLOCK = 2048
_lock = threading.Lock()
_table = np.empty(0, np.float64)


def daylight(step: int) -> float:
    progress = (step / 300) % 1 + 0.3
    return 1 - np.abs(np.cos(np.pi * progress)) ** 3


def daylight_table(steps: int) -> np.ndarray:
    """Return the daylight of the steps 0 to at least ``steps``."""
    global _table
    with _lock:
        have = len(_table)
        if steps >= have:
            upto = max(steps + 1, have + max(_BLOCK, have // 4))
            new = np.array([daylight(step) for step in range(have, upto)], np.float64)
            _table = np.concatenate([_table, new])
        return _table
