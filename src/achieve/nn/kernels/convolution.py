"""Triton kernels of 3x3 convolutions (stride 1, padding 1, channels last) with the group norm before them folded in.

A group norm with one group has one mean and one deviation per image, so the convolution of a normed image is that of
the raw image, corrected: with ``W' = W gain``,

    ``y = rstd (W' * x) - rstd mean S + Z``

where ``S`` and ``Z`` are sums of ``W'`` and of ``W bias`` over the taps that lie inside the image. Those differ between
nine classes of pixels: first, inner or last row, by first, inner or last column. No normed image is ever stored. Each
convolution adds up what the norm after it needs while its output is still in registers: sums per image and tile, which
the reader adds in a fixed order.

Backward, with ``g`` the gradient of ``y``, the two means that a norm's gradient subtracts are ``sum g S`` and
``sum g (y - Z)``: known from the output's side, before the gradient of the input is computed, which can therefore be
finished in registers as well. Gradients are stored as ``rstd g``. What the weights' gradient needs to know of the
norm are sums of ``g`` over each class of pixels. Sums over classes, and reading tables by class, are products with a
matrix of ones and zeros, which the tensor cores do on the side.

Their plain twin, which defines what is computed, is `ResidualBlock` in `nn/encoder.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(HW: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """A program's tiles of pixels and of channels, its image, and its first pixel among those of all images;

    then its pixels within the image [BM], which of them exist [BM], and its channels [BN].
    """
    column_tiles: tl.constexpr = C // BN
    tile = tl.program_id(0) // column_tiles
    column_tile = tl.program_id(0) % column_tiles
    tiles: tl.constexpr = (HW + BM - 1) // BM
    image = tile // tiles
    start = (tile % tiles) * BM
    pixel = start + tl.arange(0, BM)
    exists = tl.full([BM], 1, tl.int1) if HW % BM == 0 else pixel < HW
    column = column_tile * BN + tl.arange(0, BN)
    return tile, column_tile, image, image.to(tl.int64) * HW + start, pixel, exists, column


@triton.jit
def _offsets(first, column, C: tl.constexpr, BM: tl.constexpr):
    """Where the elements of a tile lie [BM, BN]."""
    return first * C + tl.arange(0, BM)[:, None] * C + column[None, :]


@triton.jit
def _total(values):
    """The sum of all, each thread's own first."""
    return tl.sum(tl.ravel(values, can_reorder=True), 0)


@triton.jit
def _load_parts(part_ptr, image, parts, PARTS: tl.constexpr):
    """The parts of an image's two quantities, of ``[N, 2, parts]``: asked for early, and added up when needed."""
    part = tl.arange(0, PARTS)
    at = part_ptr + image * 2 * parts + part
    return tl.load(at, mask=part < parts, other=0.0), tl.load(at + parts, mask=part < parts, other=0.0)


