"""Make the C library keep the memory of freed tensors.

GNU's allocator asks the system for every large block and gives it back at once. The system provides memory page by
page, and clears each: for the tensors of a minibatch that takes as long as a sixth of the arithmetic on them.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
KEPT = 2**30
"""Bytes that may stay with the process."""
BLOCKS = (2**28, 2**25)
"""Blocks below this size are kept; versions of the library before 2.35 accept the second alone."""
AHEAD = 2**26
"""Bytes that are asked for at a time."""


def keep_memory() -> bool:
    """Let freed memory be used again without asking the system. Returns whether the C library is one that can."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_TRIM_THRESHOLD, KEPT)
    mallopt(_TOP_PAD, AHEAD)
    return any(mallopt(_MMAP_THRESHOLD, size) for size in BLOCKS)
