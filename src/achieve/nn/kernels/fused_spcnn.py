"""The size-preserving encoder on a GPU, dense layer included, in half precision.

The plain twin, which defines what is computed, is `SizePreservingEncoder` in `nn/encoder.py`, on the same weights. As
in `fused.py`, activations and the weights they meet are stored in half precision, fp16 by default, and sums are
float32; gradients are scaled on their way in, and the optimiser scales those of the convolutions back. Here they enter
in front of the dense layer already, whose gradient of weights gets rid of the scale as it is written. Before the
convolutions they are scaled once more.

The convolutions are the library's where there are many images: at 64 channels and 5x5 pixels they are matrix products
that it is good at, and a tenth of their time goes into what lies between them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.nn.encoder import SizePreservingEncoder
from achieve.nn.kernels import large, preserving
from achieve.nn.kernels.adam import BLOCK
from achieve.nn.kernels.flat import FlatParameters, HalfWeights
from achieve.nn.kernels.fused import HEADROOM
from achieve.nn.kernels.output import largest
from achieve.nn.padding import Real

# The largest gradient by an output of the dense layer becomes 2^4: those by its inputs are a few hundred times smaller,
# as its weights are.
DENSE_HEADROOM = -4
# Images up to which the convolutions are this package's own. Their gradients are the library's.
FEW_IMAGES = 8
MOST_INPUTS = 12
OLDEST = (8, 0)


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, None, padding=weight.shape[2] // 2)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients by ``x`` and by the weight, both in half precision."""
    padding = [weight.shape[2] // 2] * 2
    how = ([1, 1], padding, [1, 1], False, [0, 0], 1)  # stride, padding, dilation, not transposed, groups
    by_x, by_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [True, True, False])
    return by_x, by_weight


