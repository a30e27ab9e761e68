"""Every kernel that a run would launch compiles for the GPUs it is meant for, and fits on them. Needs no GPU.

Triton's interpreter (`test_kernels.py`) says whether kernels compute the right thing, but not whether they compile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Optional
from tests.helpers.gpus import MOST_REGISTERS, SHARED_KIB, THREADS
from tests.nn.interpreter import ROOT

CHANGED = r"^(dense\._(product|transpose)|convolution\.(begin_pool_backward|class_sums|finish_weight_gradient))$"
PRESETS = ("ad", "heist-ad", "qrdqn-ad", "ad-gru", "lstm-spcnn")
"""Between them they have every part of a run that has kernels."""
OLD, OWN_FORWARD, TMA = (7, 5), (8, 0), (9, 0)
"""Compute capabilities at which other kernels are chosen."""


def compile_for(capability: tuple[int, int], *presets: str, cache: Path, only: str = "") -> list[dict[str, Any]]:
    """What each kernel of these presets takes on such a GPU, or those alone whose names match."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    version = ".".join(map(str, capability))
    command = [sys.executable, "-m", "tests.helpers.cross_compile", version, only, *presets]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(kernels: list[dict[str, Any]], capability: tuple[int, int]) -> set[str]:
    """Check that all kernels compile and fit. Returns their names."""
    wrong = []
    for kernel in kernels:
        what = f"{kernel['kernel']} of {kernel['preset']}, {kernel['kind']}"
        if "error" in kernel:
            wrong.append(f"{what}: {kernel['error']}")
        elif kernel["shared"] > SHARED_KIB[capability] * 1024:
            wrong.append(f"{what}: {kernel['shared']:,} bytes of shared memory")
        elif kernel["registers"] * kernel["warps"] * THREADS > MOST_REGISTERS:
            wrong.append(f"{what}: {kernel['registers']} registers in {kernel['warps']} warps")
    assert not wrong, "\n".join(wrong)
    return {kernel["kernel"] for kernel in kernels}


def test_kernels_of_updates_compile(tmp_path: Path, optional: Optional) -> None:
    """A few that are compiled in seconds; the others take minutes."""
    optional.check(find_spec("triton"), "the package triton")
    found = check(compile_for(TMA, "ppo", cache=tmp_path, only=CHANGED), TMA)
    assert found == {
        "dense._product", "dense._transpose", "convolution.begin_pool_backward", "convolution.class_sums",
        "convolution.finish_weight_gradient",
    }  # fmt: skip


def test_weight_gradients_fit_into_less_shared_memory(tmp_path: Path, optional: Optional) -> None:
    """Compute capability 12.0 has 9.0's kernels, and less than half of its shared memory."""
    optional.check(find_spec("triton"), "the package triton")
    less = (12, 0)
    assert check(compile_for(less, "ppo", cache=tmp_path, only=r"^convolution\.weight_gradient$"), less)


def test_a_kernel_that_does_not_compile_is_found() -> None:
    about = {"kernel": "dense._product", "preset": "ppo", "kind": "{}"}
    fits = {**about, "shared": 64 * 1024, "registers": 128, "warps": 8}
    assert check([fits], OLD) == {"dense._product"}
    for wrong in (
        {**about, "error": "CompilationError: at 1:0"},
        {**fits, "shared": 64 * 1024 + 1},
        {**fits, "registers": 255, "warps": 16},
    ):
        with pytest.raises(AssertionError, match=r"dense\._product of ppo"):
            check([fits, wrong], OLD)


@pytest.mark.long
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_all_kernels_compile(capability: tuple[int, int], tmp_path: Path, optional: Optional) -> None:
    optional.check(find_spec("triton"), "the package triton")
    found = check(compile_for(capability, *PRESETS, cache=tmp_path), capability)
    assert found >= {"policy._ppo", "adam._adam", "norms._norm_forward", "contrastive._match", "cells._forward"}
    assert ("convolution.forward" in found) == ("dense._product" in found) == (capability >= OWN_FORWARD)
    assert ("preserving._convolve" in found) == (capability >= OWN_FORWARD)
    assert ("convolution.begin_pool_backward" in found) == ("entry_pool._forward" in found) == (capability >= TMA)
