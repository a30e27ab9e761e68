"""Triton kernels of size-preserving convolutions in half precision, and of what lies between the library's.

Activations lie pixel by pixel (channels last) but for those of the last layer, which the dense layer reads channel by
channel: the order changes there. Few images, as in a rollout, are convolved here too, bias and ReLU included: a library
kernel for them would be as quick, but would need another two around it.

Their plain twin, which defines what is computed, is `SizePreservingEncoder.features`, in `nn/encoder.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.output import MOST_PARTS, power_of_two

# Pixels of a program: fewer where there are few images, for enough programs.
PIXELS = 128
FEW_PIXELS = 32
MANY = 32768
# Of the first convolution's inputs, taps times channels, those taken at a time.
INPUTS = 128
# Programs that add up a gradient: few that leave much behind, more where they only pass over numbers, and how many of
# those each handles at once.
FEW_PROGRAMS = 264
PROGRAMS = 1056
TILE = 4096


@triton.jit
def _patches(image_ptr, pixel, k, height, width, live, C: tl.constexpr, SIZE: tl.constexpr):
    """What the first convolution sees: input ``k`` (its row, column and channel) of the patch around a pixel."""
    down = k // (SIZE * C) - SIZE // 2
    right = k % (SIZE * C) // C - SIZE // 2
    y = pixel // width % height + down
    x = pixel % width + right
    inside = live & (k < SIZE * SIZE * C) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return tl.load(image_ptr + (pixel + down * width + right) * C + k % C, mask=inside, other=0)


@triton.jit
def _enter(
    image_ptr, weight_ptr, bias_ptr, out_ptr, pixels, height, width,
    C: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o = tl.arange(0, OUT)
    live = (pixel < pixels)[:, None]
    total = tl.zeros([ROWS, OUT], tl.float32)
    for start in tl.static_range(0, SIZE * SIZE * C, INPUTS):
        k = start + tl.arange(0, INPUTS)
        patch = _patches(image_ptr, pixel[:, None], k[None, :], height, width, live, C, SIZE)
        at = weight_ptr + o[None, :] * (SIZE * SIZE * C) + k[:, None]
        weight = tl.load(at, mask=(k < SIZE * SIZE * C)[:, None], other=0.0)
        total = tl.dot(patch.to(weight.dtype), weight, total)
    total = tl.maximum(total * (1 / 255) + tl.load(bias_ptr + o)[None, :], 0.0)
    at = out_ptr + pixel.to(tl.int64)[:, None] * OUT + o[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["steps"])
def _enter_backward(
    grad_ptr, y_ptr, image_ptr, out_ptr, bias_ptr, pixels, height, width, steps,
    C: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Sums over a stretch of pixels: the weight's gradient [stretches, inputs, O], the bias's [stretches, O]."""
    stretch = tl.program_id(0)
    chunk = tl.program_id(1)
    o = tl.arange(0, OUT)
    k = chunk * INPUTS + tl.arange(0, INPUTS)
    total = tl.zeros([INPUTS, OUT], tl.float32)
    by_bias = tl.zeros([OUT], tl.float32)
    for step in range(steps):
        pixel = (stretch * steps + step) * ROWS + tl.arange(0, ROWS)
        live = pixel < pixels
        at = pixel.to(tl.int64)[:, None] * OUT + o[None, :]
        grad = tl.load(grad_ptr + at, mask=live[:, None], other=0.0)
        y = tl.load(y_ptr + at, mask=live[:, None], other=0.0)
        grad = tl.where(y > 0, grad, 0.0).to(grad_ptr.dtype.element_ty)
        patch = _patches(image_ptr, pixel[None, :], k[:, None], height, width, live[None, :], C, SIZE)
        total = tl.dot(patch.to(grad.dtype), grad, total)
        by_bias += tl.sum(grad.to(tl.float32), 0)
    at = (stretch * tl.num_programs(1) * INPUTS + k)[:, None] * OUT + o[None, :]
    tl.store(out_ptr + at, total * (1 / 255))
    if chunk == 0:
        tl.store(bias_ptr + stretch * OUT + o, by_bias)


