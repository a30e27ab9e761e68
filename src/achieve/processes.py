"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends; on Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
