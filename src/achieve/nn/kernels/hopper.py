"""The 3x3 convolutions of `convolution.py` for compute capability 9.0, in Gluon: what is loaded when is said by hand.

There a tile of an image is read nine times from the L2 cache, once for each tap, and that is what takes time. Here a
tile's columns lie in shared memory in four parts: every fourth column, from the first, second, third and fourth on.
What is left of one part is another part, and what is right of it, too. So with one more part at either end, four parts
in a row, from the first, the second or the third on, are the tile's pixels as the three taps of a row see them, and a
row of taps is loaded once. While it is multiplied, the next is loaded.

Triton's own language has no views into what was loaded. The arithmetic is that of `convolution.py`; tests run it with
the operations of Gluon played by PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

PARTS_OF_ROW = gl.constexpr(4)
# Of the caches, which have 128 bytes.
HALVES_OF_LINE = gl.constexpr(64)
# The one is its name in Triton 3.6, the other from 3.7 on.
wait_for_all_warps = getattr(gl, "thread_barrier", None) or gl.barrier


def describe(x: Tensor, block: list[int]) -> TensorDescriptor:
    """Describe a tensor of halves in blocks."""
    dtype = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)


@gluon.jit
def _begin_load(
    x_desc, edge_desc, weight_desc, xs, weights, loaded, step, image, top, column, wanted,
    W: gl.constexpr, K: gl.constexpr, N: gl.constexpr, FLIP: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Asks for what a step multiplies: a row of taps, ``BK`` channels. What lies outside an image reads as zero."""
    EVERY: gl.constexpr = PARTS_OF_ROW
    ROWS: gl.constexpr = BM // W
    chunks: gl.constexpr = K // BK
    stage = step % STAGES
    down = step // chunks
    channel = (step % chunks) * BK
    row = top + down - 1
    ready = loaded.index(stage)
    mbarrier.expect(ready, 2 * BK * ((EVERY + 2) * (BM // EVERY) + 3 * BN), wanted)
    first = stage * (EVERY + 2)
    centre = xs.index(first + 1)._reinterpret(x_desc.dtype, [1, EVERY, ROWS, W // EVERY, BK], x_desc.layout)
    tma.async_copy_global_to_shared(x_desc, [image, 0, row, 0, channel], ready, centre, wanted)
    left = xs.index(first)._reinterpret(x_desc.dtype, [1, 1, ROWS, W // EVERY, BK], edge_desc.layout)
    tma.async_copy_global_to_shared(edge_desc, [image, EVERY - 1, row, -1, channel], ready, left, wanted)
    right = xs.index(first + EVERY + 1)._reinterpret(x_desc.dtype, [1, 1, ROWS, W // EVERY, BK], edge_desc.layout)
    tma.async_copy_global_to_shared(edge_desc, [image, 0, row, 1, channel], ready, right, wanted)
    for i in gl.static_range(3):
        tap = down * 3 + i
        weight = weights.index(stage * 3 + i)
        if FLIP:
            tma.async_copy_global_to_shared(weight_desc, [channel, (8 - tap) * N + column], ready, weight, wanted)
        else:
            tma.async_copy_global_to_shared(weight_desc, [column, tap * K + channel], ready, weight, wanted)


@gluon.jit
def _accumulate(
    x_desc, edge_desc, weight_desc, image, top, column,
    W: gl.constexpr, K: gl.constexpr, N: gl.constexpr, FLIP: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The sum over nine taps and ``K`` channels [BN, BM]; with ``FLIP``, of the transposed convolution.

    Its pixels are in the order of the parts.
    """
    EVERY: gl.constexpr = PARTS_OF_ROW
    dtype: gl.constexpr = x_desc.dtype
    pixels: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * BK, element_bitwidth=16, rank=2)
    xs = gl.allocate_shared_memory(dtype, [STAGES * (EVERY + 2), BM // EVERY, BK], pixels)
    shape: gl.constexpr = [BK, BN] if FLIP else [BN, BK]
    weights = gl.allocate_shared_memory(dtype, [STAGES * 3, shape[0], shape[1]], weight_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(STAGES):
        mbarrier.init(loaded.index(n), count=1)
    for n in gl.static_range(STAGES - 1):
        _begin_load(
            x_desc, edge_desc, weight_desc, xs, weights, loaded, n, image, top, column, True,
            W, K, N, FLIP, BM, BN, BK, STAGES,
        )  # fmt: skip
    steps: gl.constexpr = 3 * (K // BK)
    turned: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BM, 16]
    )
    total = gl.zeros([BN, BM], gl.float32, turned)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(loaded.index(stage), (step // STAGES) & 1)
        for i in gl.static_range(3):
            x = xs.index(stage * (EVERY + 2) + i)._reinterpret(dtype, [BM, BK], pixels)
            weight = weights.index(stage * 3 + i)
            if FLIP:
                weight = weight.permute((1, 0))
            total = warpgroup_mma(weight, x.permute((1, 0)), total, is_async=True)
        # The three products of the step before are done, in all warps: its memory is free.
        total = warpgroup_mma_wait(num_outstanding=3, deps=[total])
        wait_for_all_warps()
        _begin_load(
            x_desc, edge_desc, weight_desc, xs, weights, loaded, step + STAGES - 1, image, top, column,
            step + STAGES - 1 < steps, W, K, N, FLIP, BM, BN, BK, STAGES,
        )  # fmt: skip
    total = warpgroup_mma_wait(num_outstanding=0, deps=[total])
    wait_for_all_warps()
    for n in gl.static_range(STAGES):
        mbarrier.invalidate(loaded.index(n))
    return total


@gluon.jit
def _parts(total, BM: gl.constexpr, BN: gl.constexpr):
    """The four parts of a tile [BM / 4, BN]: they lie in each thread's registers."""
    lower, upper = total.reshape([BN, 2, BM // 2]).permute((0, 2, 1)).split()
    first, second = lower.reshape([BN, 2, BM // 4]).permute((0, 2, 1)).split()
    third, fourth = upper.reshape([BN, 2, BM // 4]).permute((0, 2, 1)).split()
    return first.permute((1, 0)), second.permute((1, 0)), third.permute((1, 0)), fourth.permute((1, 0))


@gluon.jit
def _stage(total, BM: gl.constexpr, BN: gl.constexpr):
    """The four parts of a tile in shared memory, [4, BM / 4, BN]: its registers are free for what follows."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(vec=4, per_phase=1, max_phase=16, order=[1, 0])
    staged = gl.allocate_shared_memory(gl.float32, [PARTS_OF_ROW, BM // PARTS_OF_ROW, BN], layout)
    parts = _parts(total, BM, BN)
    for p in gl.static_range(PARTS_OF_ROW):
        staged.index(p).store(parts[p])
    wait_for_all_warps()
    return staged


@gluon.jit
def _add_by_class(
    total, table_ptr, rstd, mean, top, column,
    H: gl.constexpr, W: gl.constexpr, OUT: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """Adds ``Z - rstd mean S`` of each pixel's class [BN, BM]: a product with ones and zeros.

    In two halves, what is added keeps its precision.
    """
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2)
    tall: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, gl.num_warps()], [0, 1])
    kind = gl.arange(0, 32, layout=gl.SliceLayout(0, tall))
    output = column + gl.arange(0, BN, layout=gl.SliceLayout(1, tall))
    entry = (kind % 16 * OUT)[None, :] + output[:, None]
    real = (kind % 16 < 9)[None, :]
    by_mean = gl.load(table_ptr + entry, mask=real, other=0.0)
    added = gl.load(table_ptr + 9 * OUT + entry, mask=real, other=0.0) - rstd * mean * by_mean
    half = added.to(dtype)
    rest = (added - half.to(gl.float32)).to(dtype)
    halves = gl.allocate_shared_memory(dtype, [BN, 32], shared)
    halves.store(gl.where((kind < 16)[None, :], half, rest))
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [gl.num_warps(), 1], [1, 0])
    kind = gl.arange(0, 32, layout=gl.SliceLayout(0, flat))
    number = gl.arange(0, BM, layout=gl.SliceLayout(1, flat))
    part: gl.constexpr = BM // PARTS_OF_ROW
    each: gl.constexpr = W // PARTS_OF_ROW
    h = top + number % part // each
    w = number % each * PARTS_OF_ROW + number // part
    chosen = gl.allocate_shared_memory(dtype, [BM, 32], shared)
    chosen.store((_border_class(h, w, H, W)[:, None] == (kind % 16)[None, :]).to(dtype))
    fence_async_shared()
    wait_for_all_warps()
    total = warpgroup_mma(halves, chosen.permute((1, 0)), total, is_async=True)
    total = warpgroup_mma_wait(num_outstanding=0, deps=[total])
    wait_for_all_warps()
    return total


@gluon.jit
def _places(top, p, W: gl.constexpr, BM: gl.constexpr, layout: gl.constexpr):
    """Row and column in the image of a part's pixels."""
    each: gl.constexpr = W // PARTS_OF_ROW
    number = gl.arange(0, BM // PARTS_OF_ROW, layout=layout)
    return top + number // each, (number % each) * PARTS_OF_ROW + p


@gluon.jit
def _border_class(h, w, H: gl.constexpr, W: gl.constexpr):
    """Which of the nine classes a pixel is of; 4 is inside."""
    row = gl.where(h == 0, 0, gl.where(h == H - 1, 2, 1))
    column = gl.where(w == 0, 0, gl.where(w == W - 1, 2, 1))
    return row * 3 + column


@gluon.jit
def _prefetch(ptr, first, column, C: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """Asks for a tile of halves, that the L2 cache have it when it is loaded: no registers wait for it."""
    each: gl.constexpr = max(1, BN // HALVES_OF_LINE)
    line = gl.arange(0, BM * each, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    at = ptr + ((first + line // each) * C + column + line % each * HALVES_OF_LINE)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(gl.uint64)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _total(values):
    return gl.sum(gl.sum(values, 1), 0)


@gluon.jit
def _load_parts(part_ptr, image, parts, PARTS: gl.constexpr):
    """The parts of an image's two quantities, of ``[N, 2, parts]``."""
    part = gl.arange(0, PARTS, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    at = part_ptr + image * 2 * parts + part
    return gl.load(at, mask=part < parts, other=0.0), gl.load(at + parts, mask=part < parts, other=0.0)


@gluon.jit
def _store_parts(part_ptr, first, second, tile, column_tile, TILES: gl.constexpr, COLUMN_TILES: gl.constexpr):
    """A tile's part of two quantities, to ``[N, 2, TILES * COLUMN_TILES]``."""
    parts: gl.constexpr = TILES * COLUMN_TILES
    at = part_ptr + (tile // TILES) * (2 * parts) + (tile % TILES) * COLUMN_TILES + column_tile
    gl.store(at, first)
    gl.store(at + parts, second)


@gluon.jit
def _place(H: gl.constexpr, W: gl.constexpr, COLUMN_TILES: gl.constexpr, BM: gl.constexpr):
    """A program's tiles of pixels and of channels, its image, first row, and first pixel among those of all images."""
    tile = gl.program_id(0) // COLUMN_TILES
    tiles: gl.constexpr = H * W // BM
    image = tile // tiles
    top = (tile % tiles) * (BM // W)
    return tile, gl.program_id(0) % COLUMN_TILES, image, top, image.to(gl.int64) * (H * W) + top * W


@gluon.jit
def _is_padding(real_ptr, least, image):
    """As in `convolution.py`."""
    return image >= gl.load(real_ptr, mask=image >= least, other=least)


@gluon.jit
def _store_zeros(ptr, first, column, C: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """A tile of zeros."""
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [gl.num_warps(), 1], [1, 0])
    pixel = gl.arange(0, BM, layout=gl.SliceLayout(1, rows))
    channel = column + gl.arange(0, BN, layout=gl.SliceLayout(0, rows))
    at = ptr + (first * C + (pixel * C)[:, None] + channel[None, :])
    gl.store(at, gl.zeros([BM, BN], ptr.dtype.element_ty, rows))


@gluon.jit(do_not_specialize=["parts", "real_ptr", "least"])
def forward(
    x_desc, edge_desc, weight_desc, table_ptr, part_ptr, skip_ptr, relu_ptr, out_ptr, out_part_ptr, moment_ptr, eps,
    parts, real_ptr, least,
    H: gl.constexpr, W: gl.constexpr, C: gl.constexpr, OUT: gl.constexpr, PARTS: gl.constexpr,
    RELU: gl.constexpr, ADD: gl.constexpr, KEEP: gl.constexpr, SUMS: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A tile of ``conv(norm(x))``, of its ReLU, or of that and a skip connection; and the sums of the norm after it."""
    column_tiles: gl.constexpr = OUT // BN
    tiles: gl.constexpr = H * W // BM
    tile, column_tile, image, top, first = _place(H, W, column_tiles, BM)
    if _is_padding(real_ptr, least, image):
        _store_zeros(out_ptr, first, column_tile * BN, OUT, BM, BN)
        if KEEP:
            _store_zeros(relu_ptr, first, column_tile * BN, OUT, BM, BN)
        if SUMS:
            _store_parts(out_part_ptr, 0.0, 0.0, tile, column_tile, tiles, column_tiles)
        gl.store(moment_ptr + image * 2, 0.0)
        gl.store(moment_ptr + image * 2 + 1, 1.0)
        return
    means, squares = _load_parts(part_ptr, image, parts, PARTS)
    if ADD:
        _prefetch(skip_ptr, first, column_tile * BN, OUT, BM, BN)
    total = _accumulate(
        x_desc, edge_desc, weight_desc, image, top, column_tile * BN, W, C, OUT, False, BM, BN, BK, STAGES
    )
    size: gl.constexpr = H * W * C
    mean = gl.sum(means, 0) / size
    rstd = 1.0 / gl.sqrt(gl.maximum(gl.sum(squares, 0) / size - mean * mean, 0.0) + eps)
    if (column_tile == 0) & (tile % tiles == 0):
        gl.store(moment_ptr + image * 2, mean)
        gl.store(moment_ptr + image * 2 + 1, rstd)
    total = _add_by_class(
        total * rstd, table_ptr, rstd, mean, top, column_tile * BN, H, W, OUT, BM, BN, x_desc.dtype
    )
    staged = _stage(total, BM, BN)
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [gl.num_warps(), 1], [1, 0])
    column = column_tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, rows))
    base = image.to(gl.int64) * (H * W * OUT)
    seen = gl.zeros([BM // PARTS_OF_ROW, BN], gl.float32, rows)
    squared = gl.zeros([BM // PARTS_OF_ROW, BN], gl.float32, rows)
    for p in gl.static_range(PARTS_OF_ROW):
        h, w = _places(top, p, W, BM, gl.SliceLayout(1, rows))
        at = ((h * W + w) * OUT)[:, None] + column[None, :]
        y = staged.index(p).load(rows)
        if RELU:
            y = gl.maximum(y, 0.0)
        if KEEP:
            gl.store(relu_ptr + base + at, y.to(relu_ptr.dtype.element_ty))
        if ADD:
            y += gl.load(skip_ptr + base + at).to(gl.float32)
        stored = y.to(out_ptr.dtype.element_ty)
        gl.store(out_ptr + base + at, stored)
        if SUMS:
            value = stored.to(gl.float32)
            seen += value
            squared += value * value
    if SUMS:
        _store_parts(out_part_ptr, _total(seen), _total(squared), tile, column_tile, tiles, column_tiles)


@gluon.jit(do_not_specialize=["parts", "real_ptr", "least"])
def backward(
    grad_desc, edge_desc, weight_desc, x_ptr, part_ptr, moment_ptr, grad_sum_ptr, grad_x_ptr,
    relu_ptr, table_ptr, moment_before_ptr, out_ptr, out_part_ptr, out_class_ptr, parts, real_ptr, least,
    H: gl.constexpr, W: gl.constexpr, C: gl.constexpr, OUT: gl.constexpr, PARTS: gl.constexpr,
    HAS_GRAD_SUM: gl.constexpr, STORE_X: gl.constexpr, BEFORE: gl.constexpr, KEPT: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A tile of the gradient of the raw input ``x``, and of the convolution before, whose ReLU ``x`` holds."""
    column_tiles: gl.constexpr = C // BN
    tiles: gl.constexpr = H * W // BM
    tile, column_tile, image, top, start = _place(H, W, column_tiles, BM)
    if _is_padding(real_ptr, least, image):
        if STORE_X:
            _store_zeros(grad_x_ptr, start, column_tile * BN, C, BM, BN)
        if BEFORE:
            _store_zeros(out_ptr, start, column_tile * BN, C, BM, BN)
            flat: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
            kind = gl.arange(0, 16, layout=gl.SliceLayout(1, flat))
            channel = column_tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, flat))
            entry = (kind * C)[:, None] + channel[None, :]
            zeros = gl.zeros([16, BN], gl.float32, flat)
            gl.store(out_class_ptr + tile.to(gl.int64) * (9 * C) + entry, zeros, mask=(kind < 9)[:, None])
            _store_parts(out_part_ptr, 0.0, 0.0, tile, column_tile, tiles, column_tiles)
        return
    shifts, slopes = _load_parts(part_ptr, image, parts, PARTS)
    mean = gl.load(moment_ptr + image * 2)
    rstd = gl.load(moment_ptr + image * 2 + 1)
    rstd_before = gl.load(moment_before_ptr + image * 2 + 1) if BEFORE else rstd
    _prefetch(x_ptr, start, column_tile * BN, C, BM, BN)
    if HAS_GRAD_SUM:
        _prefetch(grad_sum_ptr, start, column_tile * BN, C, BM, BN)
    if BEFORE and KEPT:
        _prefetch(relu_ptr, start, column_tile * BN, C, BM, BN)
    total = _accumulate(
        grad_desc, edge_desc, weight_desc, image, top, column_tile * BN, W, OUT, C, True, BM, BN, BK, STAGES
    )
    staged = _stage(total, BM, BN)
    size: gl.constexpr = H * W * C
    # rstd (shift + (x - mean) rstd slope), as a line in x.
    by_x = rstd * rstd * gl.sum(slopes, 0) / size
    by_one = rstd * gl.sum(shifts, 0) / size - mean * by_x
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    BP: gl.constexpr = BM // PARTS_OF_ROW
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [gl.num_warps(), 1], [1, 0])
    column = column_tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, rows))
    base = image.to(gl.int64) * (H * W * C)
    # Sums over classes of pixels, as products with a matrix of ones and zeros.
    by_class: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, gl.num_warps()], instr_shape=[16, 8]
    )
    chosen_layout: gl.constexpr = gl.DotOperandLayout(0, by_class, 2)
    kind = gl.arange(0, 16, layout=gl.SliceLayout(1, chosen_layout))
    sums = gl.zeros([16, BN], gl.float32, by_class)
    products = gl.zeros([BP, BN], gl.float32, rows)
    for p in range(PARTS_OF_ROW):
        h, w = _places(top, p, W, BM, gl.SliceLayout(1, rows))
        at = ((h * W + w) * C)[:, None] + column[None, :]
        x = gl.load(x_ptr + base + at).to(gl.float32)
        result = staged.index(p).load(rows) - x * by_x - by_one
        if HAS_GRAD_SUM:
            result += gl.load(grad_sum_ptr + base + at).to(gl.float32)
        if STORE_X:
            gl.store(grad_x_ptr + base + at, result.to(dtype))
        if BEFORE:
            y = x
            if KEPT:
                y = gl.load(relu_ptr + base + at).to(gl.float32)
            result = gl.where(y > 0, result, 0.0)
            products += result * y
            stored = (result * rstd_before).to(dtype)
            gl.store(out_ptr + base + at, stored)
            h, w = _places(top, p, W, BM, gl.SliceLayout(0, chosen_layout))
            chosen = (_border_class(h, w, H, W)[None, :] == kind[:, None]).to(dtype)
            sums = mma_v2(chosen, gl.convert_layout(stored, gl.DotOperandLayout(1, by_class, 2)), sums)
    if BEFORE:
        row = gl.arange(0, 16, layout=gl.SliceLayout(1, by_class))
        real = (row < 9)[:, None]
        entry = (row * C)[:, None] + (column_tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, by_class)))[None, :]
        by_mean = gl.load(table_ptr + entry, mask=real, other=0.0)
        by_bias = gl.load(table_ptr + 9 * C + entry, mask=real, other=0.0)
        gl.store(out_class_ptr + tile.to(gl.int64) * (9 * C) + entry, sums, mask=real)
        _store_parts(
            out_part_ptr, _total(sums * by_mean) / rstd_before,
            _total(products) - _total(sums * by_bias) / rstd_before, tile, column_tile, tiles, column_tiles,
        )  # fmt: skip


@gluon.jit
def _begin_rows(
    grad_desc, x_desc, edge_desc, grads, xs, loaded, step, first_pixel, down, output, channel, wanted,
    H: gl.constexpr, W: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Asks for ``BK`` pixels of a gradient, and for the pixels that a row of taps makes of them."""
    EVERY: gl.constexpr = PARTS_OF_ROW
    ROWS: gl.constexpr = BK // W
    stage = step % STAGES
    pixel = first_pixel + step * BK
    image = pixel // (H * W)
    top = (pixel % (H * W)) // W
    ready = loaded.index(stage)
    mbarrier.expect(ready, 2 * (BK * BM + (EVERY + 2) * (BK // EVERY) * BN), wanted)
    grad = grads.index(stage)._reinterpret(grad_desc.dtype, [1, EVERY, ROWS, W // EVERY, BM], grad_desc.layout)
    tma.async_copy_global_to_shared(grad_desc, [image, 0, top, 0, output], ready, grad, wanted)
    first = stage * (EVERY + 2)
    centre = xs.index(first + 1)._reinterpret(x_desc.dtype, [1, EVERY, ROWS, W // EVERY, BN], x_desc.layout)
    tma.async_copy_global_to_shared(x_desc, [image, 0, top + down, 0, channel], ready, centre, wanted)
    left = xs.index(first)._reinterpret(x_desc.dtype, [1, 1, ROWS, W // EVERY, BN], edge_desc.layout)
    tma.async_copy_global_to_shared(edge_desc, [image, EVERY - 1, top + down, -1, channel], ready, left, wanted)
    right = xs.index(first + EVERY + 1)._reinterpret(x_desc.dtype, [1, 1, ROWS, W // EVERY, BN], edge_desc.layout)
    tma.async_copy_global_to_shared(edge_desc, [image, 0, top + down, 1, channel], ready, right, wanted)


@gluon.jit(do_not_specialize=["real_ptr", "least", "images"])
def weight_gradient(
    grad_desc, x_desc, edge_desc, out_ptr, real_ptr, least, images,
    H: gl.constexpr, W: gl.constexpr, C: gl.constexpr, OUT: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """``sum g x`` over a stretch of pixels, for a row of three taps: [stretches, O, 9, C]."""
    EVERY: gl.constexpr = PARTS_OF_ROW
    c_tiles: gl.constexpr = C // BN
    channel = gl.program_id(0) % c_tiles * BN
    group = gl.program_id(0) // c_tiles % 3
    output = gl.program_id(0) // (c_tiles * 3) * BM
    split = gl.program_id(1)
    real = gl.load(real_ptr, mask=least < images, other=images)
    pixels = gl.minimum(real, images).to(gl.int32) * (H * W)
    steps = gl.cdiv(gl.cdiv(pixels, gl.num_programs(1)), BK)
    first_pixel = split * steps * BK
    count = gl.maximum(0, gl.minimum(steps, (pixels - first_pixel) // BK))
    down = group - 1
    dtype: gl.constexpr = x_desc.dtype
    columns: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    grads = gl.allocate_shared_memory(dtype, [STAGES, BK, BM], columns)
    xs = gl.allocate_shared_memory(dtype, [STAGES * (EVERY + 2), BK // EVERY, BN], columns)
    loaded = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(STAGES):
        mbarrier.init(loaded.index(n), count=1)
    for n in gl.static_range(STAGES - 1):
        _begin_rows(
            grad_desc, x_desc, edge_desc, grads, xs, loaded, n, first_pixel, down, output, channel, n < count,
            H, W, BM, BN, BK, STAGES,
        )  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BN, 16]
    )
    left = gl.zeros([BM, BN], gl.float32, layout)
    centre = gl.zeros([BM, BN], gl.float32, layout)
    right = gl.zeros([BM, BN], gl.float32, layout)
    for step in range(count):
        stage = step % STAGES
        mbarrier.wait(loaded.index(stage), (step // STAGES) & 1)
        grad = grads.index(stage).permute((1, 0))
        first = stage * (EVERY + 2)
        left = warpgroup_mma(grad, xs.index(first)._reinterpret(dtype, [BK, BN], columns), left, is_async=True)
        centre = warpgroup_mma(grad, xs.index(first + 1)._reinterpret(dtype, [BK, BN], columns), centre, is_async=True)
        right = warpgroup_mma(grad, xs.index(first + 2)._reinterpret(dtype, [BK, BN], columns), right, is_async=True)
        left, centre, right = warpgroup_mma_wait(num_outstanding=3, deps=[left, centre, right])
        wait_for_all_warps()
        _begin_rows(
            grad_desc, x_desc, edge_desc, grads, xs, loaded, step + STAGES - 1, first_pixel, down, output, channel,
            step + STAGES - 1 < count, H, W, BM, BN, BK, STAGES,
        )  # fmt: skip
    left, centre, right = warpgroup_mma_wait(num_outstanding=0, deps=[left, centre, right])
    o = output + gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    c = channel + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    at = out_ptr + split.to(gl.int64) * (OUT * 9 * C) + group * (3 * C)
    at += (o * (9 * C))[:, None] + c[None, :]
    gl.store(at, left)
    gl.store(at + C, centre)
    gl.store(at + 2 * C, right)
