"""Building blocks shared by the encoder and the auxiliary nets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from achieve.nn.direct import Linear
from achieve.nn.init import scale_rows


class NormConv(nn.Module):
    """``f``: GroupNorm with one group -> 3x3 convolution -> ReLU. Without the norm, the convolution has a bias."""

    def __init__(self, inputs: int, outputs: int, *, norm: bool, gain: float) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, inputs) if norm else None
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=not norm)
        scale_rows(self.conv, gain)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H W"]:
        if self.norm is not None:
            x = self.norm(x)
        return torch.relu(self.conv(x))


class NormDense(nn.Module):
    """LayerNorm -> linear -> ReLU. Without the norm, the linear layer has a bias."""

    def __init__(self, inputs: int, outputs: int, *, norm: bool = True, gain: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs) if norm else None
        self.linear = Linear(inputs, outputs, bias=not norm)
        scale_rows(self.linear, gain)

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D2"]:
        if self.norm is not None:
            x = self.norm(x)
        return torch.relu(self.linear(x))


class MLP(nn.Module):
    """Normed hidden layers, then a plain linear output with bias."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [inputs, *hidden]
        self.hidden = nn.Sequential(
            *(NormDense(a, b, gain=1.4) for a, b in pairwise(sizes))
        )
        self.output = Linear(sizes[-1], outputs)
        scale_rows(self.output, 1.0)

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D2"]:
        return cast(Tensor, self.output(self.hidden(x)))