class _Enter(torch.autograd.Function):
    """The first layer, on bytes."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: nn.Parameter, bias: nn.Parameter, owner: FusedSizePreserving
    ) -> Tensor:
        y = preserving.enter(images, owner.half_of(weight), bias)
        ctx.save_for_backward(images, y)
        ctx.owner, ctx.parameters = owner, (weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        images, y = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        found = preserving.enter_backward(grad, y, images, ctx.parameters[0].shape[2])
        ctx.owner.flat.leave(ctx.parameters, found)
        return None, None, None, None


class _Layer(torch.autograd.Function):
    """A layer between the first and the last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter, owner: FusedSizePreserving) -> Tensor:
        y = preserving.bias_relu_(_convolution(x, owner.half_of(weight)), bias)
        ctx.save_for_backward(x, y)
        ctx.owner, ctx.parameters = owner, (weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, y = ctx.saved_tensors
        weight, _ = ctx.parameters
        grad, by_bias = preserving.relu_backward(grads[0].contiguous(memory_format=torch.channels_last), y)
        by_x, by_weight = _convolution_backward(grad, x, ctx.owner.half_of(weight))
        ctx.owner.flat.leave(ctx.parameters, (by_weight, by_bias))
        return by_x, None, None, None


class _Last(torch.autograd.Function):
    """The last layer, which leaves its output channel by channel; backward the gradient is scaled once more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter, owner: FusedSizePreserving) -> Tensor:
        rows = preserving.to_rows(_convolution(x, owner.half_of(weight)), bias)
        ctx.save_for_backward(x, rows)
        ctx.owner, ctx.parameters = owner, (weight, bias)
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, rows = ctx.saved_tensors
        owner, (weight, _) = ctx.owner, ctx.parameters
        grad = grads[0].contiguous()
        with owner.flat.scaling() as inverse:
            grad, by_bias = preserving.rows_backward(
                grad, rows, largest(grad), owner.dense_inverse, inverse, HEADROOM
            )
        by_x, by_weight = _convolution_backward(grad, x, owner.half_of(weight))
        owner.flat.leave(ctx.parameters, (by_weight, by_bias))
        return by_x, None, None, None


class _Dense(torch.autograd.Function):
    """The dense layer with its ReLU; the gradient by its input is scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter, owner: FusedSizePreserving) -> Tensor:
        y = large.dense(x, owner.half_of(weight), bias)
        ctx.save_for_backward(x, y)
        ctx.owner, ctx.parameters = owner, (weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, y = ctx.saved_tensors
        owner, (weight, bias) = ctx.owner, ctx.parameters
        inverse = owner.dense_inverse = torch.empty_like(owner.half.scale)  # the last one may still be read beside
        grad, by_bias = large.scaled_gradient(grads[0].contiguous(), y, inverse, DENSE_HEADROOM, x.dtype)
        owner.flat.leave([bias], [by_bias])
        with owner.flat.beside(grad, x, inverse):
            mine, is_used = owner.flat.place(weight)
            large.weight_gradient(grad, x, inverse, mine, add=is_used)
        return grad @ owner.half_of(weight), None, None, None


class FusedSizePreserving:
    """Computes what a :class:`SizePreservingEncoder` without a norm does, whose weights it shares.

    All parameters are moved into one buffer (:class:`FlatParameters`): those of the convolutions, then the weight of
    the dense layer, then the rest of the network. ``half`` holds all up to that weight once more in half precision. The
    optimiser writes both; after any other change (in place, which counts a parameter's ``_version`` up) they are
    converted anew, by :meth:`cache_weights` or the next :meth:`features` without ``cached``.

    Args:
        encoder: whose latents to compute.
        dtype: of activations and of the weights they meet.
        others: parameters to lay out with the encoder's.
    """

    note = ""
    """What a run's record says besides: nothing."""

    def __init__(self, encoder: SizePreservingEncoder, dtype: torch.dtype, others: Iterable[nn.Parameter] = ()) -> None:
        if not supports(encoder):
            raise ValueError(
                "fused kernels need no norm, channels in powers of two from 16 to 128, two convolutions or more, and "
                f"images of at most {MOST_INPUTS} channels"
            )
        self._encoder, self._dtype, self._others = encoder, dtype, list(others)
        self._layers = [cast(nn.Conv2d, conv) for conv in encoder.convs]
        convolutional = list(encoder.convs.parameters())
        dense = cast(nn.Parameter, encoder.linear.weight)
        self.flat = FlatParameters(dict.fromkeys([*convolutional, dense, *self._others, *encoder.parameters()]))
        device = dense.device
        self.flat.half = self.half = HalfWeights(
            weights=torch.zeros(self.flat.blocks(dense)[1] * BLOCK, dtype=dtype, device=device),
            entry=torch.zeros(1, 1, 1, 1, dtype=dtype, device=device),  # there is none of a form of its own
            entry_blocks=(0, 0),
            entry_inputs=1,
            factor=1.0,
            scale=torch.ones((), device=device),
            scaled_blocks=self.flat.blocks(convolutional[-1])[1],
        )
        self.dense_inverse = torch.ones((), device=device)
        """The way back from the scale of the gradient by the dense layer's input."""
        self._converted = [*(cast(nn.Parameter, layer.weight) for layer in self._layers), dense]
        self._half_of: dict[Tensor, Tensor] = {p: self.flat.view(self.half.weights, p) for p in self._converted}
        self._versions: list[int] = []
        self.cache_weights()

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedSizePreserving:
        """A copy has buffers of its own: copied parameters are no views of anything."""
        encoder, others = copy.deepcopy((self._encoder, self._others), memo)
        return FusedSizePreserving(encoder, self._dtype, others)

    def half_of(self, weight: Tensor) -> Tensor:
        """Return a weight in half precision, that of a convolution channels last."""
        return self._half_of[weight]

    @torch.no_grad()
    def cache_weights(self) -> None:
        """Convert the weights where something else than the optimiser has changed them."""
        versions = [p._version for p in self._converted]
        if versions != self._versions:
            self._versions = versions
            self.half.weights.copy_(self.flat.values[: len(self.half.weights)])

    def features(self, images: Tensor, *, cached: bool = False, real: Real | None = None) -> Tensor:
        """Bytes [B, H, W, C] -> [B, channels, H, W], in half precision.

        ``cached`` uses the weights as they were at the last :meth:`cache_weights`. Whether images are ``real`` makes no
        difference here.
        """
        if not cached:
            self.cache_weights()
        first, *inner, last = self._layers
        if not torch.is_grad_enabled() and len(images) <= FEW_IMAGES:
            x = preserving.enter(images, self.half_of(first.weight), cast(Tensor, first.bias))
            for layer in (*inner, last):
                weight = self.half_of(layer.weight)
                x = preserving.convolve(x, weight, cast(Tensor, layer.bias), as_rows=layer is last)
            return x
        x = cast(Tensor, _Enter.apply(images, first.weight, first.bias, self))
        for layer in inner:
            x = cast(Tensor, _Layer.apply(x, layer.weight, layer.bias, self))
        return cast(Tensor, _Last.apply(x, last.weight, last.bias, self))

    def head(self, features: Tensor) -> Tensor:
        """Return the latents of what :meth:`features` returned, in float32."""
        linear = self._encoder.linear
        return cast(Tensor, _Dense.apply(features.flatten(1), linear.weight, linear.bias, self))

    def finish_backward(self) -> None:
        """Take the gradients' scale back out of the convolutional part."""
        self.flat.unscale()


def supports(encoder: nn.Module) -> bool:
    """Whether this encoder can be accelerated: size-preserving, without a norm, channels in powers of two."""
    if not isinstance(encoder, SizePreservingEncoder) or encoder.norm is not None or len(encoder.convs) < 2:
        return False
    convs = [cast(nn.Conv2d, conv) for conv in encoder.convs]
    return convs[0].in_channels <= MOST_INPUTS and all(conv.out_channels in (16, 32, 64, 128) for conv in convs)