@triton.jit
def _store_parts(part_ptr, first, second, tile, column_tile, TILES: tl.constexpr, COLUMN_TILES: tl.constexpr):
    """A tile's part of two quantities, to ``[N, 2, TILES * COLUMN_TILES]``."""
    parts: tl.constexpr = TILES * COLUMN_TILES
    at = part_ptr + (tile // TILES) * (2 * parts) + (tile % TILES) * COLUMN_TILES + column_tile
    tl.store(at, first)
    tl.store(at + parts, second)


@triton.jit
def _border_class(pixel, H: tl.constexpr, W: tl.constexpr):
    """Which of the nine classes a pixel is of; 4 is inside."""
    h = pixel // W
    w = pixel % W
    row = tl.where(h == 0, 0, tl.where(h == H - 1, 2, 1))
    column = tl.where(w == 0, 0, tl.where(w == W - 1, 2, 1))
    return row * 3 + column


@triton.jit
def _is_padding(real_ptr, least, image):
    """Whether an image only fills its batch up. Of the first ``least`` it is known without looking that they do not."""
    return image >= tl.load(real_ptr, mask=image >= least, other=least)


@triton.jit
def _accumulate(
    x_ptr, weight_ptr, image, tile, first, pixel, exists, column_tile,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, N: tl.constexpr, FLIP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """The sum over nine taps and ``K`` channels for a tile of pixels; with ``FLIP``, of the transposed convolution.

    ``TMA``: both are descriptors. What lies outside an image reads as zero; a tile is whole rows of one. The result
    is transposed, because only a product's second factor is reshaped where it lies, in shared memory.
    """
    chunks: tl.constexpr = K // BK
    if TMA:
        top = (tile % (H * W // BM)) * (BM // W)
        total = tl.zeros([BN, BM], tl.float32)
        for step in range(9 * chunks):
            tap = step // chunks
            channel = (step % chunks) * BK
            x = x_ptr.load([image, top + (tap // 3 - 1), tap % 3 - 1, channel]).reshape(BM, BK)
            if FLIP:
                weight = weight_ptr.load([channel, (8 - tap) * N + column_tile * BN]).T
            else:
                weight = weight_ptr.load([column_tile * BN, tap * K + channel])
            total = tl.dot(weight, x.T, total)
    else:
        total = tl.zeros([BM, BN], tl.float32)
        h = pixel // W
        w = pixel % W
        # A bit for each tap that lies inside the image.
        up = tl.where(h > 0, 0x007, 0) | 0x038 | tl.where(h < H - 1, 0x1C0, 0)
        side = tl.where(w > 0, 0x049, 0) | 0x092 | tl.where(w < W - 1, 0x124, 0)
        inside = tl.where(exists, up & side, 0)
        k = tl.arange(0, BK)
        column = column_tile * BN + tl.arange(0, BN)
        x_at = x_ptr + first * K + tl.arange(0, BM)[:, None] * K + k[None, :]
        if FLIP:
            weight_at = weight_ptr + k[:, None] * (9 * N) + column[None, :]
        else:
            weight_at = weight_ptr + k[:, None] + column[None, :] * (9 * K)
        for step in range(9 * chunks):
            tap = step // chunks
            channel = (step % chunks) * BK
            shift = (tap // 3 - 1) * W + tap % 3 - 1
            x = tl.load(x_at + (shift * K + channel), mask=(((inside >> tap) & 1) != 0)[:, None], other=0.0)
            weight = tl.load(weight_at + ((8 - tap) * N + channel * (9 * N) if FLIP else tap * K + channel))
            total = tl.dot(x, weight, total)
    return total


@triton.jit(do_not_specialize=["parts", "real_ptr", "least"])
def forward(
    x_ptr, weight_ptr, table_ptr, part_ptr, skip_ptr, relu_ptr, out_ptr, out_part_ptr, moment_ptr, eps, parts,
    real_ptr, least,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
    RELU: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr, SUMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A tile of ``conv(norm(x))``, of its ReLU, or of that and a skip connection; and the sums of the norm after it."""
    tiles: tl.constexpr = (H * W + BM - 1) // BM
    tile, column_tile, image, first, pixel, exists, column = _place(H * W, OUT, BM, BN)
    if _is_padding(real_ptr, least, image):
        nothing = tl.zeros([BM, BN], out_ptr.dtype.element_ty)
        tl.store(out_ptr + _offsets(first, column, OUT, BM), nothing, mask=exists[:, None])
        if KEEP:
            tl.store(relu_ptr + _offsets(first, column, OUT, BM), nothing, mask=exists[:, None])
        if SUMS:
            _store_parts(out_part_ptr, 0.0, 0.0, tile, column_tile, tiles, OUT // BN)
        tl.store(moment_ptr + image * 2, 0.0)
        tl.store(moment_ptr + image * 2 + 1, 1.0)
        return
    means, squares = _load_parts(part_ptr, image, parts, PARTS)
    total = _accumulate(
        x_ptr, weight_ptr, image, tile, first, pixel, exists, column_tile, H, W, C, OUT, False, BM, BN, BK, TMA
    )
    at = _offsets(first, column, OUT, BM)
    row_exists = exists[:, None]
    size: tl.constexpr = H * W * C
    mean = tl.sum(means, 0) / size
    rstd = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, 0) / size - mean * mean, 0.0) + eps)
    if (column_tile == 0) & (tile % tiles == 0):
        tl.store(moment_ptr + image * 2, mean)
        tl.store(moment_ptr + image * 2 + 1, rstd)
    # What is added depends on a pixel's class alone. In two halves, it keeps its precision.
    row = tl.arange(0, 32)
    kind = row % 16
    entry = kind[:, None] * OUT + column[None, :]
    real = (kind < 9)[:, None]
    by_mean = tl.load(table_ptr + entry, mask=real, other=0.0)
    by_bias = tl.load(table_ptr + 9 * OUT + entry, mask=real, other=0.0)
    added = by_bias - rstd * mean * by_mean
    half = added.to(out_ptr.dtype.element_ty)
    rest = (added - half.to(tl.float32)).to(out_ptr.dtype.element_ty)
    halves = tl.where((row < 16)[:, None], half, rest)
    chosen = (_border_class(pixel, H, W)[:, None] == kind[None, :]).to(out_ptr.dtype.element_ty)
    if TMA:
        y = tl.trans(tl.dot(tl.trans(halves), tl.trans(chosen), total * rstd))
    else:
        y = tl.dot(chosen, halves, total * rstd)
    if RELU:
        y = tl.maximum(y, 0.0)
    if ADD:
        summed = y + tl.load(skip_ptr + at, mask=row_exists, other=0.0).to(tl.float32)
    if KEEP:
        tl.store(relu_ptr + at, y.to(relu_ptr.dtype.element_ty), mask=row_exists)
    if ADD:
        y = summed
    stored = y.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, stored, mask=row_exists)
    if SUMS:
        seen = tl.where(row_exists, stored.to(tl.float32), 0.0)
        _store_parts(out_part_ptr, _total(seen), _total(seen * seen), tile, column_tile, tiles, OUT // BN)


@triton.jit
def _by_class(stored, pixel, H: tl.constexpr, W: tl.constexpr):
    """Sums of a tile of outputs by pixels over each class [BN, 16]."""
    chosen = (_border_class(pixel, H, W)[:, None] == tl.arange(0, 16)[None, :]).to(stored.dtype)
    return tl.dot(stored, chosen)


@triton.jit
def _store_sums(
    sums, by_y, rstd, column, table_ptr, out_part_ptr, out_class_ptr, tile, column_tile,
    OUT: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Stores a tile's sums of ``rstd g`` by class, and what the gradient of the norm needs."""
    kind = tl.arange(0, 16)
    real = (kind < 9)[None, :]
    entry = kind[None, :] * OUT + column[:, None]
    by_mean = tl.load(table_ptr + entry, mask=real, other=0.0)
    by_bias = tl.load(table_ptr + 9 * OUT + entry, mask=real, other=0.0)
    tl.store(out_class_ptr + tile.to(tl.int64) * (9 * OUT) + entry, sums, mask=real)
    _store_parts(
        out_part_ptr, _total(sums * by_mean) / rstd, by_y - _total(sums * by_bias) / rstd,
        tile, column_tile, TILES, OUT // BN,
    )  # fmt: skip


@triton.jit
def _store_gradient(
    grad, by_y, exists, pixel, first, rstd, column, table_ptr, out_ptr, out_part_ptr, out_class_ptr, tile, column_tile,
    H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    TRANSPOSED: tl.constexpr = False,
):  # fmt: skip
    """Stores ``rstd g``, what the gradient of the norm needs (``by_y`` is ``sum g y``), and sums by class.

    ``grad`` is a tile of pixels by outputs, or ``TRANSPOSED``.
    """
    stored = (grad * rstd).to(out_ptr.dtype.element_ty)
    turned = tl.trans(stored)
    at = _offsets(first, column, OUT, BM)
    tl.store(out_ptr + at, turned if TRANSPOSED else stored, mask=exists[:, None])
    sums = _by_class(stored if TRANSPOSED else turned, pixel, H, W)
    _store_sums(
        sums, by_y, rstd, column, table_ptr, out_part_ptr, out_class_ptr, tile, column_tile,
        OUT, BN, (H * W + BM - 1) // BM,
    )  # fmt: skip


@triton.jit(do_not_specialize=["parts", "real_ptr", "least"])
def backward(
    grad_ptr, weight_ptr, x_ptr, part_ptr, moment_ptr, grad_sum_ptr, grad_x_ptr,
    relu_ptr, table_ptr, moment_before_ptr, out_ptr, out_part_ptr, out_class_ptr, parts, real_ptr, least,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
    HAS_GRAD_SUM: tl.constexpr, STORE_X: tl.constexpr, BEFORE: tl.constexpr, KEPT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of the raw input ``x``, and of the convolution before, whose ReLU ``x`` holds."""
    tile, column_tile, image, first, pixel, exists, column = _place(H * W, C, BM, BN)
    if _is_padding(real_ptr, least, image):
        nothing = tl.zeros([BM, BN], x_ptr.dtype.element_ty)
        if STORE_X:
            tl.store(grad_x_ptr + _offsets(first, column, C, BM), nothing, mask=exists[:, None])
        if BEFORE:
            tl.store(out_ptr + _offsets(first, column, C, BM), nothing, mask=exists[:, None])
            kind = tl.arange(0, 16)
            entry = tile.to(tl.int64) * (9 * C) + kind[:, None] * C + column[None, :]
            tl.store(out_class_ptr + entry, tl.zeros([16, BN], tl.float32), mask=(kind < 9)[:, None])
            _store_parts(out_part_ptr, 0.0, 0.0, tile, column_tile, (H * W + BM - 1) // BM, C // BN)
        return
    shifts, slopes = _load_parts(part_ptr, image, parts, PARTS)
    mean = tl.load(moment_ptr + image * 2)
    rstd = tl.load(moment_ptr + image * 2 + 1)
    rstd_before = tl.load(moment_before_ptr + image * 2 + 1) if BEFORE else rstd
    total = _accumulate(
        grad_ptr, weight_ptr, image, tile, first, pixel, exists, column_tile, H, W, OUT, C, True, BM, BN, BK, TMA
    )
    at = _offsets(first, column, C, BM)
    row_exists = exists[:, None]
    # Loads before stores: their latencies overlap.
    x = tl.load(x_ptr + at, mask=row_exists, other=0.0)
    size: tl.constexpr = H * W * C
    # rstd (shift + (x - mean) rstd slope), as a line in x.
    by_x = rstd * rstd * tl.sum(slopes, 0) / size
    by_one = rstd * tl.sum(shifts, 0) / size - mean * by_x
    # Where x alone is loaded, it is turned to the product, which has twice its bits.
    turn_x: tl.constexpr = TMA and BEFORE and not (HAS_GRAD_SUM or STORE_X or KEPT)
    if turn_x:
        x = tl.trans(x)
    elif TMA:
        total = tl.trans(total)
    x = x.to(tl.float32)
    result = total - x * by_x - by_one
    if HAS_GRAD_SUM:
        result += tl.load(grad_sum_ptr + at, mask=row_exists, other=0.0).to(tl.float32)
    y = tl.load(relu_ptr + at, mask=row_exists, other=0.0).to(tl.float32) if BEFORE and KEPT else x
    if STORE_X:
        tl.store(grad_x_ptr + at, result.to(grad_x_ptr.dtype.element_ty), mask=row_exists)
    if BEFORE:
        result = tl.where(y > 0, result, 0.0)
        _store_gradient(
            result, _total(result * y), exists, pixel, first, rstd_before, column, table_ptr, out_ptr,
            out_part_ptr, out_class_ptr, tile, column_tile, H, W, C, BM, BN, turn_x,
        )  # fmt: skip


@triton.jit
def begin_backward(
    grad_ptr, y_ptr, table_ptr, moment_ptr, out_ptr, out_part_ptr, out_class_ptr,
    H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The last convolution's gradient from that of its output, or of its ReLU: as :func:`backward` leaves it."""
    tile, column_tile, image, first, pixel, exists, column = _place(H * W, OUT, BM, BN)
    at = _offsets(first, column, OUT, BM)
    grad = tl.load(grad_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
    if RELU:
        grad = tl.where(y > 0, grad, 0.0)
    rstd = tl.load(moment_ptr + image * 2 + 1)
    _store_gradient(
        grad, _total(grad * y), exists, pixel, first, rstd, column, table_ptr, out_ptr, out_part_ptr,
        out_class_ptr, tile, column_tile, H, W, OUT, BM, BN,
    )  # fmt: skip


@triton.jit
def _store_pixels(
    grad, exists, h, w, image, rstd, column, out_ptr, H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr
):  # fmt: skip
    """Stores ``rstd g`` of pixels anywhere in an image; returns its sums by class."""
    stored = (grad * rstd).to(out_ptr.dtype.element_ty)
    pixel = h * W + w
    at = (image.to(tl.int64) * (H * W) + pixel)[:, None] * OUT + column[None, :]
    tl.store(out_ptr + at, stored, mask=(exists & (h < H) & (w < W))[:, None])
    return _by_class(tl.trans(stored), pixel, H, W)


@triton.jit
def begin_pool_backward(
    grad_ptr, pooled_ptr, winner_ptr, table_ptr, moment_ptr, out_ptr, out_part_ptr, out_class_ptr,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, OUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """:func:`begin_backward` from the gradient of the output's ReLU and max-pool, which says which pixels won.

    A program takes ``BM`` windows, and of each the four pixels from its middle on, down and to the right. An odd row
    also lies in the next window, as its first row, and so does an odd column.
    """
    tile, column_tile, image, _, window, exists, column = _place(OH * OW, OUT, BM, BN)
    oh = window // OW
    ow = window % OW
    base = image.to(tl.int64) * (OH * OW * OUT)
    at = base + (window * OUT)[:, None] + column[None, :]
    winner = tl.load(winner_ptr + at, mask=exists[:, None], other=9)
    given = tl.load(grad_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
    pooled = tl.load(pooled_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
    right = (exists & (ow + 1 < OW))[:, None]
    right_winner = tl.load(winner_ptr + at + OUT, mask=right, other=9)
    right_given = tl.load(grad_ptr + at + OUT, mask=right, other=0.0).to(tl.float32)
    down = (exists & (oh + 1 < OH))[:, None]
    down_winner = tl.load(winner_ptr + at + OW * OUT, mask=down, other=9)
    down_given = tl.load(grad_ptr + at + OW * OUT, mask=down, other=0.0).to(tl.float32)
    both_winner = tl.load(winner_ptr + at + (OW + 1) * OUT, mask=down & right, other=9)
    both_given = tl.load(grad_ptr + at + (OW + 1) * OUT, mask=down & right, other=0.0).to(tl.float32)
    rstd = tl.load(moment_ptr + image * 2 + 1)
    h = 2 * oh
    w = 2 * ow
    grad = tl.where(winner == 4, given, 0.0)
    sums = _store_pixels(grad, exists, h, w, image, rstd, column, out_ptr, H, W, OUT)
    grad = tl.where(winner == 5, given, 0.0) + tl.where(right_winner == 3, right_given, 0.0)
    sums += _store_pixels(grad, exists, h, w + 1, image, rstd, column, out_ptr, H, W, OUT)
    grad = tl.where(winner == 7, given, 0.0) + tl.where(down_winner == 1, down_given, 0.0)
    sums += _store_pixels(grad, exists, h + 1, w, image, rstd, column, out_ptr, H, W, OUT)
    grad = tl.where(winner == 8, given, 0.0) + tl.where(right_winner == 6, right_given, 0.0)
    grad += tl.where(down_winner == 2, down_given, 0.0) + tl.where(both_winner == 0, both_given, 0.0)
    sums += _store_pixels(grad, exists, h + 1, w + 1, image, rstd, column, out_ptr, H, W, OUT)
    by_y = _total(tl.where(winner < 9, given * pooled, 0.0))
    _store_sums(
        sums, by_y, rstd, column, table_ptr, out_part_ptr, out_class_ptr, tile, column_tile,
        OUT, BN, (OH * OW + BM - 1) // BM,
    )  # fmt: skip


@triton.jit
def image_sums(
    x_ptr, out_part_ptr, HW: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """The sums that :func:`forward` leaves, of a tensor that no convolution made."""
    tile, column_tile, _, first, _, exists, column = _place(HW, C, BM, BN)
    x = tl.load(x_ptr + _offsets(first, column, C, BM), mask=exists[:, None], other=0.0).to(tl.float32)
    _store_parts(out_part_ptr, _total(x), _total(x * x), tile, column_tile, (HW + BM - 1) // BM, C // BN)


@triton.jit
def _inside(kind, tap):
    """Whether a tap of a pixel of that class lies inside the image."""
    row = ((kind // 3 != 0) | (tap // 3 != 0)) & ((kind // 3 != 2) | (tap // 3 != 2))
    return row & ((kind % 3 != 0) | (tap % 3 != 0)) & ((kind % 3 != 2) | (tap % 3 != 2))


@triton.jit(do_not_specialize=["last"])
def fold_weights(
    weight_ptr, gain_ptr, bias_ptr, weight_1, gain_1, bias_1, weight_2, gain_2, bias_2, weight_3, gain_3, bias_3,
    weight_4, gain_4, bias_4, out_ptr, table_ptr, last, stride_o, stride_c, stride_tap, C: tl.constexpr,
):  # fmt: skip
    """``W gain`` in half precision, [O, 9, C], and the tables ``S`` and ``Z``, [2, 9, O]; one program: one output.

    Of up to five convolutions: they have C outputs each, but for the last, which has ``last``.
    """
    o = tl.program_id(0)
    layer = tl.program_id(1)
    outputs = C
    if layer == tl.num_programs(1) - 1:
        outputs = last
    if layer == 1:
        weight_ptr, gain_ptr, bias_ptr = weight_1, gain_1, bias_1
    if layer == 2:
        weight_ptr, gain_ptr, bias_ptr = weight_2, gain_2, bias_2
    if layer == 3:
        weight_ptr, gain_ptr, bias_ptr = weight_3, gain_3, bias_3
    if layer == 4:
        weight_ptr, gain_ptr, bias_ptr = weight_4, gain_4, bias_4
    out_ptr += layer * (9 * C * C)
    table_ptr += layer * (18 * C)
    some = o < outputs
    tap = tl.arange(0, 16)
    c = tl.arange(0, C)
    real = ((tap < 9) & some)[:, None]
    at = o * stride_o + tap[:, None] * stride_tap + c[None, :] * stride_c
    weight = tl.load(weight_ptr + at, mask=real, other=0.0)
    folded = (weight * tl.load(gain_ptr + c)[None, :]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + o * 9 * C + tap[:, None] * C + c[None, :], folded, mask=real)
    # Of the rounded weights: what is subtracted is then exactly what the product has added.
    by_mean = tl.sum(folded.to(tl.float32), 1)
    by_bias = tl.sum(weight * tl.load(bias_ptr + c)[None, :], 1)
    kind = tl.arange(0, 16)
    inside = _inside(kind[:, None], tap[None, :])
    table = table_ptr + kind * outputs + o
    tl.store(table, tl.sum(tl.where(inside, by_mean[None, :], 0.0), 1), mask=(kind < 9) & some)
    tl.store(table + 9 * outputs, tl.sum(tl.where(inside, by_bias[None, :], 0.0), 1), mask=(kind < 9) & some)


@triton.jit
def _shifted(x_ptr, pixel, live, c, h, w, down, right, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    row = h + down
    column = w + right
    inside = live & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    return tl.load(x_ptr + (pixel + (down * W + right))[:, None] * C + c[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _stretch(real_ptr, least, images, HW: tl.constexpr, BK: tl.constexpr):
    """The pixels of a batch's real images, and how many times ``BK`` of them each program takes."""
    pixels = tl.minimum(tl.load(real_ptr, mask=least < images, other=images), images).to(tl.int32) * HW
    return pixels, tl.cdiv(tl.cdiv(pixels, tl.num_programs(1)), BK)


@triton.jit(do_not_specialize=["real_ptr", "least", "images"])
def weight_gradient(
    grad_ptr, x_ptr, out_ptr, real_ptr, least, images,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """``sum g x`` over a stretch of pixels, for one tap or a row of three: [stretches, O, 9, C]."""
    c_tiles: tl.constexpr = C // BN
    groups: tl.constexpr = 9 // TAPS
    pid = tl.program_id(0)
    c = (pid % c_tiles) * BN + tl.arange(0, BN)
    group = (pid // c_tiles) % groups
    o = (pid // (c_tiles * groups)) * BM + tl.arange(0, BM)
    split = tl.program_id(1)
    pixels, steps = _stretch(real_ptr, least, images, H * W, BK)
    start = split.to(tl.int64) * steps * BK
    first = tl.zeros([BM, BN], tl.float32)
    if TAPS == 3:
        second = tl.zeros([BM, BN], tl.float32)
        third = tl.zeros([BM, BN], tl.float32)
        down = group - 1
        right = -1
    else:
        down = group // 3 - 1
        right = group % 3 - 1
    if TMA:
        # Descriptors, as in _accumulate: of pixels by outputs, and of images.
        begin = start.to(tl.int32)
        channel = (pid % c_tiles) * BN
        for pixel in range(begin, tl.minimum(start + steps * BK, pixels).to(tl.int32), BK):
            image = pixel // (H * W)
            top = (pixel % (H * W)) // W + down
            grad = grad_ptr.load([pixel, (pid // (c_tiles * groups)) * BM]).T
            first = tl.dot(grad, x_ptr.load([image, top, right, channel]).reshape(BK, BN), first)
            if TAPS == 3:
                second = tl.dot(grad, x_ptr.load([image, top, 0, channel]).reshape(BK, BN), second)
                third = tl.dot(grad, x_ptr.load([image, top, 1, channel]).reshape(BK, BN), third)
    else:
        # Offsets from the stretch's first pixel fit into 32 bits, those from the tensor's need not.
        grad_ptr += start * OUT
        x_ptr += start * C
        left = pixels - start
        offset = (start % (H * W)).to(tl.int32)
        for step in range(steps):
            pixel = step * BK + tl.arange(0, BK)
            live = pixel < left
            in_image = (offset + pixel) % (H * W)
            h = in_image // W
            w = in_image % W
            grad = tl.load(grad_ptr + pixel[None, :] * OUT + o[:, None], mask=live[None, :], other=0.0)
            first = tl.dot(grad, _shifted(x_ptr, pixel, live, c, h, w, down, right, H, W, C), first)
            if TAPS == 3:
                second = tl.dot(grad, _shifted(x_ptr, pixel, live, c, h, w, down, 0, H, W, C), second)
                third = tl.dot(grad, _shifted(x_ptr, pixel, live, c, h, w, down, 1, H, W, C), third)
    at = out_ptr + split.to(tl.int64) * (OUT * 9 * C) + o[:, None] * (9 * C) + group * (TAPS * C) + c[None, :]
    tl.store(at, first)
    if TAPS == 3:
        tl.store(at + C, second)
        tl.store(at + 2 * C, third)


@triton.jit(do_not_specialize=["rows", "per_program"])
def class_sums(
    class_ptr, moment_ptr, out_ptr, rows, per_program, TILES: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Sums of ``g`` and of ``rstd mean g`` over the pixels of a class, in a stretch of tiles: [stretches, 2, 9, O]."""
    stretch = tl.program_id(0)
    kind = tl.program_id(1)
    o = tl.arange(0, OUT)
    plain = tl.zeros([OUT], tl.float32)
    by_mean = tl.zeros([OUT], tl.float32)
    for start in range(0, per_program, ROWS):
        row = start + tl.arange(0, ROWS)
        real = row < per_program
        row += stretch * per_program
        real = real & (row < rows)
        at = (row.to(tl.int64) * 9 + kind)[:, None] * OUT + o[None, :]
        sums = tl.load(class_ptr + at, mask=real[:, None], other=0.0)
        mean = tl.load(moment_ptr + row // TILES * 2, mask=real, other=0.0)
        rstd = tl.load(moment_ptr + row // TILES * 2 + 1, mask=real, other=1.0)
        plain += tl.sum(sums / rstd[:, None], 0)
        by_mean += tl.sum(sums * mean[:, None], 0)
    out = out_ptr + (stretch * 18 + kind) * OUT + o
    tl.store(out, plain)
    tl.store(out + 9 * OUT, by_mean)


@triton.jit(do_not_specialize=["splits", "stretches"])
def finish_weight_gradient(
    part_ptr, class_ptr, weight_ptr, gain_ptr, bias_ptr, out_ptr, affine_ptr, splits, stretches,
    stride_o, stride_c, stride_tap,
    C: tl.constexpr, OUT: tl.constexpr, SOME: tl.constexpr, SPLITS: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    """Some outputs' weight gradients [O, 9, C] of one tap; their shares of the gain's and the bias's [9 O, 2, C]."""
    tap = tl.program_id(1)
    some = tl.program_id(0) * SOME + tl.arange(0, SOME)
    number = tl.arange(0, SOME * C)
    o = tl.program_id(0) * SOME + number // C
    c = number % C
    total = tl.zeros([SOME * C], tl.float32)
    for start in range(0, splits, SPLITS):
        split = start + tl.arange(0, SPLITS)
        at = split.to(tl.int64)[:, None] * (OUT * 9 * C) + ((o * 9 + tap) * C + c)[None, :]
        total += tl.sum(tl.load(part_ptr + at, mask=(split < splits)[:, None], other=0.0), 0)
    row = tl.arange(0, STRETCHES * 16)
    kind = row % 16
    plain = tl.zeros([SOME], tl.float32)
    by_mean = tl.zeros([SOME], tl.float32)
    for start in range(0, stretches, STRETCHES):
        stretch = start + row // 16
        at = (stretch * 18 + kind)[:, None] * OUT + some[None, :]
        real = ((stretch < stretches) & (kind < 9) & _inside(kind, tap))[:, None]
        plain += tl.sum(tl.load(class_ptr + at, mask=real, other=0.0), 0)
        by_mean += tl.sum(tl.load(class_ptr + at + 9 * OUT, mask=real, other=0.0), 0)
    plain = tl.reshape(tl.broadcast_to(plain[:, None], [SOME, C]), [SOME * C])
    total -= tl.reshape(tl.broadcast_to(by_mean[:, None], [SOME, C]), [SOME * C])
    tl.store(out_ptr + (o * 9 + tap) * C + c, tl.load(gain_ptr + c) * total + tl.load(bias_ptr + c) * plain)
    weight = tl.load(weight_ptr + o * stride_o + tap * stride_tap + c * stride_c)
    affine = affine_ptr + (o * 9 + tap) * (2 * C) + c
    tl.store(affine, weight * total)
    tl.store(affine + C, weight * plain)
