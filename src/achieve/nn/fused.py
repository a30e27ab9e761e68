"""The residual encoder's convolutional part on a GPU: half-precision convolutions between fused norms and pools.

Computes what `ResidualEncoder.features` computes, from the same weights: activations are stored in half precision, sums
and statistics are float32. The default is fp16, whose ten bits of mantissa are those of the TF32 convolutions the
published runs had; `bf16` has seven, which shows in the representations, as they are differences of latents. Against
fp16's narrow range, gradients are scaled on their way in, by a power of two chosen on the device at every step, and
scaled back in :meth:`FusedEncoder.finish_backward`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.nn import convolution, kernels
from achieve.nn.encoder import ResidualBlock, ResidualEncoder, Stack
from achieve.nn.layers import NormConv

# Gradients enter the convolutions with a largest entry of 2^-HEADROOM: sums over all pixels of all images must stay
# below fp16's 65504, and what is a million times smaller above its 6e-8.
HEADROOM = 4
# Channels of an image (four stacked RGB frames have 12): the first convolution's weight gradient holds nine times as
# many numbers for each output in registers.
MOST_INPUTS = 16


class _Norm(torch.autograd.Function):
    """``norm(relu(z))``, or ``norm(z)``."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, gain: Tensor, bias: Tensor, eps: float, relu: bool) -> Tensor:
        _, out, mean, rstd = kernels.norm_forward(z, None, gain, bias, eps, relu=relu)
        ctx.save_for_backward(z, gain, mean, rstd)
        ctx.relu = relu
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        z, gain, mean, rstd = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_z, _, grad_gain, grad_bias = kernels.norm_backward(
            grad, None, z, z, gain, mean, rstd, relu=ctx.relu, add=False
        )
        return grad_z, grad_gain, grad_bias, None, None


class _AddNorm(torch.autograd.Function):
    """``x = skip + relu(z)``, and ``norm(x)`` with it."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, skip: Tensor, gain: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, out, mean, rstd = kernels.norm_forward(z, skip, gain, bias, eps, relu=True)
        ctx.save_for_backward(z, x, gain, mean, rstd)
        ctx.set_materialize_grads(False)
        return x, out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        z, x, gain, mean, rstd = ctx.saved_tensors
        grad_x, grad = grads
        if grad_x is not None:
            grad_x = grad_x.contiguous(memory_format=torch.channels_last)
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_z, grad_skip, grad_gain, grad_bias = kernels.norm_backward(
            grad, grad_x, x, z, gain, mean, rstd, relu=True, add=True
        )
        return grad_z, grad_skip, grad_gain, grad_bias, None


class _Pool(torch.autograd.Function):
    """``relu(maxpool(z) + bias)``."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor | None) -> Tensor:
        out, winner = kernels.pool_forward(z, bias)
        ctx.save_for_backward(winner)
        ctx.shape = z.shape[2:]
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (winner,) = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_bias = kernels.pool_bias_backward(grad, winner) if ctx.has_bias else None
        return kernels.pool_backward(grad, winner, *ctx.shape), grad_bias


class _EntryConv(torch.autograd.Function):
    """The first convolution, on what :func:`kernels.prepare` makes of bytes: 1/256 of them, channels added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.inputs = weight.shape[1]
        return F.conv2d(x, _entry_weight(weight, x), None, padding=1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        weight = kernels.entry_weight_backward(grad, x)
        return None, weight[:, : ctx.inputs] * (256 / 255)


def _entry_weight(weight: Tensor, x: Tensor) -> Tensor:
    """The network divides bytes by 255, :func:`kernels.prepare` by 256."""
    padded = F.pad(weight * (256 / 255), (0, 0, 0, 0, 0, x.shape[1] - weight.shape[1]))
    return padded.to(x.dtype, memory_format=torch.channels_last)


class _ScaleGradient(torch.autograd.Function):
    """Half precision -> float32 forward; backward the gradient is brought to a largest entry of 2^-HEADROOM."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        ctx.inverse = inverse
        return x.float()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0]
        exponent = grad.abs().amax().clamp(min=1e-30).log2().ceil() + HEADROOM
        ctx.inverse.copy_(exponent.exp2())
        return (grad * (-exponent).exp2()).to(ctx.dtype), None


def _norm(layer: nn.GroupNorm, z: Tensor, *, relu: bool) -> Tensor:
    return cast(Tensor, _Norm.apply(z, layer.weight, layer.bias, layer.eps, relu))


