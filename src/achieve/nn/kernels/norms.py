"""Triton kernels of the encoder's norms.

Their plain twin, which defines what is computed, is `Stack` in `nn/encoder.py`.

Images are stored channels last. A group norm with one group is a mean and a deviation over a whole image: one program
reads an image twice, the second time from cache, and does what stands around the norm (ReLU, the residual addition) on
the way, so that no intermediate touches memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of an image a program handles at once, and how many of them a warp takes: the best of those tried on an H200
# (benchmarks/README.md). An image that fits into one tile is read once.
TILE = 8192
PER_WARP = 1024


@triton.jit
def _tile(image, start, pixels: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr):
    """Where the pixels of an image from ``start`` on lie, and which of them exist."""
    rows = tl.arange(0, ROWS)
    at = image.to(tl.int64) * pixels * C + start * C + (rows[:, None] * C + tl.arange(0, C)[None, :])
    return at, (start + rows < pixels)[:, None]


@triton.jit
def _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU: tl.constexpr, ADD: tl.constexpr):
    """What a norm sees: ``z``, ``relu(z)`` or ``relu(z) + skip``; the sum is rounded as it is stored."""
    x = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        x = tl.maximum(x, 0.0)
    if ADD:
        x += tl.load(skip_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = x.to(sum_ptr.dtype.element_ty).to(tl.float32)
    return x


@triton.jit
def _norm_forward(
    z_ptr, skip_ptr, sum_ptr, out_ptr, gain_ptr, bias_ptr, mean_ptr, rstd_ptr, sums_ptr, eps,
    pixels: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    size = pixels * C
    gain = tl.load(gain_ptr + tl.arange(0, C))[None, :]
    bias = tl.load(bias_ptr + tl.arange(0, C))[None, :]
    if pixels <= ROWS:
        # The whole image fits into the program's registers: one read.
        at, inside = _tile(image, 0, pixels, C, ROWS)
        x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
        mean = tl.sum(tl.sum(x, 1), 0) / size
        centred = tl.where(inside, x - mean, 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, 1), 0) / size + eps)
        if ADD:
            tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
        y = (centred * (gain * rstd) + bias).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + at, y, mask=inside)
        total = tl.where(inside, y.to(tl.float32), 0.0)
        square = total * total
    else:
        total = tl.zeros([ROWS, C], tl.float32)
        square = tl.zeros([ROWS, C], tl.float32)
        for start in range(0, pixels, ROWS):
            at, inside = _tile(image, start, pixels, C, ROWS)
            x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
            if ADD:
                tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
            total += x
            square += x * x
        mean = tl.sum(tl.sum(total, 1), 0) / size
        variance = tl.sum(tl.sum(square, 1), 0) / size - mean * mean
        rstd = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
        total = tl.zeros([ROWS, C], tl.float32)
        square = tl.zeros([ROWS, C], tl.float32)
        for start in range(0, pixels, ROWS):
            at, inside = _tile(image, start, pixels, C, ROWS)
            x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
            y = ((x - mean) * (gain * rstd) + bias).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + at, y, mask=inside)
            if SUMS:
                seen = tl.where(inside, y.to(tl.float32), 0.0)
                total += seen
                square += seen * seen
    if SUMS:
        tl.store(sums_ptr + image * 2, tl.sum(tl.sum(total, 1), 0))
        tl.store(sums_ptr + image * 2 + 1, tl.sum(tl.sum(square, 1), 0))
    tl.store(mean_ptr + image, mean)
    tl.store(rstd_ptr + image, rstd)


@triton.jit
def _load_gradient(grad_ptr, x_ptr, at, inside, mean, rstd, RELU: tl.constexpr, ADD: tl.constexpr):
    """The gradient of a norm's output; what :func:`norm_forward` kept of its input; that input, normed."""
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    kept = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.maximum(kept, 0.0) if RELU and not ADD else kept
    return grad, kept, (x - mean) * rstd


