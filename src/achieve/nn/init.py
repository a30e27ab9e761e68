"""The fan-in initialisation: PyTorch's default draw, each output unit's weight vector rescaled to a given norm."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def scale_rows(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Rescale every output unit's weight vector to norm ``gain`` and zero the bias.

    ``w_i <- gain * w_i / ||w_i||`` for weights ``w`` [out, ...].
    """
    weight = layer.weight
    norms = weight.flatten(1).norm(dim=1).view(-1, *([1] * (weight.dim() - 1)))
    weight.mul_(gain / norms)
    if layer.bias is not None:
        layer.bias.zero_()


@torch.no_grad()
def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights of that gain, bias zero."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        layer.bias.zero_()
