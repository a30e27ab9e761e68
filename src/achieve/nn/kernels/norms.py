"""Triton kernels of the encoder's norms and pools, and of the transport solver.

Their plain twins, which define what is computed, are `Stack` in `nn/encoder.py` and `partial_transport` in
`algo/transport.py`.

Images are stored channels last. A group norm with one group is a mean and a deviation over a whole image: one program
reads an image twice, the second time from cache, and does what stands around the norm (ReLU, the residual addition) on
the way, so that no intermediate touches memory. The max-pool remembers which of its nine inputs won in a byte; its
backward pass reads that byte in place of the inputs.
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
# Rows or columns of a transport problem that still fit into a program's registers; the plain solver takes wider ones.
WIDEST_TRANSPORT = 128


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
    z_ptr, skip_ptr, sum_ptr, out_ptr, gain_ptr, bias_ptr, mean_ptr, rstd_ptr, eps,
    pixels: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    base = image.to(tl.int64) * pixels * C
    rows = tl.arange(0, ROWS)
    offsets = rows[:, None] * C + tl.arange(0, C)[None, :]
    size = pixels * C
    gain = tl.load(gain_ptr + tl.arange(0, C))[None, :]
    bias = tl.load(bias_ptr + tl.arange(0, C))[None, :]
    if pixels <= ROWS:
        # The whole image fits into the program's registers: one read.
        at = base + offsets
        inside = (rows < pixels)[:, None]
        x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
        mean = tl.sum(tl.sum(x, 1), 0) / size
        centred = tl.where(inside, x - mean, 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, 1), 0) / size + eps)
        if ADD:
            tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
        y = centred * (gain * rstd) + bias
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        total = tl.zeros([ROWS, C], tl.float32)
        square = tl.zeros([ROWS, C], tl.float32)
        for start in range(0, pixels, ROWS):
            at = base + start * C + offsets
            inside = (start + rows < pixels)[:, None]
            x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
            if ADD:
                tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
            total += x
            square += x * x
        mean = tl.sum(tl.sum(total, 1), 0) / size
        variance = tl.sum(tl.sum(square, 1), 0) / size - mean * mean
        rstd = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
        for start in range(0, pixels, ROWS):
            at = base + start * C + offsets
            inside = (start + rows < pixels)[:, None]
            x = _input(z_ptr, skip_ptr, sum_ptr, at, inside, RELU, ADD)
            y = (x - mean) * (gain * rstd) + bias
            tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + image, mean)
    tl.store(rstd_ptr + image, rstd)


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
    base = image.to(tl.int64) * pixels * C
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, C)
    offsets = rows[:, None] * C + columns[None, :]
    mean = tl.load(mean_ptr + image)
    rstd = tl.load(rstd_ptr + image)
    gain = tl.load(gain_ptr + columns)
    size = pixels * C
    if pixels <= ROWS:
        at = base + offsets
        inside = (rows < pixels)[:, None]
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
        raw = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.maximum(raw, 0.0) if RELU and not ADD else raw
        normed = (x - mean) * rstd
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
            at = base + start * C + offsets
            inside = (start + rows < pixels)[:, None]
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
            raw = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
            x = tl.maximum(raw, 0.0) if RELU and not ADD else raw
            by_gain += grad * ((x - mean) * rstd)
            by_bias += grad
        grad_gain = tl.sum(by_gain, 0)
        grad_bias = tl.sum(by_bias, 0)
        shift = tl.sum(grad_bias * gain, 0) / size
        slope = tl.sum(grad_gain * gain, 0) / size
        for start in range(0, pixels, ROWS):
            at = base + start * C + offsets
            inside = (start + rows < pixels)[:, None]
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
            raw = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
            x = tl.maximum(raw, 0.0) if RELU and not ADD else raw
            normed = (x - mean) * rstd
            _store_gradients(
                grad, normed, raw, grad_sum_ptr, z_ptr, grad_z_ptr, grad_skip_ptr, at, inside, gain, rstd, shift,
                slope, RELU, ADD, HAS_GRAD_SUM,
            )  # fmt: skip
    tl.atomic_add(grad_gain_ptr + columns, grad_gain, sem="relaxed")
    tl.atomic_add(grad_bias_ptr + columns, grad_bias, sem="relaxed")


@triton.jit
def _pool_forward(
    z_ptr, bias_ptr, out_ptr, winner_ptr, H, W, OH, OW,
    C: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    # One program: a stretch of one row of the output.
    row = tl.program_id(0)
    n = row // OH
    oh = row % OH
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < OW * C
    c = column % C
    ow = column // C
    image = z_ptr + n.to(tl.int64) * H * W * C
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.full([BLOCK], 9, tl.int32)
    for tap in tl.static_range(9):
        h = 2 * oh - 1 + tap // 3
        w = 2 * ow - 1 + tap % 3
        ok = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        value = tl.load(image + (h * W + w) * C + c, mask=ok, other=float("-inf")).to(tl.float32)
        better = value > best
        best = tl.where(better, value, best)
        winner = tl.where(better, tap, winner)
    if BIAS:
        best += tl.load(bias_ptr + c, mask=inside, other=0.0)
    winner = tl.where(best > 0, winner, 9)  # nothing flows back through a closed ReLU
    best = tl.maximum(best, 0.0)
    at = row.to(tl.int64) * OW * C + column
    tl.store(out_ptr + at, best.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(winner_ptr + at, winner.to(tl.uint8), mask=inside)


@triton.jit
def _pool_backward(
    grad_ptr, winner_ptr, out_ptr, H, W, OH, OW, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # One program: a stretch of one row of the input.
    row = tl.program_id(0)
    n = row // H
    h = row % H
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < W * C
    c = column % C
    w = column // C
    base = n.to(tl.int64) * OH * OW * C
    total = tl.zeros([BLOCK], tl.float32)
    # An odd row lies in two windows, as the last row of one and the first of the next; an even row in one.
    for down in tl.static_range(2):
        oh = h // 2 + down
        row_ok = (oh < OH) & ((down == 0) | (h % 2 == 1))
        for right in tl.static_range(2):
            ow = w // 2 + right
            ok = inside & row_ok & (ow < OW) & ((right == 0) | (w % 2 == 1))
            tap = (h - 2 * oh + 1) * 3 + (w - 2 * ow + 1)
            at = base + (oh * OW + ow) * C + c
            winner = tl.load(winner_ptr + at, mask=ok, other=9).to(tl.int32)
            grad = tl.load(grad_ptr + at, mask=ok, other=0.0).to(tl.float32)
            total += tl.where(winner == tap, grad, 0.0)
    at = row.to(tl.int64) * W * C + column
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _pool_bias_backward(
    grad_ptr, winner_ptr, out_ptr, pixels, C: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr
):  # fmt: skip
    columns = tl.arange(0, C)
    total = tl.zeros([ROWS, C], tl.float32)
    first = tl.program_id(0) * ROWS * STEPS
    for step in range(STEPS):
        pixel = first + step * ROWS + tl.arange(0, ROWS)
        at = pixel.to(tl.int64)[:, None] * C + columns[None, :]
        inside = (pixel < pixels)[:, None]
        winner = tl.load(winner_ptr + at, mask=inside, other=9)
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(winner < 9, grad, 0.0)
    tl.atomic_add(out_ptr + columns, tl.sum(total, 0), sem="relaxed")


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


@triton.jit
def transport_plan(cost, inside, mass, reg, iterations: tl.constexpr):
    """The plan of one problem. ``cost`` and ``inside`` are [rows, columns]; ``mass`` is the smaller of the two sizes.

    Dykstra's correction of a projection that only scales is the inverse of the scaling. A plan is then the kernel times
    a factor for each row, each column and the whole, of which each projection finds one anew from the other two.
    """
    kernel = tl.where(inside, tl.exp(-cost / reg), 0.0)
    total = tl.sum(tl.sum(kernel, 1), 0)
    kernel = kernel * (mass / tl.where(total > 0, total, 1.0))
    by_column = tl.sum(kernel, 0) * 0.0 + 1.0
    by_row = tl.sum(kernel, 1) * 0.0 + 1.0
    whole = total * 0.0 + 1.0
    for _ in range(iterations):
        sums = tl.sum(kernel * by_column[None, :], 1) * whole
        by_row = tl.minimum(1.0 / tl.where(sums > 0, sums, 1.0), 1.0)
        parts = tl.sum(kernel * by_row[:, None], 0)
        sums = parts * whole
        by_column = tl.minimum(1.0 / tl.where(sums > 0, sums, 1.0), 1.0)
        total = tl.sum(parts * by_column, 0)
        whole = mass / tl.where(total > 0, total, 1.0)
    return kernel * by_row[:, None] * (by_column * whole)[None, :]


@triton.jit
def _transport(
    cost_ptr, rows_ptr, columns_ptr, out_ptr, m, n, reg,
    iterations: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0)
    rows = tl.load(rows_ptr + problem).to(tl.int32)
    columns = tl.load(columns_ptr + problem).to(tl.int32)
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inside = (i < rows) & (j < columns)
    at = problem * m * n + i * n + j
    cost = tl.load(cost_ptr + at, mask=inside, other=0.0)
    plan = transport_plan(cost, inside, tl.minimum(rows, columns).to(tl.float32), reg, iterations)
    tl.store(out_ptr + at, plan, mask=(i < m) & (j < n))


def _tiling(channels: int, pixels: int) -> dict[str, int]:
    rows = max(1, min(TILE // channels, triton.next_power_of_2(pixels)))
    return {"ROWS": rows, "num_warps": max(1, channels * rows // PER_WARP)}


def norm_forward(
    z: Tensor, skip: Tensor | None, gain: Tensor, bias: Tensor, eps: float, *, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x = relu(z) + skip``, ``y = norm(x)``: returns ``x`` (``z`` itself without skip), ``y``, mean, rstd."""
    n, c, h, w = z.shape
    out = torch.empty_like(z)
    x = torch.empty_like(z) if skip is not None else z
    mean = torch.empty(n, device=z.device)
    rstd = torch.empty(n, device=z.device)
    _norm_forward[(n,)](
        z, z if skip is None else skip, x, out, gain, bias, mean, rstd, eps,
        pixels=h * w, C=c, RELU=relu, ADD=skip is not None, **_tiling(c, h * w),
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


def pool_forward(z: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """``relu(maxpool(z) + bias)`` and which tap won (9: none, the ReLU is closed)."""
    n, c, h, w = z.shape
    oh, ow = (h + 1) // 2, (w + 1) // 2
    out = _channels_last(n, c, oh, ow, z.dtype, z.device)
    winner = _channels_last(n, c, oh, ow, torch.uint8, z.device)
    block = min(512, triton.next_power_of_2(ow * c))
    _pool_forward[(n * oh, triton.cdiv(ow * c, block))](
        z, z if bias is None else bias, out, winner, h, w, oh, ow,
        C=c, BLOCK=block, BIAS=bias is not None,
    )  # fmt: skip
    return out, winner


def pool_backward(grad: Tensor, winner: Tensor, height: int, width: int) -> Tensor:
    """The gradient of :func:`pool_forward` for its input, of that height and width."""
    n, c, oh, ow = grad.shape
    out = _channels_last(n, c, height, width, grad.dtype, grad.device)
    block = min(1024, triton.next_power_of_2(width * c))
    _pool_backward[(n * height, triton.cdiv(width * c, block))](
        grad, winner, out, height, width, oh, ow, C=c, BLOCK=block, num_warps=2
    )
    return out


def pool_bias_backward(grad: Tensor, winner: Tensor, into: Tensor | None = None) -> Tensor:
    """The gradient of :func:`pool_forward` for its bias, added ``into``: that of the output where the ReLU is open."""
    n, c, oh, ow = grad.shape
    out = torch.zeros(c, device=grad.device) if into is None else into
    rows, steps = max(1, 4096 // c), 16
    programs = triton.cdiv(n * oh * ow, rows * steps)
    _pool_bias_backward[(programs,)](grad, winner, out, n * oh * ow, C=c, ROWS=rows, STEPS=steps)
    return out


def padded_channels(inputs: int) -> int:
    """How many channels :func:`prepare` gives images of so many: eight or more suit the tensor cores."""
    return max(8, triton.next_power_of_2(inputs))


def prepare(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [B, H, W, C] -> 1/256 of them [B, 8, H, W], channels last, the added channels zero.

    Powers of two leave bytes exact in half precision.
    """
    n, h, w, c = images.shape
    outputs = padded_channels(c)
    out = _channels_last(n, outputs, h, w, dtype, images.device)
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


def _channels_last(
    n: int, c: int, h: int, w: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.empty((n, c, h, w), dtype=dtype, device=device, memory_format=torch.channels_last)


def transport_warps(size: int) -> int:
    """How many warps take a problem of that many rows and columns: the best of those tried on an H200."""
    return 4 if size <= 32 else 8


def transport(cost: Tensor, rows: Tensor, columns: Tensor, *, reg: float, iterations: int) -> Tensor:
    """The twin of :func:`achieve.algo.transport.partial_transport`: one program per problem, all in registers."""
    batch, m, n = cost.shape
    out = torch.empty(batch, m, n, device=cost.device)  # not empty_like: a cost may be a transposed view
    size = max(16, triton.next_power_of_2(max(m, n)))
    _transport[(batch,)](
        cost.contiguous(), rows.contiguous(), columns.contiguous(), out, m, n, reg,
        iterations=iterations, SIZE=size, num_warps=transport_warps(size),
    )  # fmt: skip
    return out
