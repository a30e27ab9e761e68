"""The residual encoder's convolutional part on a GPU: half-precision convolutions between fused norms and pools.

The plain twin, which defines what is computed, is `ResidualEncoder.features` in `nn/encoder.py`, on the same weights.
Here activations are stored in half precision, sums and statistics are float32. The default is fp16, whose ten bits of
mantissa are those of the TF32 convolutions the published runs had; `bf16` has seven, which shows in the
representations, as they are differences of latents. Against fp16's narrow range, gradients are scaled on their way in,
by a power of two chosen on the device at every step, and scaled back by the optimiser or in
:meth:`FusedEncoder.finish_backward`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.nn.encoder import ResidualBlock, ResidualEncoder, Stack
from achieve.nn.kernels import entry_pool, norm_tiles, tower
from achieve.nn.kernels.adam import BLOCK
from achieve.nn.kernels.entry import entry_weight_backward, padded_channels, prepare
from achieve.nn.kernels.flat import FlatParameters, HalfWeights, Sink
from achieve.nn.kernels.norm_conv import has_tma
from achieve.nn.kernels.norms import norm_backward, norm_forward
from achieve.nn.kernels.output import features, features_backward
from achieve.nn.kernels.pools import pool_backward, pool_bias_backward, pool_forward
from achieve.nn.layers import NormConv
from achieve.nn.padding import Real

# Gradients enter the convolutions with a largest entry of 2^-HEADROOM: sums over all pixels of all images must stay
# below fp16's 65504, and what is a million times smaller above its 6e-8.
HEADROOM = 4
# Channels of an image (four stacked RGB frames have 12): the first convolution's weight gradient holds nine times as
# many numbers for each output in registers.
MOST_INPUTS = 16
# The network divides bytes by 255, `prepare` by 256.
ENTRY_FACTOR = 256 / 255
CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, not transposed, groups

# The functions below take ``sink``, which says where to add the gradient of a parameter. Without it they return the
# gradient, as any other function does.


def _forward(
    z: Tensor, skip: Tensor | None, gain: Tensor, bias: Tensor, eps: float, *, relu: bool, sums: Tensor | None = None
) -> Any:
    if norm_tiles.suits(z) and sums is None:
        return norm_tiles.norm_forward(z, skip, gain, bias, eps, relu=relu)
    return norm_forward(z, skip, gain, bias, eps, relu=relu, sums=sums)


class _Norm(torch.autograd.Function):
    """``norm(relu(z))``, or ``norm(z)``; ``sums`` receives those of its images, as :func:`norm_forward` has them."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        gain: Tensor,
        bias: Tensor,
        eps: float,
        relu: bool,
        sink: Sink | None = None,
        sums: Tensor | None = None,
    ) -> Tensor:
        _, out, mean, rstd = _forward(z, None, gain, bias, eps, relu=relu, sums=sums)
        ctx.save_for_backward(z, gain, mean, rstd)
        ctx.relu = relu
        ctx.sink, ctx.affine = sink, (gain, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        z, gain, mean, rstd = ctx.saved_tensors
        into = ctx.sink and tuple(map(ctx.sink, ctx.affine))
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_z, _, grad_gain, grad_bias = norm_backward(
            grad, None, z, z, gain, mean, rstd, relu=ctx.relu, add=False, into=into
        )
        return grad_z, *((None, None) if into else (grad_gain, grad_bias)), *[None] * 4


class _SkipNorm(torch.autograd.Function):
    """``x`` as it is, and ``norm(x)``: the gradients of both meet in the norm's own kernel."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, eps: float, sink: Sink | None = None
    ) -> tuple[Tensor, Tensor]:
        _, out, mean, rstd = _forward(x, None, gain, bias, eps, relu=False)
        ctx.save_for_backward(x, gain, mean, rstd)
        ctx.sink, ctx.affine = sink, (gain, bias)
        ctx.set_materialize_grads(False)
        return x, out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, gain, mean, rstd = ctx.saved_tensors
        into = ctx.sink and tuple(map(ctx.sink, ctx.affine))
        grad_x, grad = grads
        if grad_x is not None:
            grad_x = grad_x.contiguous(memory_format=torch.channels_last)
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x, _, grad_gain, grad_bias = norm_backward(
            grad, grad_x, x, x, gain, mean, rstd, relu=False, add=False, into=into
        )
        return grad_x, *((None, None) if into else (grad_gain, grad_bias)), None, None


class _AddNorm(torch.autograd.Function):
    """``x = skip + relu(z)``, and ``norm(x)`` with it."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, skip: Tensor, gain: Tensor, bias: Tensor, eps: float, sink: Sink | None = None
    ) -> tuple[Tensor, Tensor]:
        x, out, mean, rstd = _forward(z, skip, gain, bias, eps, relu=True)
        ctx.save_for_backward(z, x, gain, mean, rstd)
        ctx.sink, ctx.affine = sink, (gain, bias)
        ctx.set_materialize_grads(False)
        return x, out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        z, x, gain, mean, rstd = ctx.saved_tensors
        into = ctx.sink and tuple(map(ctx.sink, ctx.affine))
        grad_x, grad = grads
        if grad_x is not None:
            grad_x = grad_x.contiguous(memory_format=torch.channels_last)
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_z, grad_skip, grad_gain, grad_bias = norm_backward(
            grad, grad_x, x, z, gain, mean, rstd, relu=True, add=True, into=into
        )
        affine = (None, None) if into else (grad_gain, grad_bias)
        return grad_z, grad_skip, *affine, None, None


