"""Triton kernels of a dense layer of many inputs in half precision: products that take as long as reading its weight.

The layer is ``relu(x @ weight.T + bias)``, of a few hundred outputs of hundreds of thousands of inputs. One product of
that shape is few tiles, for few of a GPU's multiprocessors: the inputs are split among programs, and another kernel
adds up. Sums are float32 and taken in a fixed order. The plain twin is `SizePreservingEncoder.head`, in
`nn/encoder.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from achieve.nn.kernels.output import MOST_PARTS, largest, power_of_two

# Programs of a product: about two for each multiprocessor of an H200.
PROGRAMS = 256
# Rows up to which a product only waits for the weight.
FEW_ROWS = 16
BLOCK = 1024


@triton.jit
def _product(
    x_ptr, weight_ptr, out_ptr, rows, outputs, inputs, per_split,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of ``x @ weight.T``, summed over a stretch of the inputs: [stretches, rows, outputs]."""
    column_tiles = tl.cdiv(outputs, BN)
    m = (tl.program_id(0) // column_tiles) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % column_tiles) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    x_at = x_ptr + m.to(tl.int64)[:, None] * inputs
    weight_at = weight_ptr + n.to(tl.int64)[None, :] * inputs
    first = split * per_split
    last = tl.minimum(first + per_split, inputs)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(first, last, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_at + k[None, :], mask=(m < rows)[:, None] & (k < last)[None, :], other=0.0)
        weight = tl.load(weight_at + k[:, None], mask=(n < outputs)[None, :] & (k < last)[:, None], other=0.0)
        total = tl.dot(x, weight, total)
    at = (split * rows + m).to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(out_ptr + at, total, mask=(m < rows)[:, None] & (n < outputs)[None, :])


@triton.jit(do_not_specialize=["splits"])
def _finish(part_ptr, bias_ptr, out_ptr, size, outputs, splits, BLOCK: tl.constexpr):
    """The sum over stretches, bias and ReLU."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(part_ptr + tl.cast(split, tl.int64) * size + at, mask=inside, other=0.0)
    total = tl.maximum(total + tl.load(bias_ptr + at % outputs, mask=inside, other=0.0), 0.0)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit(do_not_specialize=["parts"])
def _scaled_gradient(
    grad_ptr, y_ptr, largest_ptr, inverse_ptr, out_ptr, bias_ptr, rows, outputs, parts,
    HEADROOM: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Some outputs' gradients where ``y`` is positive, scaled; their sums, not scaled."""
    factor, inverse = power_of_two(largest_ptr, parts, HEADROOM, PARTS)
    if tl.program_id(0) == 0:
        tl.store(inverse_ptr, inverse)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    for start in range(0, rows, BM):
        m = start + tl.arange(0, BM)
        at = m[:, None] * outputs + n[None, :]
        inside = (m < rows)[:, None] & (n < outputs)[None, :]
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
        grad = tl.where(tl.load(y_ptr + at, mask=inside, other=0.0) > 0, grad, 0.0)
        tl.store(out_ptr + at, (grad * factor).to(out_ptr.dtype.element_ty), mask=inside)
        total += tl.sum(grad, 0)
    tl.store(bias_ptr + n, total, mask=n < outputs)


@triton.jit
def _weight_gradient(
    grad_ptr, x_ptr, inverse_ptr, out_ptr, rows, outputs, inputs,
    ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of ``grad.T @ x``, its scale taken out."""
    # Neighbours share a stretch of the inputs, which then comes from the cache.
    row_tiles = tl.cdiv(outputs, BM)
    m = (tl.program_id(0) % row_tiles) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) // row_tiles) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, rows, BK):
        k = start + tl.arange(0, BK)
        grad_at = grad_ptr + k[None, :] * outputs + m[:, None]
        grad = tl.load(grad_at, mask=(m < outputs)[:, None] & (k < rows)[None, :], other=0.0)
        x_at = x_ptr + k.to(tl.int64)[:, None] * inputs + n[None, :]
        x = tl.load(x_at, mask=(k < rows)[:, None] & (n < inputs)[None, :], other=0.0)
        total = tl.dot(grad, x, total)
    total *= tl.load(inverse_ptr)
    at = out_ptr + m.to(tl.int64)[:, None] * inputs + n[None, :]
    inside = (m < outputs)[:, None] & (n < inputs)[None, :]
    if ADD:
        total += tl.load(at, mask=inside, other=0.0)
    tl.store(at, total, mask=inside)


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``relu(x @ weight.T + bias)`` in float32; both factors are contiguous and in half precision."""
    rows, inputs = x.shape
    outputs = len(weight)
    if rows <= FEW_ROWS:
        tile_rows, columns, depth, warps, stages = 16, 64, 128, 4, 4
    else:
        tile_rows, columns, depth, warps, stages = (128, 128, 64, 8, 3) if rows > 64 else (64, 128, 64, 4, 3)
    tiles = triton.cdiv(rows, tile_rows) * triton.cdiv(outputs, columns)
    splits = max(1, min(PROGRAMS // tiles, triton.cdiv(inputs, 4 * depth)))
    per_split = triton.cdiv(triton.cdiv(inputs, splits), depth) * depth
    splits = triton.cdiv(inputs, per_split)
    parts = torch.empty(splits, rows, outputs, device=x.device)
    _product[(tiles, splits)](
        x, weight, parts, rows, outputs, inputs, per_split,
        BM=tile_rows, BN=columns, BK=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    out = torch.empty(rows, outputs, device=x.device)
    block = BLOCK if rows > FEW_ROWS else 64
    _finish[(triton.cdiv(rows * outputs, block),)](
        parts, bias, out, rows * outputs, outputs, splits, BLOCK=block, num_warps=4 if rows > FEW_ROWS else 2
    )
    return out


def scaled_gradient(
    grad: Tensor, y: Tensor, inverse: Tensor, headroom: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the gradient before the ReLU, in ``dtype`` and scaled, and that by the bias, not scaled.

    Args:
        grad: by the layer's output [B, O].
        y: the output.
        inverse: receives the way back from the scale.
        headroom: the largest entry is at most 2^-headroom.
        dtype: of half precision.
    """
    rows, outputs = grad.shape
    out = torch.empty(rows, outputs, dtype=dtype, device=grad.device)
    by_bias = torch.empty(outputs, device=grad.device)
    most = largest(grad)
    _scaled_gradient[(triton.cdiv(outputs, 16),)](
        grad, y, most, inverse, out, by_bias, rows, outputs, len(most),
        HEADROOM=headroom, PARTS=MOST_PARTS, BM=128, BN=16,
    )  # fmt: skip
    return out, by_bias


def weight_gradient(grad: Tensor, x: Tensor, inverse: Tensor, into: Tensor, *, add: bool) -> None:
    """Write ``inverse * grad.T @ x`` into a contiguous float32 tensor, or add it."""
    rows, outputs = grad.shape
    inputs = x.shape[1]
    tiles = triton.cdiv(outputs, 128) * triton.cdiv(inputs, 128)
    _weight_gradient[(tiles,)](
        grad, x, inverse, into, rows, outputs, inputs, ADD=add, BM=128, BN=128, BK=64, num_warps=8, num_stages=2
    )
