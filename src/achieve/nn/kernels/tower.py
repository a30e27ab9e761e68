"""A stack's residual blocks on a GPU: 3x3 convolutions that apply the norm before them and measure for the one after.

:class:`_Tower` runs a chain of up to five of them as one autograd function, because backward every convolution hands
the one before it more than a gradient. One by one they are in `norm_conv.py`; the kernels, and how a norm folds into a
convolution, in `convolution.py`. The plain twin, which defines what is computed, is `ResidualBlock` in `nn/encoder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from achieve.nn.kernels.flat import FlatParameters
from achieve.nn.kernels.norm_conv import (
    Before,
    Folded,
    Gradient,
    begin_backward,
    begin_pool_backward,
    convolve,
    convolve_backward,
    empty_folded,
    fold,
    image_sums,
    weight_gradient,
)
from achieve.nn.kernels.pools import pool_forward
from achieve.nn.layers import NormConv
from achieve.nn.padding import Real

# Convolutions of a stack's blocks.
BLOCK_LAYERS = 4


class _Tower(torch.autograd.Function):
    """Two residual blocks on ``x``; if there is a next stack, its convolution, ReLU and max-pool too.

    ``parameters`` are weight, gain and bias of each of the four or five convolutions. Their gradients are left where
    ``flat`` keeps them, or without it returned, as any other function does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sums: Tensor | None,
        folded: list[Folded],
        eps: list[float],
        train: bool,
        flat: FlatParameters | None,
        real: Real | None,
        *parameters: Tensor,
    ) -> Tensor:
        sums = image_sums(x) if sums is None else sums
        saved: list[Tensor] = []
        skip = x
        for index, (weights, small) in enumerate(zip(folded, eps, strict=True)):
            adds = index % 2 == 1
            result = convolve(
                x, sums, weights, small, relu=index < BLOCK_LAYERS, skip=skip if adds else None, keep=adds and train,
                real=real,
            )  # fmt: skip
            # What the ReLU made of this convolution's output: kept apart where a skip connection was added to it.
            saved += [x, result.moments, result.out if result.kept is None else result.kept]
            x, sums = result.out, result.sums
            skip = x if adds else skip
        if len(folded) > BLOCK_LAYERS:
            ctx.shape = x.shape[2:]
            x, winner = pool_forward(x, None)
            saved[-1:] = [x, winner]
        if train:
            ctx.save_for_backward(*saved)
        ctx.folded, ctx.flat, ctx.parameters, ctx.real = folded, flat, parameters, real
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        folded = ctx.folded
        count = len(folded)
        saved, parameters = ctx.saved_tensors, ctx.parameters
        inputs, moments, relus = (saved[i : 3 * count : 3] for i in range(3))
        grad_x = grads[0].contiguous(memory_format=torch.channels_last)
        if count > BLOCK_LAYERS:
            pooled, winner = saved[-2:]
            grad = begin_pool_backward(grad_x, pooled, winner, ctx.shape, folded[-1], moments[-1])
        else:
            grad = begin_backward(grad_x, relus[-1], folded[-1], moments[-1], relu=True)
        most = max(weights.weight.shape[0] for weights in folded)
        owner = _Gradients(ctx.flat, parameters, inputs, most, ctx.real)
        for index in reversed(range(count)):
            owner.add(index, grad, inputs[index], moments[index])
            joins = index % 2 == 0  # its input is also a skip connection's: the entry's of the blocks, or a sum
            before = None
            if index > 0:
                before = Before(relus[index - 1] if joins else None, folded[index - 1], moments[index - 1])
            stored, passed = convolve_backward(
                grad, folded[index], inputs[index], moments[index],
                grad_sum=grad_x if joins and index < BLOCK_LAYERS else None, store=joins, before=before, real=ctx.real,
            )  # fmt: skip
            grad_x = cast(Tensor, stored) if joins else grad_x
            grad = cast(Gradient, passed)
        return grad_x, *[None] * 6, *owner.finish()


