"""How many GPUs runs can use, mostly without PyTorch: to load it takes seconds, in which no run has begun."""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
MANAGEMENT = "libnvidia-ml.so.1"
DRIVER = "libcuda.so.1"


def gpu_count(device: str) -> int:
    """Return how many GPUs runs with this `device` can use here; opens no CUDA context, which would hold memory."""
    if device == "cpu":
        return 0
    found = None if "torch" in sys.modules else count_without_torch(torch_build(), os.environ.get(VISIBLE))
    if found is None:
        import torch

        return torch.cuda.device_count()
    return found


def torch_build() -> dict[str, Any]:
    """Return what PyTorch's `version.py` says, where `cuda` and `hip` are versions or None; empty if it is gone."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    try:
        return runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return {}


def count_without_torch(
    build: Mapping[str, Any], visible: str | None, load: Callable[[str], Any] = ctypes.CDLL
) -> int | None:
    """Return what `torch.cuda.device_count()` would, or None where that must be asked.

    NVIDIA's management library knows it, which PyTorch asks too. CUDA is left alone: from its first use on, a process
    keeps to the visible GPUs and the multi-process service of that moment.

    Args:
        build: see :func:`torch_build`.
        visible: CUDA_VISIBLE_DEVICES; None where it is not set.
        load: loads a library by its name.
    """
    if "cuda" not in build or build.get("hip"):
        return None
    if build["cuda"] is None or visible in ("", "-1"):
        return 0
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    if not all(map(str.isdecimal, names)):  # UUIDs of GPUs and of parts of them
        return None
    indices = [int(name) for name in names]
    if len(set(indices)) < len(indices):
        return None
    try:
        there = _installed(load(MANAGEMENT))
    except OSError:
        return None if _loads(load, DRIVER) else 0
    if there is None or visible is None:
        return there
    # An index of no GPU hides those after it.
    return len([*takewhile(lambda index: index < there, indices)])


def _installed(library: Any) -> int | None:
    """Return how many GPUs the machine has; None if the library does not say."""
    count = ctypes.c_uint()
    try:
        failed = library.nvmlInit() or library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    except AttributeError:
        return None
    return None if failed else count.value


def _loads(load: Callable[[str], Any], name: str) -> bool:
    try:
        load(name)
    except OSError:
        return False
    return True
