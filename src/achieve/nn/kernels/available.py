"""Which hand-written kernels are in force: decided here, for everything around the encoder."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

OLDEST = (7, 5)
"""The compute capability the kernels are compiled and tested for."""


def small_kernels(device: torch.device, *, enabled: bool) -> bool:
    """Whether losses, statistics and acting run as single kernels: on a GPU, with Triton, unless switched off."""
    return enabled and device.type == "cuda" and find_spec("triton") is not None and _recent(device.index or 0)


@cache
def _recent(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= OLDEST
