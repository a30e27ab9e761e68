"""Which hand-written kernels are in force: every part of a run that has some asks here, and nowhere else.

All need a GPU that Triton compiles for, and can be switched off (`--no-compile`). Whether a machine has what Triton
needs is tried out, once a process: where it has not, a run says so and uses plain PyTorch. A file of kernels knows
which networks it is for: its ``supports``.
"""

from __future__ import annotations

import logging
import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from achieve.nn.model import AchievementNetwork

log = logging.getLogger("achieve")

OLDEST = (7, 5)
"""The lowest compute capability the kernels are compiled and tested for."""


def compiles_for(device: torch.device, *, enabled: bool) -> bool:
    """Whether there are kernels for this device at all: a GPU on which they run, and nobody switched them off."""
    return enabled and device.type == "cuda" and _run_on(device.index or 0)


def small_kernels(device: torch.device, *, enabled: bool) -> bool:
    """Whether losses, statistics and the transport run as single kernels, whatever the network."""
    return compiles_for(device, enabled=enabled)


def encoder_kernels(encoder: nn.Module, device: torch.device, *, enabled: bool) -> bool:
    """Whether the encoder's convolutional part runs fused, and with it the heads and the optimiser."""
    if not compiles_for(device, enabled=enabled):
        return False
    from achieve.nn.kernels import fused, fused_spcnn

    if fused_spcnn.supports(encoder):
        return torch.cuda.get_device_capability(device) >= fused_spcnn.OLDEST
    return fused.supports(encoder)


def acting_kernels(network: AchievementNetwork, num_envs: int, device: torch.device, *, enabled: bool) -> bool:
    """Whether a step of a rollout runs as kernels, past a fused encoder."""
    if not network.fused or not small_kernels(device, enabled=enabled):
        return False
    from achieve.nn.kernels.acting import supports

    return supports(network, num_envs)


def row_kernels(num_actions: int, device: torch.device, *, enabled: bool) -> bool:
    """Whether the end of a rollout step, from logits on, is a kernel, whatever the network."""
    if not small_kernels(device, enabled=enabled):
        return False
    from achieve.nn.kernels.rows import supports

    return supports(num_actions)


def distillation_kernels(network: AchievementNetwork, device: torch.device, *, enabled: bool) -> bool:
    """Whether the losses and regularisers of the auxiliary phase run as kernels."""
    if not small_kernels(device, enabled=enabled):
        return False
    from achieve.nn.kernels.contrastive import supports

    return supports(network.latent_size, network.num_actions)


@cache
def _run_on(index: int) -> bool:
    """Whether kernels run on this GPU. Where they do not, a line says why, and what the run uses instead."""
    obstacle = _obstacle(torch.device("cuda", index))
    if obstacle is not None:
        log.warning("achieve: %s; plain PyTorch is used in place of our GPU kernels, which is slower", obstacle)
    return obstacle is None


def _obstacle(device: torch.device) -> str | None:
    """Return what keeps kernels from running on this GPU, found by running one, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        have, need = (".".join(map(str, version)) for version in (capability, OLDEST))
        return f"this GPU has compute capability {have}, and our kernels need {need}"
    try:
        from achieve.nn.kernels.trial import try_out

        with torch.cuda.device(device):
            try_out(device)
    except Exception as error:  # whatever a compiler, a driver or Triton itself may have to say
        words = (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
        return f"Triton cannot compile or run a kernel here ({words}){_advice()}"
    return None


def _advice() -> str:
    """Return how to get what Triton builds its launchers with, if that is what is missing."""
    compilers = (os.environ.get("CC"), "gcc", "clang")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if any(name and shutil.which(name) for name in compilers) and header.is_file():
        return ""
    packages = "on Debian and Ubuntu: apt-get install gcc libc6-dev python3-dev"
    return f". It needs a C compiler and Python's headers ({packages})"
