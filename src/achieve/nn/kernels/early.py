"""Launching a kernel before the one ahead of it has ended, on GPUs of compute capability 9.0 on.

An update is a chain of kernels, many of which take a few microseconds: setting up the next one takes a good part of
that. A kernel with ``**early(device)`` in its launch and :func:`begin` as its first statement is set up meanwhile.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(EARLY: tl.constexpr):
    """Waits for all that was launched before, and lets what comes next be set up. Nothing may be read before it."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@cache
def early(device: torch.device) -> dict[str, Any]:
    """Options of a launch on this device."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}
