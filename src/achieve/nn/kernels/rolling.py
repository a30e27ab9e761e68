"""Triton kernels of 3x3 convolutions with few input channels, which go down an image row by row.

They compute what `forward` and `backward` of `convolution.py` do, and leave the same. There, a program loads each tile
of the image nine times, once for each tap, and that traffic from the L2 cache is what takes the time. Here it keeps all
weights in shared memory, loads a row of the image once for each of the three columns of taps, and adds its part to the
sums of three rows of the output: the one above it, which is then finished, its own, and the one below.

They need a tensor memory accelerator, which reads zeros outside an image.
"""

from __future__ import annotations

import triton
import triton.language as tl

from achieve.nn.kernels.early import begin


@triton.jit
def _next_rows(
    x_ptr, image, row, above, here, w00, w01, w02, w10, w11, w12, w20, w21, w22, W: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """The sums of the output's rows above a row of the input (finished with it), at it and below it: [outputs, W]."""
    left = x_ptr.load([image, row, -1, 0]).reshape(W, K).T
    middle = x_ptr.load([image, row, 0, 0]).reshape(W, K).T
    right = x_ptr.load([image, row, 1, 0]).reshape(W, K).T
    below = tl.dot(w00, left)
    below = tl.dot(w01, middle, below)
    below = tl.dot(w02, right, below)
    here = tl.dot(w10, left, here)
    here = tl.dot(w11, middle, here)
    here = tl.dot(w12, right, here)
    above = tl.dot(w20, left, above)
    above = tl.dot(w21, middle, above)
    above = tl.dot(w22, right, above)
    return above, here, below


@triton.jit(do_not_specialize=["parts", "one"])
def forward(
    x_ptr, weight_ptr, table_ptr, part_ptr, skip_ptr, relu_ptr, out_ptr, out_part_ptr, moment_ptr, eps, one, parts,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
    RELU: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr, SUMS: tl.constexpr,
    BAND: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """``BAND`` rows of ``conv(norm(x))``, of its ReLU, or of that and a skip connection; and the sums of the next norm.

    ``one`` is 1, which the compiler must not know: see below.
    """
    begin(EARLY)
    column_tiles: tl.constexpr = OUT // BN
    bands: tl.constexpr = H // BAND
    column_tile = tl.program_id(0) % column_tiles
    band = (tl.program_id(0) // column_tiles) % bands
    image = tl.program_id(0) // (column_tiles * bands)
    column = column_tile * BN + tl.arange(0, BN)
    # By pointers: all are under way at once, where descriptors outside of a loop would be waited for one by one.
    weight_at = weight_ptr + column[:, None] * (9 * C) + tl.arange(0, C)[None, :]
    w00 = tl.load(weight_at)
    w01 = tl.load(weight_at + C)
    w02 = tl.load(weight_at + 2 * C)
    w10 = tl.load(weight_at + 3 * C)
    w11 = tl.load(weight_at + 4 * C)
    w12 = tl.load(weight_at + 5 * C)
    w20 = tl.load(weight_at + 6 * C)
    w21 = tl.load(weight_at + 7 * C)
    w22 = tl.load(weight_at + 8 * C)
    part = tl.arange(0, PARTS)
    part_at = part_ptr + image * 2 * parts + part
    size: tl.constexpr = H * W * C
    mean = tl.sum(tl.load(part_at, mask=part < parts, other=0.0), 0) / size
    square = tl.sum(tl.load(part_at + parts, mask=part < parts, other=0.0), 0) / size
    rstd = 1.0 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + eps)
    if (column_tile == 0) & (band == 0):
        tl.store(moment_ptr + image * 2, mean)
        tl.store(moment_ptr + image * 2 + 1, rstd)
    w = tl.arange(0, W)
    is_left = (w == 0)[None, :]
    is_right = (w == W - 1)[None, :]
    start = image.to(tl.int64) * (H * W) + w
    totals = tl.zeros([BN], tl.float32)
    squares = tl.zeros([BN], tl.float32)
    above = tl.zeros([BN, W], tl.float32)
    here = tl.zeros([BN, W], tl.float32)
    for step in range(BAND + 2):
        row = band * BAND + step - 2  # of the output, finished in this step
        finished = step >= 2
        at = (start + row * W)[:, None] * OUT + column[None, :]
        stores = tl.full([W, BN], 1, tl.int1) & finished
        if ADD:
            skip = tl.load(skip_ptr + at, mask=stores, other=0.0)
        kind = tl.where(row == 0, 0, tl.where(row == H - 1, 6, 3))
        entry = table_ptr + kind * OUT + column
        added_left = tl.load(entry + 9 * OUT) - rstd * mean * tl.load(entry)
        added = tl.load(entry + 10 * OUT) - rstd * mean * tl.load(entry + OUT)
        added_right = tl.load(entry + 11 * OUT) - rstd * mean * tl.load(entry + 2 * OUT)
        above, here, below = _next_rows(
            x_ptr, image, row + 1, above, here, w00, w01, w02, w10, w11, w12, w20, w21, w22, W, C
        )
        inner = tl.where(is_right, added_right[:, None], added[:, None])
        y = above * rstd + tl.where(is_left, added_left[:, None], inner)
        if RELU:
            y = tl.maximum(y, 0.0)
        if KEEP:
            tl.store(relu_ptr + at, tl.trans(y).to(relu_ptr.dtype.element_ty), mask=stores)
        if ADD:
            y += tl.trans(skip).to(tl.float32)
        stored = y.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + at, tl.trans(stored), mask=stores)
        if SUMS:
            seen = tl.where(finished, stored.to(tl.float32), 0.0)
            totals += tl.sum(seen, 1)
            squares += tl.sum(seen * seen, 1)
        # Handing sums on by a product makes the compiler wait for them here. Else it takes the products of this step
        # for unfinished in the next, and does them one after the other.
        above = here * one
        here = below * one
    if SUMS:
        all_parts: tl.constexpr = bands * column_tiles
        out_part_at = out_part_ptr + image * (2 * all_parts) + band * column_tiles + column_tile
        tl.store(out_part_at, tl.sum(totals, 0))
        tl.store(out_part_at + all_parts, tl.sum(squares, 0))


@triton.jit
def _add_classes(sums, is_kind, at_left, inner, at_right):
    """Sums over the pixels of three classes, with those of a row, if it is of that kind."""
    left, middle, right = sums
    return left + at_left * is_kind, middle + inner * is_kind, right + at_right * is_kind


@triton.jit
def _by_table(table_ptr, first, inner, last, C: tl.constexpr):
    """Sums by class, times a table of the same."""
    total = first[0] * tl.load(table_ptr) + first[1] * tl.load(table_ptr + C) + first[2] * tl.load(table_ptr + 2 * C)
    table_ptr += 3 * C
    total += inner[0] * tl.load(table_ptr) + inner[1] * tl.load(table_ptr + C) + inner[2] * tl.load(table_ptr + 2 * C)
    table_ptr += 3 * C
    total += last[0] * tl.load(table_ptr) + last[1] * tl.load(table_ptr + C) + last[2] * tl.load(table_ptr + 2 * C)
    return total


@triton.jit(do_not_specialize=["parts", "one"])
def backward(
    grad_ptr, weight_ptr, x_ptr, part_ptr, moment_ptr, grad_sum_ptr, grad_x_ptr,
    relu_ptr, table_ptr, moment_before_ptr, out_ptr, out_part_ptr, out_class_ptr, one, parts,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
    HAS_GRAD_SUM: tl.constexpr, STORE_X: tl.constexpr, BEFORE: tl.constexpr, KEPT: tl.constexpr,
    BAND: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """``BAND`` rows of the gradient of the raw input ``x``, and of the convolution before, whose ReLU ``x`` holds."""
    begin(EARLY)
    column_tiles: tl.constexpr = C // BN
    bands: tl.constexpr = H // BAND
    column_tile = tl.program_id(0) % column_tiles
    band = (tl.program_id(0) // column_tiles) % bands
    image = tl.program_id(0) // (column_tiles * bands)
    column = column_tile * BN + tl.arange(0, BN)
    # The transposed convolution: taps the other way round.
    weight_at = weight_ptr + column[:, None] + tl.arange(0, OUT)[None, :] * (9 * C)
    w00 = tl.load(weight_at + 8 * C)
    w01 = tl.load(weight_at + 7 * C)
    w02 = tl.load(weight_at + 6 * C)
    w10 = tl.load(weight_at + 5 * C)
    w11 = tl.load(weight_at + 4 * C)
    w12 = tl.load(weight_at + 3 * C)
    w20 = tl.load(weight_at + 2 * C)
    w21 = tl.load(weight_at + C)
    w22 = tl.load(weight_at)
    part = tl.arange(0, PARTS)
    part_at = part_ptr + image * 2 * parts + part
    shift = tl.sum(tl.load(part_at, mask=part < parts, other=0.0), 0)
    slope = tl.sum(tl.load(part_at + parts, mask=part < parts, other=0.0), 0)
    mean = tl.load(moment_ptr + image * 2)
    rstd = tl.load(moment_ptr + image * 2 + 1)
    rstd_before = tl.load(moment_before_ptr + image * 2 + 1) if BEFORE else rstd
    size: tl.constexpr = H * W * C
    # rstd (shift + (x - mean) rstd slope), as a line in x.
    by_x = rstd * rstd * slope / size
    by_one = rstd * shift / size - mean * by_x
    w = tl.arange(0, W)
    is_left = (w == 0)[None, :]
    is_right = (w == W - 1)[None, :]
    start = image.to(tl.int64) * (H * W) + w
    none = tl.zeros([BN], tl.float32)
    by_y = none
    sums_first = none, none, none
    sums_inner = none, none, none
    sums_last = none, none, none
    above = tl.zeros([BN, W], tl.float32)
    here = tl.zeros([BN, W], tl.float32)
    for step in range(BAND + 2):
        row = band * BAND + step - 2  # of the gradient of x, finished in this step
        finished = step >= 2
        at = (start + row * W)[:, None] * C + column[None, :]
        stores = tl.full([W, BN], 1, tl.int1) & finished
        x = tl.load(x_ptr + at, mask=stores, other=0.0)
        if HAS_GRAD_SUM:
            grad_sum = tl.load(grad_sum_ptr + at, mask=stores, other=0.0)
        if BEFORE and KEPT:
            kept = tl.load(relu_ptr + at, mask=stores, other=0.0)
        above, here, below = _next_rows(
            grad_ptr, image, row + 1, above, here, w00, w01, w02, w10, w11, w12, w20, w21, w22, W, OUT
        )
        x = tl.trans(x).to(tl.float32)
        result = above - x * by_x - by_one
        if HAS_GRAD_SUM:
            result += tl.trans(grad_sum).to(tl.float32)
        if STORE_X:
            tl.store(grad_x_ptr + at, tl.trans(result).to(grad_x_ptr.dtype.element_ty), mask=stores)
        if BEFORE:
            y = tl.trans(kept).to(tl.float32) if KEPT else x
            result = tl.where((y > 0) & finished, result, 0.0)
            by_y += tl.sum(result * y, 1)
            stored = (result * rstd_before).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + at, tl.trans(stored), mask=stores)
            seen = stored.to(tl.float32)
            at_left = tl.sum(tl.where(is_left, seen, 0.0), 1)
            at_right = tl.sum(tl.where(is_right, seen, 0.0), 1)
            inner = tl.sum(seen, 1) - at_left - at_right
            is_first = tl.where(row == 0, 1.0, 0.0)
            is_last = tl.where(row == H - 1, 1.0, 0.0)
            sums_first = _add_classes(sums_first, is_first, at_left, inner, at_right)
            sums_inner = _add_classes(sums_inner, 1.0 - is_first - is_last, at_left, inner, at_right)
            sums_last = _add_classes(sums_last, is_last, at_left, inner, at_right)
        above = here * one  # as in `forward`
        here = below * one
    if BEFORE:
        class_at = out_class_ptr + (image * bands + band).to(tl.int64) * (9 * C) + column
        tl.store(class_at, sums_first[0])
        tl.store(class_at + C, sums_first[1])
        tl.store(class_at + 2 * C, sums_first[2])
        tl.store(class_at + 3 * C, sums_inner[0])
        tl.store(class_at + 4 * C, sums_inner[1])
        tl.store(class_at + 5 * C, sums_inner[2])
        tl.store(class_at + 6 * C, sums_last[0])
        tl.store(class_at + 7 * C, sums_last[1])
        tl.store(class_at + 8 * C, sums_last[2])
        by_mean = _by_table(table_ptr + column, sums_first, sums_inner, sums_last, C)
        by_bias = _by_table(table_ptr + 9 * C + column, sums_first, sums_inner, sums_last, C)
        all_parts: tl.constexpr = bands * column_tiles
        out_part_at = out_part_ptr + image * (2 * all_parts) + band * column_tiles + column_tile
        tl.store(out_part_at, tl.sum(by_mean, 0) / rstd_before)
        tl.store(out_part_at + all_parts, tl.sum(by_y - by_bias / rstd_before, 0))
