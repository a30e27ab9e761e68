"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1
# Loaded here, since between a fork and an exec nothing may be that takes a lock another thread could have held.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends; on Linux alone."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
