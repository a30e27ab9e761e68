"""Triton kernels of products of float32 matrices on tensor cores, as exact as without them.

Each factor is split into two TF32 numbers, which together have float32's mantissa but for its last bits, and three of
the four products of those are added up in float32 (``tf32x3``). A library's float32 product uses no tensor cores.

Their plain twin, which defines what is computed, is ``a @ b + bias``.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

# A program's columns, those of one that turns its tile, and how much of the inner dimension it takes at a time.
COLUMNS = 64
TURNED_COLUMNS = 128
DEPTH = 32
# With so many registers to a thread, two programs that turn their tile fit on a multiprocessor.
TURNED_REGISTERS = 128
# Programs that keep a GPU busy: below, the inner dimension is split among several. An H200 has 132 multiprocessors.
ENOUGH_PROGRAMS = 256
MOST_SPLITS = 16
# Elements of the sum over splits that a program takes.
BLOCK = 1024
# Side of the squares in which a matrix is transposed.
SQUARE = 64


@triton.jit(do_not_specialize=["rows"])
def _product(
    a_ptr, b_ptr, bias_ptr, out_ptr, rows, columns, inner, per_split, stride_am, stride_ak, stride_bk, stride_bn,
    BIAS: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of ``a @ b``, summed over a stretch of the inner dimension: [stretches, rows, columns].

    ``WHOLE``: the inner dimension is a multiple of ``BK``. ``TURNED``: the tile is computed as ``b.T @ a.T``, because
    tensor cores take TF32's second factor along the inner dimension alone, from shared memory, and the first, which
    comes from registers, as it is. Otherwise each element of ``b`` would be moved by itself, twice.
    """
    column_tiles = tl.cdiv(columns, BN)
    m = (tl.program_id(0) // column_tiles) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % column_tiles) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    if TURNED:
        left_at = b_ptr + n[:, None] * stride_bn
        right_at = a_ptr + m[None, :] * stride_am
        left_stride, right_stride = stride_bk, stride_ak
        left_real, right_real = (n < columns)[:, None], (m < rows)[None, :]
        total = tl.zeros([BN, BM], tl.float32)
    else:
        left_at = a_ptr + m[:, None] * stride_am
        right_at = b_ptr + n[None, :] * stride_bn
        left_stride, right_stride = stride_ak, stride_bk
        left_real, right_real = (m < rows)[:, None], (n < columns)[None, :]
        total = tl.zeros([BM, BN], tl.float32)
    first = split * per_split
    last = tl.minimum(first + per_split, inner)
    for start in range(first, last, BK):
        k = start + tl.arange(0, BK)
        left_inside = left_real
        right_inside = right_real
        if not WHOLE:
            left_inside = left_inside & (k < last)[None, :]
            right_inside = right_inside & (k < last)[:, None]
        left = tl.load(left_at + k[None, :] * left_stride, mask=left_inside, other=0.0)
        right = tl.load(right_at + k[:, None] * right_stride, mask=right_inside, other=0.0)
        total = tl.dot(left, right, total, input_precision="tf32x3")
    if TURNED:
        total = tl.trans(total)
    if BIAS:
        total += tl.load(bias_ptr + n, mask=n < columns, other=0.0)[None, :]
    at = (split * rows + m).to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(out_ptr + at, total, mask=(m < rows)[:, None] & (n < columns)[None, :])


@triton.jit(do_not_specialize=["splits"])
def _add_up(part_ptr, bias_ptr, out_ptr, size, columns, splits, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over stretches, and the bias."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(part_ptr + tl.cast(split, tl.int64) * size + at, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + at % columns, mask=inside, other=0.0)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def _transpose(x_ptr, out_ptr, rows, columns, stride_row, stride_column, SQUARE: tl.constexpr):
    """A square of ``x.T``."""
    row = tl.program_id(0) * SQUARE + tl.arange(0, SQUARE)
    column = tl.program_id(1) * SQUARE + tl.arange(0, SQUARE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    x = tl.load(x_ptr + row[:, None] * stride_row + column[None, :] * stride_column, mask=inside, other=0.0)
    tl.store(out_ptr + column[None, :].to(tl.int64) * rows + row[:, None], x, mask=inside)


def _contiguous(x: Tensor) -> Tensor:
    """Return a transposed view as a matrix of its own; the library's copy reads or writes one number at a time."""
    columns, rows = x.shape
    out = torch.empty(columns, rows, device=x.device)
    _transpose[(triton.cdiv(rows, SQUARE), triton.cdiv(columns, SQUARE))](
        x, out, rows, columns, x.stride(1), x.stride(0), SQUARE=SQUARE, num_warps=8
    )
    return out


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return ``a @ b``, with ``bias`` added to each row, written to ``out`` if given, which is contiguous.

    The factors may be transposed views. Sums are taken in a fixed order.
    """
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty(rows, columns, device=a.device) if out is None else out
    if not out.numel():
        return out
    tile_rows = 64 if rows > 32 else 32 if rows > 16 else 16
    # A layer's transposed weight lies along the inner dimension; the factors of its gradients do not.
    turned = b.stride(0) != 1
    if turned and a.stride(1) != 1:
        a = _contiguous(a)
    tile_columns = TURNED_COLUMNS if turned else COLUMNS
    tiles = triton.cdiv(rows, tile_rows) * triton.cdiv(columns, tile_columns)
    splits = max(1, min(ENOUGH_PROGRAMS // tiles, MOST_SPLITS, triton.cdiv(inner, 4 * DEPTH)))
    per_split = triton.cdiv(triton.cdiv(inner, splits), DEPTH) * DEPTH
    splits = max(1, triton.cdiv(inner, per_split))
    into = out if splits == 1 else torch.empty(splits, rows, columns, device=a.device)
    added = out if bias is None else bias
    _product[(tiles, splits)](
        a, b, added, into, rows, columns, inner, per_split, *a.stride(), *b.stride(),
        BIAS=bias is not None and splits == 1, WHOLE=inner % DEPTH == 0, TURNED=turned,
        BM=tile_rows, BN=tile_columns, BK=DEPTH,
        num_warps=8 if turned else 4, num_stages=3, maxnreg=TURNED_REGISTERS if turned else None,
    )  # fmt: skip
    if splits > 1:
        _add_up[(triton.cdiv(rows * columns, BLOCK),)](
            into, added, out, rows * columns, columns, splits, BIAS=bias is not None, BLOCK=BLOCK
        )
    return out


@cache
def supports(device: torch.device) -> bool:
    """Whether this device has tensor cores for TF32: compute capability 8.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