def _group_norm(layer: NormConv) -> nn.GroupNorm:
    assert layer.norm is not None
    return layer.norm


def _add_norm(z: Tensor, skip: Tensor, norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
    return cast(
        tuple[Tensor, Tensor], _AddNorm.apply(z, skip, norm.weight, norm.bias, norm.eps)
    )


class FusedEncoder:
    """Computes the features of a :class:`ResidualEncoder` with norms, whose weights it shares.

    The blocks' convolutions are this package's own where the device has the tensor cores for them, else the library's.
    ``own`` says which without asking the device.
    """

    def __init__(self, encoder: ResidualEncoder, dtype: torch.dtype, *, own: bool | None = None) -> None:
        if not supports(encoder):
            raise ValueError(
                f"fused kernels need norms, channels in powers of two from 16 on, and images of at most {MOST_INPUTS} "
                "channels"
            )
        self._encoder = encoder
        self._dtype = dtype
        self._parameters = list(encoder.stacks.parameters())
        self._inverse_scale = torch.ones((), device=self._parameters[0].device)
        self._cached: dict[nn.Conv2d, Tensor] = {}
        self._use_cached = False
        self._towers: list[convolution.Tower] = []
        if convolution.supports(self._inverse_scale.device) if own is None else own:
            self._towers = [convolution.Tower(layers, dtype) for layers in _inner_layers(encoder)]

    @property
    def note(self) -> str:
        """What a run's record says of the convolutions, if they are not this package's own."""
        return "" if self._towers else " (the library's convolutions: a GPU of compute capability 8.0 has faster ones)"

    def cache_weights(self) -> None:
        """Convert the weights now, for calls of :meth:`features` with ``cached``: right while they do not change."""
        for tower in self._towers:
            tower.cache_weights()
        if self._towers:
            return
        with torch.no_grad():
            for layer in self._encoder.stacks.modules():
                if isinstance(layer, nn.Conv2d):
                    cached = self._cached.setdefault(layer, torch.empty_like(self._half(layer)))
                    cached.copy_(layer.weight)  # in place: captured graphs read from there

    def features(self, images: Tensor, *, cached: bool = False) -> Tensor:
        """Bytes [B, H, W, C] -> [B, channels, H/8, W/8], float32."""
        self._use_cached = cached
        x = kernels.prepare(images, self._dtype)
        stacks = [cast(Stack, module) for module in self._encoder.stacks]
        z = cast(Tensor, _EntryConv.apply(x, stacks[0].entry.conv.weight))
        for index, stack in enumerate(stacks):
            x = cast(Tensor, _Pool.apply(z, stack.entry.conv.bias))
            x = _norm(cast(nn.GroupNorm, stack.norm), x, relu=False)
            following = stacks[index + 1].entry if index + 1 < len(stacks) else None
            own = bool(self._towers) and convolution.fits(x)
            z = self._towers[index](x, cached=cached) if own else self._blocks(stack, x, following)
        return cast(Tensor, _ScaleGradient.apply(z, self._inverse_scale))

    def _blocks(self, stack: Stack, x: Tensor, following: NormConv | None) -> Tensor:
        """A stack's two blocks, and if another stack follows, its convolution before the ReLU."""
        first, second = (cast(ResidualBlock, block) for block in stack.blocks)
        z = self._block(first, _norm(_group_norm(first.first), x, relu=False))
        x, normed = _add_norm(z, x, _group_norm(second.first))
        z = self._block(second, normed)
        if following is None:
            return x + torch.relu(z)
        _, normed = _add_norm(z, x, _group_norm(following))
        return self._conv(following.conv, normed)

    def _block(self, block: ResidualBlock, normed: Tensor) -> Tensor:
        """Both convolutions of a block, from its normed input to before its last ReLU."""
        z = self._conv(block.first.conv, normed)
        return self._conv(block.second.conv, _norm(_group_norm(block.second), z, relu=True))

    def _conv(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        weight = self._cached.get(layer) if self._use_cached else None
        return F.conv2d(x, self._half(layer) if weight is None else weight, None, padding=1)

    def _half(self, layer: nn.Conv2d) -> Tensor:
        return layer.weight.to(self._dtype, memory_format=torch.channels_last)

    def finish_backward(self) -> None:
        """Take the gradients' scale back out of the convolutional part."""
        grads = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_mul_(grads, self._inverse_scale)


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