@triton.jit
def _store_gradients(
    grad, normed, raw, grad_sum_ptr, z_ptr, grad_z_ptr, grad_skip_ptr, at, inside, gain, rstd, shift, slope,
    RELU: tl.constexpr, ADD: tl.constexpr, HAS_GRAD_SUM: tl.constexpr,
):  # fmt: skip
    result = rstd * (grad * gain[None, :] - shift - normed * slope)
    if HAS_GRAD_SUM:
        result += tl.load(grad_sum_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        tl.store(grad_skip_ptr + at, result.to(grad_skip_ptr.dtype.element_ty), mask=inside)
        raw = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        result = tl.where(raw > 0, result, 0.0)
    tl.store(grad_z_ptr + at, result.to(grad_z_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    grad_ptr, grad_sum_ptr, x_ptr, z_ptr, gain_ptr, mean_ptr, rstd_ptr,
    grad_z_ptr, grad_skip_ptr, grad_gain_ptr, grad_bias_ptr,
    pixels: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr,
    HAS_GRAD_SUM: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    columns = tl.arange(0, C)
    mean = tl.load(mean_ptr + image)
    rstd = tl.load(rstd_ptr + image)
    gain = tl.load(gain_ptr + columns)
    size = pixels * C
    if pixels <= ROWS:
        at, inside = _tile(image, 0, pixels, C, ROWS)
        grad, raw, normed = _load_gradient(grad_ptr, x_ptr, at, inside, mean, rstd, RELU, ADD)
        grad_gain = tl.sum(grad * normed, 0)
        grad_bias = tl.sum(grad, 0)
        shift = tl.sum(grad_bias * gain, 0) / size
        slope = tl.sum(grad_gain * gain, 0) / size
        _store_gradients(
            grad, normed, raw, grad_sum_ptr, z_ptr, grad_z_ptr, grad_skip_ptr, at, inside, gain, rstd, shift, slope,
            RELU, ADD, HAS_GRAD_SUM,
        )  # fmt: skip
    else:
        by_gain = tl.zeros([ROWS, C], tl.float32)
        by_bias = tl.zeros([ROWS, C], tl.float32)
        for start in range(0, pixels, ROWS):
            at, inside = _tile(image, start, pixels, C, ROWS)
            grad, _, normed = _load_gradient(grad_ptr, x_ptr, at, inside, mean, rstd, RELU, ADD)
            by_gain += grad * normed
            by_bias += grad
        grad_gain = tl.sum(by_gain, 0)
        grad_bias = tl.sum(by_bias, 0)
        shift = tl.sum(grad_bias * gain, 0) / size
        slope = tl.sum(grad_gain * gain, 0) / size
        for start in range(0, pixels, ROWS):
            at, inside = _tile(image, start, pixels, C, ROWS)
            grad, raw, normed = _load_gradient(grad_ptr, x_ptr, at, inside, mean, rstd, RELU, ADD)
            _store_gradients(
                grad, normed, raw, grad_sum_ptr, z_ptr, grad_z_ptr, grad_skip_ptr, at, inside, gain, rstd, shift,
                slope, RELU, ADD, HAS_GRAD_SUM,
            )  # fmt: skip
    tl.atomic_add(grad_gain_ptr + columns, grad_gain, sem="relaxed")
    tl.atomic_add(grad_bias_ptr + columns, grad_bias, sem="relaxed")


def _tiling(channels: int, pixels: int) -> dict[str, int]:
    rows = max(1, min(TILE // channels, triton.next_power_of_2(pixels)))
    return {"ROWS": rows, "num_warps": max(1, channels * rows // PER_WARP)}


def norm_forward(
    z: Tensor,
    skip: Tensor | None,
    gain: Tensor,
    bias: Tensor,
    eps: float,
    *,
    relu: bool,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x = relu(z) + skip``, ``y = norm(x)``: returns ``x`` (``z`` itself without skip), ``y``, mean, rstd.

    ``sums`` [N, 2, 1], if given, receives the sums of each image of ``y`` and of its square.
    """
    n, c, h, w = z.shape
    out = torch.empty_like(z)
    x = torch.empty_like(z) if skip is not None else z
    mean = torch.empty(n, device=z.device)
    rstd = torch.empty(n, device=z.device)
    _norm_forward[(n,)](
        z, z if skip is None else skip, x, out, gain, bias, mean, rstd, mean if sums is None else sums, eps,
        pixels=h * w, C=c, RELU=relu, ADD=skip is not None, SUMS=sums is not None, **_tiling(c, h * w),
    )  # fmt: skip
    return x, out, mean, rstd


def norm_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    x: Tensor,
    z: Tensor,
    gain: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    relu: bool,
    add: bool,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of :func:`norm_forward` for ``z``, ``skip`` (None without), gain and bias, these added ``into``.

    ``grad_sum`` is that of ``x`` from elsewhere.
    """
    n, c, h, w = x.shape
    grad_z = torch.empty_like(x)
    grad_skip = torch.empty_like(x) if add else None
    grad_gain, grad_bias = torch.zeros(2, c, device=x.device) if into is None else into
    _norm_backward[(n,)](
        grad, grad if grad_sum is None else grad_sum, x, z, gain, mean, rstd,
        grad_z, grad_z if grad_skip is None else grad_skip, grad_gain, grad_bias,
        pixels=h * w, C=c, RELU=relu, ADD=add, HAS_GRAD_SUM=grad_sum is not None,
        **_tiling(c, h * w),
    )  # fmt: skip
    return grad_z, grad_skip, grad_gain, grad_bias
