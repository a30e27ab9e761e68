"""Triton kernels of the encoder's max-pools, with the bias and the ReLU that follow.

Their plain twin, which defines what is computed, is `Stack` in `nn/encoder.py`. Images are stored channels last. A pool
remembers which of its nine inputs won in a byte; its backward pass reads that byte in place of the inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _place(height, width, C: tl.constexpr, BLOCK: tl.constexpr):
    """A program's stretch of a row: image and row; of each element, column, channel, where it lies, if it exists."""
    row = tl.program_id(0)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64) * width * C + number
    return row // height, row % height, number // C, number % C, at, number < width * C


@triton.jit
def _pool_forward(
    z_ptr, bias_ptr, out_ptr, winner_ptr, H, W, OH, OW,
    C: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    n, oh, ow, c, at, inside = _place(OH, OW, C, BLOCK)
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
    tl.store(out_ptr + at, best.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(winner_ptr + at, winner.to(tl.uint8), mask=inside)


@triton.jit
def _pool_backward(
    grad_ptr, winner_ptr, out_ptr, H, W, OH, OW, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    n, h, w, c, into, inside = _place(H, W, C, BLOCK)
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
    tl.store(out_ptr + into, total.to(out_ptr.dtype.element_ty), mask=inside)


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


def _channels_last(n: int, c: int, h: int, w: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((n, c, h, w), dtype=dtype, device=device, memory_format=torch.channels_last)