@triton.jit
def _convolve(
    x_ptr, weight_ptr, bias_ptr, out_ptr, pixels, height, width, stride_image, stride_pixel, stride_channel,
    C: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = pixel % width
    row = pixel // width % height
    c = tl.arange(0, C)
    o = tl.arange(0, OUT)
    total = tl.zeros([ROWS, OUT], tl.float32)
    for tap in range(SIZE * SIZE):
        down = tap // SIZE - SIZE // 2
        right = tap % SIZE - SIZE // 2
        inside = (pixel < pixels) & (row + down >= 0) & (row + down < height)
        inside = inside & (column + right >= 0) & (column + right < width)
        at = x_ptr + (pixel + down * width + right)[:, None] * C + c[None, :]
        x = tl.load(at, mask=inside[:, None], other=0.0)
        weight = tl.load(weight_ptr + o[None, :] * (SIZE * SIZE * C) + tap * C + c[:, None])
        total = tl.dot(x, weight, total)
    total = tl.maximum(total + tl.load(bias_ptr + o)[None, :], 0.0)
    image = pixel // (height * width)
    at = image * stride_image + (pixel - image * (height * width)) * stride_pixel
    at = out_ptr + at[:, None] + o[None, :] * stride_channel
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=(pixel < pixels)[:, None])


@triton.jit
def _bias_relu(z_ptr, bias_ptr, size, C: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + at, mask=at < size, other=0.0).to(tl.float32)
    z = tl.maximum(z + tl.load(bias_ptr + at % C), 0.0)
    tl.store(z_ptr + at, z.to(z_ptr.dtype.element_ty), mask=at < size)


