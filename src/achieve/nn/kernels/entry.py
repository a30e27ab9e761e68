"""Triton kernels of the encoder's beginning: bytes to half precision, and the first convolution's weight gradient.

Their plain twins, which define what is computed, are the beginning of `ResidualEncoder.features` and `Stack.entry`, in
`nn/encoder.py`. Images are stored channels last. They stand around the library's convolution, where `entry_pool.py` is
not in force.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _prepare(image_ptr, out_ptr, pixels, IN: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, OUT)
    inside = (pixel < pixels)[:, None]
    value = tl.load(
        image_ptr + pixel[:, None] * IN + channel[None, :],
        mask=inside & (channel < IN)[None, :],
        other=0,
    )
    scaled = value.to(tl.float32) * (1.0 / 256.0)
    at = pixel[:, None] * OUT + channel[None, :]
    tl.store(out_ptr + at, scaled.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _entry_weight_backward(
    grad_ptr, image_ptr, out_ptr, pixels, H, W, factor,
    OUT: tl.constexpr, IN: tl.constexpr, WANTED: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    # A matrix product over pixels: gradients [OUT, pixels] times the nine shifted images [pixels, 9 * IN].
    output = tl.arange(0, OUT)
    column = tl.arange(0, TAPS)
    tap = column // IN
    down = tap // 3 - 1
    right = tap % 3 - 1
    total = tl.zeros([OUT, TAPS], tl.float32)
    first = tl.program_id(0) * BLOCK * STEPS
    for step in range(STEPS):
        pixel = first + step * BLOCK + tl.arange(0, BLOCK)
        inside = pixel < pixels
        h = (pixel // W) % H
        w = pixel % W
        grad = tl.load(
            grad_ptr + pixel.to(tl.int64)[None, :] * OUT + output[:, None], mask=inside[None, :], other=0.0
        )
        row = h[:, None] + down[None, :]
        col = w[:, None] + right[None, :]
        ok = inside[:, None] & (tap < 9)[None, :] & (row >= 0) & (row < H) & (col >= 0) & (col < W)
        neighbour = pixel[:, None] + down[None, :] * W + right[None, :]
        x = tl.load(image_ptr + neighbour.to(tl.int64) * IN + (column % IN)[None, :], mask=ok, other=0.0)
        total = tl.dot(grad, x, total)
    channel = column % IN
    at = output[:, None] * (9 * WANTED) + (tap * WANTED + channel)[None, :]
    tl.atomic_add(out_ptr + at, total * factor, mask=((tap < 9) & (channel < WANTED))[None, :], sem="relaxed")


def padded_channels(inputs: int) -> int:
    """How many channels :func:`prepare` gives images of so many: eight or more suit the tensor cores."""
    return max(8, triton.next_power_of_2(inputs))


def prepare(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [B, H, W, C] -> 1/256 of them [B, 8, H, W], channels last, the added channels zero.

    Powers of two leave bytes exact in half precision.
    """
    n, h, w, c = images.shape
    outputs = padded_channels(c)
    out = torch.empty((n, outputs, h, w), dtype=dtype, device=images.device, memory_format=torch.channels_last)
    pixels = n * h * w
    _prepare[(triton.cdiv(pixels, 512),)](
        images.contiguous(), out, pixels, IN=c, OUT=outputs, BLOCK=512
    )
    return out


def entry_weight_backward(
    grad: Tensor, x: Tensor, *, inputs: int, factor: float = 1.0, into: Tensor | None = None
) -> Tensor:
    """The weight gradient of a 3x3 convolution with few input channels, of its first ``inputs``: [O, inputs, 3, 3].

    It is taken times ``factor`` and added ``into``, channels last. In float32; the library's kernels for so few
    channels take several times as long.
    """
    n, outputs, h, w = grad.shape
    channels = x.shape[1]
    if into is None:
        into = torch.zeros(outputs, 3, 3, inputs, device=grad.device).permute(0, 3, 1, 2)
    block, steps = 64, 32
    _entry_weight_backward[(triton.cdiv(n * h * w, block * steps),)](
        grad, x, into, n * h * w, h, w, factor, OUT=outputs, IN=channels, WANTED=inputs,
        TAPS=triton.next_power_of_2(9 * channels), BLOCK=block, STEPS=steps,
    )  # fmt: skip
    return into