class _Gradients:
    """Computes the gradients of a tower's parameters, beside the rest of the backward pass where they lie flat.

    Nothing waits for them before the optimiser. Their kernels are short or leave multiprocessors idle at their end.
    """

    def __init__(
        self,
        flat: FlatParameters | None,
        parameters: Sequence[Tensor],
        inputs: Sequence[Tensor],
        most: int,
        real: Real | None,
    ) -> None:
        self._flat, self._parameters, self._real = flat, parameters, real
        self._count = len(inputs)
        self._found: dict[int, Tensor] = {}
        with self._beside():
            # Shares of the gains' and the biases' gradients; a layer of fewer outputs leaves the rest zero.
            self._affine = torch.zeros(self._count, 9 * most, 2, inputs[0].shape[1], device=inputs[0].device)

    def _beside(self, *read: Tensor) -> AbstractContextManager[object]:
        return nullcontext() if self._flat is None else self._flat.beside(*read)

    def add(self, index: int, grad: Gradient, x: Tensor, moments: Tensor) -> None:
        """Take in a layer: the gradient of its output, its input and that one's moments."""
        weight, gain, bias = self._parameters[3 * index : 3 * index + 3]
        with self._beside(*grad, x, moments, self._affine):
            into = None
            if self._flat is not None and weight.grad is None:
                into, _ = self._flat.place(cast(nn.Parameter, weight))
            found = weight_gradient(
                grad, x, moments, weight, gain, bias, self._affine[index], into=into, real=self._real
            )
        if into is None:
            self._found[index] = found

    def finish(self) -> list[Tensor | None]:
        """Return the gradients of all parameters, or Nones, where they were brought to their place."""
        with self._beside(self._affine):
            sums = self._affine.sum(1)
        by_layer = [(self._found.get(i), sums[i, 0], sums[i, 1]) for i in range(self._count)]
        gradients = [gradient for layer in by_layer for gradient in layer]
        if self._flat is None:
            return gradients
        found = [(cast(nn.Parameter, p), g) for p, g in zip(self._parameters, gradients, strict=True) if g is not None]
        self._flat.leave(*zip(*found, strict=True))
        return [None] * len(gradients)


class Tower:
    """The residual blocks of a stack, and the convolution that follows them, with weights that may be kept folded."""

    def __init__(
        self,
        layers: list[NormConv],
        dtype: torch.dtype,
        flat: FlatParameters | None = None,
    ) -> None:
        self._dtype = dtype
        self._flat = flat
        self._weights = [layer.conv.weight for layer in layers]
        self._norms = [cast(nn.GroupNorm, layer.norm) for layer in layers]
        self._cached: list[Folded] = []

    def cache_weights(self) -> None:
        """Fold the weights now, for calls with ``cached``: right while they do not change."""
        if not self._cached:
            self._cached = empty_folded(self._weights, self._dtype)
        self._fold(self._cached)  # in place: captured graphs read from there

    def __call__(
        self, x: Tensor, *, cached: bool, sums: Tensor | None = None, real: Real | None = None
    ) -> Tensor:
        """Return the blocks' output, or that of the following convolution and max-pool.

        ``sums`` are those of ``x`` as :func:`image_sums` returns them, where they are known. Of images that are not
        ``real`` it returns zeros, and takes the gradient as zero, which it has to be.
        """
        folded = self._cached if cached else self._fold(empty_folded(self._weights, self._dtype))
        parameters = [p for layer in self._layers() for p in layer]
        eps = [norm.eps for norm in self._norms]
        train = torch.is_grad_enabled()
        return cast(Tensor, _Tower.apply(x, sums, folded, eps, train, self._flat, real, *parameters))

    def _layers(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(weight, norm.weight, norm.bias) for weight, norm in zip(self._weights, self._norms, strict=True)]

    def _fold(self, into: list[Folded]) -> list[Folded]:
        with torch.no_grad():
            return fold(self._layers(), into)


def supports(device: torch.device) -> bool:
    """Whether this device has the tensor cores these kernels are written for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def fits(x: Tensor) -> bool:
    """Whether images are large enough to have a first and a last row and column that differ."""
    return min(x.shape[2:]) > 1
