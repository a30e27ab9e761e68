"""Which hand-written kernels are in force: every part of a run that has some asks here, and nowhere else.

All need a GPU that Triton compiles for, and can be switched off (`--no-compile`). A file of kernels knows which
networks it is for: its ``supports``.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from achieve.nn.model import AchievementNetwork

OLDEST = (7, 5)
"""The compute capability the kernels are compiled and tested for."""


def compiles_for(device: torch.device, *, enabled: bool) -> bool:
    """Whether there are kernels for this device at all: a GPU, Triton is installed, and nobody switched them off."""
    return enabled and device.type == "cuda" and find_spec("triton") is not None


def small_kernels(device: torch.device, *, enabled: bool) -> bool:
    """Whether losses, statistics and the transport run as single kernels, whatever the network."""
    return compiles_for(device, enabled=enabled) and _recent(device.index or 0)


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
def _recent(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= OLDEST