class _Pool(torch.autograd.Function):
    """``relu(maxpool(z) + bias)``."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor | None, sink: Sink | None = None) -> Tensor:
        out, winner = pool_forward(z, bias)
        ctx.save_for_backward(winner)
        ctx.shape = z.shape[2:]
        ctx.sink, ctx.bias = sink, bias
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (winner,) = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_bias = None
        if ctx.bias is not None:
            into = ctx.sink and ctx.sink(ctx.bias)
            grad_bias = pool_bias_backward(grad, winner, into)
        return pool_backward(grad, winner, *ctx.shape), None if ctx.sink else grad_bias, None


class _Entry(torch.autograd.Function):
    """``maxpool(relu(conv(images / 255) + bias))`` of bytes.

    ``spread`` are weight and bias as the kernel needs them. ``train`` says whether there will be a backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: nn.Parameter, bias: nn.Parameter, spread: Tensor, train: bool, sink: Sink
    ) -> Tensor:
        out, winner = entry_pool.forward(images, spread, keep=train)
        if winner is not None:
            ctx.save_for_backward(images, winner)
        ctx.sink, ctx.parameters = sink, (weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        images, winner = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        entry_pool.backward(grad, winner, images, *map(ctx.sink, ctx.parameters))
        return None, None, None, None, None, None


class _EntryConv(torch.autograd.Function):
    """The first convolution, on what :func:`prepare` makes of bytes: 1/256 of them, channels added.

    ``half`` is the weight as that needs it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, half: Tensor, sink: Sink) -> Tensor:
        ctx.save_for_backward(x)
        ctx.sink, ctx.weight = sink, weight
        return F.conv2d(x, half, None, padding=1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        inputs = ctx.weight.shape[1]
        entry_weight_backward(grad, x, inputs=inputs, factor=ENTRY_FACTOR, into=ctx.sink(ctx.weight))
        return None, None, None, None


class _Conv(torch.autograd.Function):
    """A convolution with ``half``, the weight in half precision, in which its gradient is left in ``pending``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: nn.Parameter, half: Tensor, pending: list[tuple[nn.Parameter, Tensor]]
    ) -> Tensor:
        ctx.save_for_backward(x, half)
        ctx.weight, ctx.pending = weight, pending
        return F.conv2d(x, half, None, padding=1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, half = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_x, grad_half, _ = torch.ops.aten.convolution_backward(
            grad, x, half, None, *CONVOLUTION, [True, True, False]
        )
        ctx.pending.append((ctx.weight, grad_half))
        return grad_x, None, None, None


class _Features(torch.autograd.Function):
    """``skip + relu(z)`` in float32, or ``z``; backward the gradient is brought to a largest entry of 2^-HEADROOM."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, skip: Tensor | None, flat: FlatParameters) -> Tensor:
        ctx.save_for_backward(z)
        ctx.flat, ctx.add = flat, skip is not None
        return features(z, skip)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (z,) = ctx.saved_tensors
        grad = grads[0].contiguous()
        with ctx.flat.scaling() as inverse:
            found = features_backward(grad, z, inverse, HEADROOM, add=ctx.add)
        return *found, None


def _group_norm(layer: NormConv) -> nn.GroupNorm:
    assert layer.norm is not None
    return layer.norm


class FusedEncoder:
    """Computes the features of a :class:`ResidualEncoder` with norms, whose weights it shares.

    All parameters are moved into one buffer (:class:`FlatParameters`): the weights of the convolutions but the first,
    then what else is in the convolutional part, then the rest of the network. ``half`` holds the convolutions' weights
    once more in half precision: :meth:`weight` finds them there, channels last. The optimiser writes both. After any
    other change of the weights (in place, which counts a parameter's ``_version`` up) they are converted anew, by
    :meth:`cache_weights` or the next :meth:`features` without ``cached``.

    Kernels add their gradients to ``flat.sink(parameter)``; those of the convolutions' weights come from the library in
    half precision and wait in ``flat.pending``. All of the convolutional part carry a scale until
    :meth:`finish_backward`, or until the optimiser takes them times ``half.scale``.

    The blocks' convolutions are this package's own, where the device has the tensor cores for them. With gradients it
    needs a tensor memory accelerator too: elsewhere the library's are as quick. The first convolution is with its pool
    one kernel of this package's on devices of that generation, for images of up to three channels.

    Args:
        encoder: whose features to compute.
        dtype: of activations and of the weights they meet.
        others: parameters to lay out with the encoder's.
        own: whether to use own convolutions, with gradients too; by default, where they are quicker.
    """

    def __init__(
        self,
        encoder: ResidualEncoder,
        dtype: torch.dtype,
        others: Iterable[nn.Parameter] = (),
        *,
        own: bool | None = None,
    ) -> None:
        if not supports(encoder):
            raise ValueError(
                f"fused kernels need norms, channels in powers of two from 16 on, and images of at most {MOST_INPUTS} "
                "channels"
            )
        self._encoder = encoder
        self._dtype = dtype
        self._others = list(others)
        self._entry = cast(Stack, encoder.stacks[0]).entry.conv
        layers = [m for m in encoder.stacks.modules() if isinstance(m, nn.Conv2d) and m is not self._entry]
        convs = [cast(nn.Parameter, layer.weight) for layer in layers]
        entry = cast(nn.Parameter, self._entry.weight)
        summed = [p for p in encoder.stacks.parameters() if all(p is not weight for weight in convs)]
        self.flat = FlatParameters(dict.fromkeys([*convs, *summed, *self._others]), summed)
        self._converted = [*convs, entry]
        self._versions: list[int] = []
        outputs, inputs, height, width = entry.shape
        device = entry.device
        self.flat.half = self.half = HalfWeights(
            weights=torch.zeros(self.flat.blocks(convs[-1])[1] * BLOCK, dtype=dtype, device=device),
            entry=torch.zeros(outputs, height, width, padded_channels(inputs), dtype=dtype, device=device),
            entry_blocks=self.flat.blocks(entry),
            entry_inputs=inputs,
            factor=ENTRY_FACTOR,
            scale=torch.ones((), device=device),
            scaled_blocks=max(self.flat.blocks(p)[1] for p in encoder.stacks.parameters()),
        )
        self._entry_half = self.half.entry.permute(0, 3, 1, 2)
        self._half_of: dict[Tensor, Tensor] = {p: self.flat.view(self.half.weights, p) for p in convs}
        self._own = own
        own_entry = entry_pool.supports(inputs) and (has_tma(device) if own is None else own)
        self._spread = entry_pool.empty_spread(entry, dtype) if own_entry else None
        has_own = tower.supports(device) if own is None else own
        self._own_backward = has_tma(device) if own is None else own
        self._towers = [
            tower.Tower(layers, dtype, self.flat)
            for layers in (_inner_layers(encoder) if has_own else [])
        ]
        self.cache_weights()

    @property
    def note(self) -> str:
        """What a run's record says of the convolutions, if they are not this package's own."""
        return "" if self._towers else " (the library's convolutions: a GPU of compute capability 8.0 has faster ones)"

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedEncoder:
        """A copy has buffers of its own: copied parameters are no views of anything."""
        encoder, others = copy.deepcopy((self._encoder, self._others), memo)
        return FusedEncoder(encoder, self._dtype, others, own=self._own)

    @torch.no_grad()
    def cache_weights(self) -> None:
        """Convert the weights, for calls of :meth:`features` with ``cached``: right while they do not change."""
        self._convert()
        if self._spread is not None:
            self._spread_weights(self._spread)
        for each in self._towers:
            each.cache_weights()

    def _convert(self) -> None:
        """Convert the weights to half precision where something else than the optimiser has changed them."""
        versions = [p._version for p in self._converted]
        if versions == self._versions:
            return
        self._versions = versions
        self.half.weights.copy_(self.flat.values[: len(self.half.weights)])
        self._entry_half[:, : self.half.entry_inputs].copy_(self._entry.weight * ENTRY_FACTOR)

    def weight(self, layer: nn.Conv2d) -> Tensor:
        """Return a convolution's weight in half precision, channels last. The first convolution's has its own form."""
        return self._half_of[layer.weight]

    def features(self, images: Tensor, *, cached: bool = False, real: Real | None = None) -> Tensor:
        """Bytes [B, H, W, C] -> [B, channels, H/8, W/8], float32.

        ``cached`` uses the weights as they were at the last :meth:`cache_weights`. Images that are not ``real`` take
        little time, and are not to be used.
        """
        if not cached:
            with torch.no_grad():
                self._convert()
        stacks = [cast(Stack, module) for module in self._encoder.stacks]
        z = self._enter(images, cached=cached)
        own = bool(self._towers) and (self._own_backward or not torch.is_grad_enabled())
        pooled = True
        for index, stack in enumerate(stacks):
            x = z if pooled else self._pool(z, None)
            sums = torch.empty(len(x), 2, 1, device=x.device) if own and not norm_tiles.suits(x) else None
            x = self._norm(cast(nn.GroupNorm, stack.norm), x, relu=False, sums=sums)
            following = stacks[index + 1].entry if index + 1 < len(stacks) else None
            pooled = own and tower.fits(x)
            if pooled:
                z, skip = self._towers[index](x, cached=cached, sums=sums, real=real), None
            else:
                z, skip = self._blocks(stack, x, following)
        return cast(Tensor, _Features.apply(z, skip, self.flat))

    def head(self, features: Tensor) -> Tensor:
        """Return the latents of what :meth:`features` returned."""
        return self._encoder.head(features)

    def _enter(self, images: Tensor, *, cached: bool) -> Tensor:
        """The first stack's convolution and max-pool."""
        weight, bias = self._entry.weight, cast(nn.Parameter, self._entry.bias)
        if self._spread is None:
            x = prepare(images, self._dtype)
            z = cast(Tensor, _EntryConv.apply(x, weight, self._entry_half, self.flat.sink))
            return self._pool(z, bias)
        spread = self._spread if cached else self._spread_weights(torch.empty_like(self._spread))
        return cast(Tensor, _Entry.apply(images, weight, bias, spread, torch.is_grad_enabled(), self.flat.sink))

    @torch.no_grad()
    def _spread_weights(self, into: Tensor) -> Tensor:
        return entry_pool.spread(self._entry.weight, cast(Tensor, self._entry.bias), into)

    def _blocks(self, stack: Stack, x: Tensor, following: NormConv | None) -> tuple[Tensor, Tensor | None]:
        """A stack's two blocks, before the last ReLU and sum; if another stack follows, its convolution too."""
        first, second = (cast(ResidualBlock, block) for block in stack.blocks)
        x, normed = self._skip_norm(x, _group_norm(first.first))
        z = self._block(first, normed)
        x, normed = self._add_norm(z, x, _group_norm(second.first))
        z = self._block(second, normed)
        if following is None:
            return z, x
        _, normed = self._add_norm(z, x, _group_norm(following))
        return self._conv(following.conv, normed), None

    def _block(self, block: ResidualBlock, normed: Tensor) -> Tensor:
        """Both convolutions of a block, from its normed input to before its last ReLU."""
        z = self._conv(block.first.conv, normed)
        return self._conv(block.second.conv, self._norm(_group_norm(block.second), z, relu=True))

    def _conv(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        return cast(Tensor, _Conv.apply(x, layer.weight, self.weight(layer), self.flat.pending))

    def _pool(self, z: Tensor, bias: nn.Parameter | None) -> Tensor:
        return cast(Tensor, _Pool.apply(z, bias, self.flat.sink))

    def _norm(self, layer: nn.GroupNorm, z: Tensor, *, relu: bool, sums: Tensor | None = None) -> Tensor:
        return cast(Tensor, _Norm.apply(z, layer.weight, layer.bias, layer.eps, relu, self.flat.sink, sums))

    def _skip_norm(self, x: Tensor, norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
        arguments = (x, norm.weight, norm.bias, norm.eps, self.flat.sink)
        return cast(tuple[Tensor, Tensor], _SkipNorm.apply(*arguments))

    def _add_norm(self, z: Tensor, skip: Tensor, norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
        arguments = (z, skip, norm.weight, norm.bias, norm.eps, self.flat.sink)
        return cast(tuple[Tensor, Tensor], _AddNorm.apply(*arguments))

    def finish_backward(self) -> None:
        """Take the gradients' scale back out of the convolutional part."""
        self.flat.unscale()


def _inner_layers(encoder: ResidualEncoder) -> list[list[NormConv]]:
    """Of each stack, the blocks' convolutions and the one that follows them."""
    stacks = [cast(Stack, module) for module in encoder.stacks]
    inner = [[layer for block in s.blocks for layer in (block.first, block.second)] for s in stacks]
    for layers, following in zip(inner, stacks[1:], strict=False):
        layers.append(following.entry)
    return cast(list[list[NormConv]], inner)


def supports(encoder: nn.Module) -> bool:
    """Whether this encoder can be accelerated: residual, normed, channels in powers of two; images of any size."""
    if not isinstance(encoder, ResidualEncoder):
        return False
    if cast(Stack, encoder.stacks[0]).entry.conv.in_channels > MOST_INPUTS:
        return False
    norms = [cast(Stack, stack).norm for stack in encoder.stacks]
    return all(n is not None and n.num_channels in (16, 32, 64, 128, 256, 512) for n in norms)