@triton.jit(do_not_specialize=["steps"])
def _relu_backward(
    grad_ptr, y_ptr, out_ptr, bias_ptr, pixels, steps, C: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The gradient where ``y`` is positive; its sums over stretches of pixels [stretches, C]."""
    stretch = tl.program_id(0)
    c = tl.arange(0, C)
    by_bias = tl.zeros([C], tl.float32)
    for step in range(steps):
        pixel = (stretch * steps + step) * ROWS + tl.arange(0, ROWS)
        live = (pixel < pixels)[:, None]
        at = pixel.to(tl.int64)[:, None] * C + c[None, :]
        grad = tl.load(grad_ptr + at, mask=live, other=0.0)
        grad = tl.where(tl.load(y_ptr + at, mask=live, other=0.0) > 0, grad, 0.0)
        tl.store(out_ptr + at, grad.to(out_ptr.dtype.element_ty), mask=live)
        by_bias += tl.sum(grad.to(tl.float32), 0)
    tl.store(bias_ptr + stretch * C + c, by_bias)


@triton.jit
def _to_rows(z_ptr, bias_ptr, out_ptr, pixels, C: tl.constexpr, ROWS: tl.constexpr):
    image = tl.program_id(0).to(tl.int64) * pixels * C
    pixel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, C)
    live = (pixel < pixels)[:, None]
    z = tl.load(z_ptr + image + pixel[:, None] * C + c[None, :], mask=live, other=0.0).to(tl.float32)
    z = tl.maximum(z + tl.load(bias_ptr + c)[None, :], 0.0)
    tl.store(out_ptr + image + c[None, :] * pixels + pixel[:, None], z.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["parts"])
def _rows_backward(
    grad_ptr, rows_ptr, largest_ptr, given_ptr, inverse_ptr, out_ptr, bias_ptr, pixels, parts,
    HEADROOM: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    factor, inverse = power_of_two(largest_ptr, parts, HEADROOM, PARTS)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse_ptr, inverse * tl.load(given_ptr))
    image = tl.program_id(0).to(tl.int64) * pixels * C
    pixel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, C)
    live = (pixel < pixels)[:, None]
    at = image + c[None, :] * pixels + pixel[:, None]
    grad = tl.load(grad_ptr + at, mask=live, other=0.0).to(tl.float32) * factor
    grad = tl.where(tl.load(rows_ptr + at, mask=live, other=0.0) > 0, grad, 0.0)
    tl.store(out_ptr + image + pixel[:, None] * C + c[None, :], grad.to(out_ptr.dtype.element_ty), mask=live)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(bias_ptr + program * C + c, tl.sum(grad, 0))


def _stretches(pixels: int, rows: int, programs: int) -> tuple[int, int]:
    """How many stretches to cut pixels into, and the steps of each."""
    steps = triton.cdiv(pixels, rows * programs)
    return triton.cdiv(pixels, rows * steps), steps


def _empty(n: int, c: int, h: int, w: int, like: Tensor) -> Tensor:
    return torch.empty(n, c, h, w, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def enter(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``relu(conv(images / 255) + bias)``, channels last.

    Args:
        images: bytes [B, H, W, C].
        weight: in half precision, channels last [O, C, S, S].
        bias: float32 [O].
    """
    n, h, w, c = images.shape
    outputs, size = weight.shape[0], weight.shape[2]
    out = _empty(n, outputs, h, w, weight)
    pixels = n * h * w
    rows = PIXELS if pixels > MANY else FEW_PIXELS
    _enter[(triton.cdiv(pixels, rows),)](
        images, weight, bias, out, pixels, h, w,
        C=c, OUT=outputs, SIZE=size, ROWS=rows, INPUTS=INPUTS, num_warps=8,
    )  # fmt: skip
    return out


def enter_backward(grad: Tensor, y: Tensor, images: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the gradients by weight and bias of :func:`enter`, float32; ``y`` is what it returned."""
    n, h, w, c = images.shape
    outputs = grad.shape[1]
    pixels = n * h * w
    rows = 64
    stretches, steps = _stretches(pixels, rows, FEW_PROGRAMS)
    chunks = triton.cdiv(size * size * c, INPUTS)
    parts = torch.empty(stretches, chunks * INPUTS, outputs, device=grad.device)
    by_bias = torch.empty(stretches, outputs, device=grad.device)
    _enter_backward[(stretches, chunks)](
        grad, y, images, parts, by_bias, pixels, h, w, steps,
        C=c, OUT=outputs, SIZE=size, ROWS=rows, INPUTS=INPUTS, num_warps=8,
    )  # fmt: skip
    total = parts[:, : size * size * c].sum(0)
    return total.view(size, size, c, outputs).permute(3, 2, 0, 1), by_bias.sum(0)


def convolve(x: Tensor, weight: Tensor, bias: Tensor, *, as_rows: bool) -> Tensor:
    """Return ``relu(conv(x) + bias)``, for few images; ``as_rows``: channel by channel."""
    n, c, h, w = x.shape
    outputs, size = weight.shape[0], weight.shape[2]
    if as_rows:
        out = torch.empty(n, outputs, h, w, dtype=x.dtype, device=x.device)
        strides = (outputs * h * w, 1, h * w)
    else:
        out = _empty(n, outputs, h, w, x)
        strides = (outputs * h * w, outputs, 1)
    pixels = n * h * w
    _convolve[(triton.cdiv(pixels, FEW_PIXELS),)](
        x, weight, bias, out, pixels, h, w, *strides,
        C=c, OUT=outputs, SIZE=size, ROWS=FEW_PIXELS, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def bias_relu_(z: Tensor, bias: Tensor) -> Tensor:
    """Return ``relu(z + bias)``, in place; ``z`` is channels last."""
    _bias_relu[(triton.cdiv(z.numel(), TILE),)](z, bias, z.numel(), C=z.shape[1], BLOCK=TILE, num_warps=8)
    return z


def relu_backward(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients by ``z`` and by the bias of ``y = relu(z + bias)``, the latter in float32."""
    n, c, h, w = y.shape
    rows = max(1, TILE // c)
    stretches, steps = _stretches(n * h * w, rows, PROGRAMS)
    out = torch.empty_like(y)
    by_bias = torch.empty(stretches, c, device=y.device)
    _relu_backward[(stretches,)](grad, y, out, by_bias, n * h * w, steps, C=c, ROWS=rows, num_warps=8)
    return out, by_bias.sum(0)


def to_rows(z: Tensor, bias: Tensor) -> Tensor:
    """Return ``relu(z + bias)``, channel by channel."""
    n, c, h, w = z.shape
    out = torch.empty(n, c, h, w, dtype=z.dtype, device=z.device)
    rows = TILE // c
    _to_rows[(n, triton.cdiv(h * w, rows))](z, bias, out, h * w, C=c, ROWS=rows, num_warps=8)
    return out


def rows_backward(
    grad: Tensor, rows: Tensor, largest: Tensor, given: Tensor, inverse: Tensor, headroom: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`to_rows` by ``z``, and by the bias in float32, both scaled.

    Args:
        grad: contiguous, and scaled already.
        rows: what it returned.
        largest: the largest magnitudes of ``grad``, in parts.
        given: the way back from the scale that ``grad`` has.
        inverse: receives the way back from the scale of what is returned.
        headroom: its largest entry is 2^-headroom.
    """
    n, c, h, w = rows.shape
    out = _empty(n, c, h, w, rows)
    at_once = TILE // c
    grid = (n, triton.cdiv(h * w, at_once))
    by_bias = torch.empty(grid[0] * grid[1], c, device=rows.device)
    _rows_backward[grid](
        grad, rows, largest, given, inverse, out, by_bias, h * w, len(largest),
        HEADROOM=headroom, PARTS=MOST_PARTS, C=c, ROWS=at_once, num_warps=8,
    )  # fmt: skip
    return out, by_bias.sum(0)
