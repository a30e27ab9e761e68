"""The encoder's beginning in one Triton kernel each way: bytes, the first convolution, its ReLU and the max-pool.

The plain twin, which defines what is computed, is the beginning of `ResidualEncoder.features` and of `Stack.forward`,
in `nn/encoder.py`. Outputs are stored channels last. Nothing as large as the convolution's own output touches memory.

A pooled pixel lies in the middle of 5x5 pixels of the image. Four rows of these are up to 60 bytes: with padding, one
row of 64 in a matrix product, the patch. The convolution at each place of the pool's window is then a product of the
same patch with weights shifted among zeros (:func:`spread`): more arithmetic, of which tensor cores have plenty, for
fewer loads. The padding, a number at the end of each of the four rows, carries the bias and marks the image's edges.

The place that won a window travels in the last byte of the number itself, so that a maximum carries it along. What is
left of float32 has 15 bits of mantissa, still more than half precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# The network divides bytes by 255, these kernels by 256, which leaves them exact in half precision.
FACTOR = 256 / 255
# Numbers of a patch, and channels in it.
DEPTH = 64
CHANNELS = 3
# Pooled pixels and outputs of a program at a time.
PIXELS = 64
OUTPUTS, GRADIENT_OUTPUTS = 64, 32
# The least number of programs that keep a GPU busy, and the most pooled rows that one goes down. A program's first row
# costs half as much again forward; backward each program leaves sums to be added up.
PROGRAMS, MOST_STEPS = 200, 16
GRADIENT_PROGRAMS, MOST_GRADIENT_STEPS = 200, 32
# Whether to use machine instructions that Triton does not find by itself; its interpreter does not know them.
PACKED = not triton.knobs.runtime.interpret


@triton.jit
def _spare(row, ow, W: tl.constexpr):
    """The last number of each of a patch's rows: 1, 1, whether the window begins before the image, or ends after it."""
    before = (row[None, :] == 2) & (ow > 0)[:, None]
    after = (row[None, :] == 3) & (2 * ow + 1 < W)[:, None]
    return tl.where(before | after, 0.0, 1.0)


@triton.jit
def _load(
    image_ptr, image, oh, ow, inside,
    H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Rows ``2 oh - 1`` to ``2 oh + 2`` of images, columns ``2 ow - 2`` to ``2 ow + 2``: bytes, or pairs of them."""
    top = 2 * oh - 1
    if PAIRS:
        # Rows have an even number of bytes, and a patch begins at an even one.
        pair = tl.arange(0, 32)
        row = top[:, None] + (pair // 8)[None, :]
        at = (6 * ow - 6)[:, None] + 2 * (pair % 8)[None, :]
        ok = inside[:, None] & (row >= 0) & (row < H) & (at >= 0) & (at < 3 * W)
        start = ((image * H + top) * (3 * W) + 6 * ow - 6) // 2
        return tl.load(image_ptr + start[:, None] + ((pair // 8) * (3 * W // 2) + pair % 8)[None, :], mask=ok, other=0)
    else:
        k = tl.arange(0, 64)
        place = k % 16
        column = 2 * ow[:, None] - 2 + (place // 3)[None, :]
        row = top[:, None] + (k // 16)[None, :]
        channel = (place % 3)[None, :]
        ok = inside[:, None] & (row >= 0) & (row < H) & (column >= 0) & (column < W) & (channel < IN)
        ok = ok & (place < 15)[None, :]
        return tl.load(image_ptr + ((image[:, None] * H + row) * W + column) * IN + channel, mask=ok, other=0)


@triton.jit
def _patches(loaded, ow, W: tl.constexpr, PAIRS: tl.constexpr):
    """Patches [pixels, 64] from what was loaded of images: bytes over 256, and the numbers at the ends of rows."""
    if PAIRS:
        pair = tl.arange(0, 32)
        both = loaded.to(tl.int32)
        first = (both & 255).to(tl.float32) * (1.0 / 256.0)
        second = ((both >> 8) & 255).to(tl.float32) * (1.0 / 256.0)
        second = tl.where((pair % 8 == 7)[None, :], _spare(pair // 8, ow, W), second)
        return tl.interleave(first, second)
    else:
        k = tl.arange(0, 64)
        return tl.where((k % 16 == 15)[None, :], _spare(k // 16, ow, W), loaded.to(tl.float32) * (1.0 / 256.0))


@triton.jit
def _spread(
    weight_ptr, bias_ptr, out_ptr, factor, stride_o, stride_c, stride_tap,
    IN: tl.constexpr, OUT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # One program: the weights for one place of the window, in the lower two of its three rows.
    shift = tl.program_id(0)
    k = tl.arange(0, 64)
    place = k % 16
    down = k // 16 - shift // 3
    right = place // 3 - shift % 3
    channel = place % 3
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = (down >= 0) & (down < 3) & (right >= 0) & (right < 3) & (channel < IN) & (place < 15)
    at = channel * stride_c + (down * 3 + right) * stride_tap
    weight = tl.load(weight_ptr + at[:, None] + o[None, :] * stride_o, mask=ok[:, None], other=0.0) * factor
    dtype = out_ptr.dtype.element_ty
    # The bias in two numbers of half precision, which together have float32's, nearly.
    bias = tl.load(bias_ptr + o)
    rounded = bias.to(dtype).to(tl.float32)
    weight = tl.where((k == 15)[:, None], rounded[None, :], weight)
    weight = tl.where((k == 31)[:, None], (bias - rounded)[None, :], weight)
    # Places beside the image never win.
    beside = ((k == 47) & (shift % 3 == 0)) | ((k == 63) & (shift % 3 == 2))
    weight = tl.where(beside[:, None], -60000.0, weight)
    tl.store(out_ptr + (shift * 64 + k)[:, None] * OUT + o[None, :], weight.to(dtype))


@triton.jit
def _weights(weight_ptr, tap: tl.constexpr, o, OUT: tl.constexpr):
    k = tl.arange(0, 64)
    return tl.load(weight_ptr + ((tap - 3) * 64 + k)[:, None] * OUT + o[None, :])


@triton.jit
def _convolve(
    patches, weights, oh, tap: tl.constexpr, H: tl.constexpr, KEEP: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """The convolution at one place of the pool's window; with ``KEEP``, the place in the last byte: 9 - tap.

    Of equal positive numbers the first is then the largest, and a maximum tells where it was found.
    """
    value = tl.dot(patches, weights)
    if KEEP:
        if PACKED:
            # One instruction where the lines below become two.
            code = tl.full([1, 1], 9 - tap, tl.int32)
            value = tl.inline_asm_elementwise(
                "lop3.b32 $0, $1, 0xffffff00, $2, 0xEA;", "=r,r,r", [value, code],
                dtype=tl.float32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            value = ((value.to(tl.int32, bitcast=True) & -256) | (9 - tap)).to(tl.float32, bitcast=True)
    if H % 2 == 1 and tap // 3 == 2:
        value = tl.where((2 * oh + 1 < H)[:, None], value, -3e38)
    return value


@triton.jit
def _place(
    strips, steps, down, OW: tl.constexpr, ACROSS: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """A program's first image, and for each of its lanes: image counted from that, first row, column, if it exists.

    Strips of the pooled image are some columns wide, so many steps high. A program goes down a few side by side.
    """
    SIDE: tl.constexpr = PIXELS // COLUMNS
    lane = tl.arange(0, PIXELS)
    first = tl.program_id(0) * SIDE // (down * ACROSS)
    strip = tl.program_id(0) * SIDE + lane // COLUMNS
    image = strip // (down * ACROSS) - first
    top = strip // ACROSS % down * steps
    ow = strip % ACROSS * COLUMNS + lane % COLUMNS
    return first.to(tl.int64), image, top, ow, (strip < strips) & (ow < OW)


@triton.jit(do_not_specialize=["strips", "steps", "down"])
def _forward(
    image_ptr, weight_ptr, out_ptr, winner_ptr, strips, steps, down,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    PAIRS: tl.constexpr, KEEP: tl.constexpr, PACKED: tl.constexpr,
    ACROSS: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    first, image, top, ow, inside = _place(strips, steps, down, OW, ACROSS, COLUMNS, PIXELS)
    image_ptr += first * (H * W * IN // (2 if PAIRS else 1))
    out_ptr += first * (OH * OW * OUT)
    winner_ptr += first * (OH * OW * OUT)
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    w3 = _weights(weight_ptr, 3, o, OUT)
    w4 = _weights(weight_ptr, 4, o, OUT)
    w5 = _weights(weight_ptr, 5, o, OUT)
    w6 = _weights(weight_ptr, 6, o, OUT)
    w7 = _weights(weight_ptr, 7, o, OUT)
    w8 = _weights(weight_ptr, 8, o, OUT)
    # The last row of a window is the first row of the next: it is computed once, but for each strip's first.
    last = tl.full([PIXELS, OUTPUTS], -3e38, tl.float32)
    loaded = _load(image_ptr, image, top - 1, ow, inside, H, W, IN, PAIRS)
    for step in range(-1, steps):
        oh = top + step
        x = _patches(loaded, ow, W, PAIRS).to(w3.dtype)
        loaded = _load(image_ptr, image, oh + 1, ow, inside, H, W, IN, PAIRS)
        best = last
        if KEEP:
            best = (last.to(tl.int32, bitcast=True) + 6).to(tl.float32, bitcast=True)
        last = _convolve(x, w6, oh, 6, H, KEEP, PACKED)
        last = tl.maximum(last, _convolve(x, w7, oh, 7, H, KEEP, PACKED))
        last = tl.maximum(last, _convolve(x, w8, oh, 8, H, KEEP, PACKED))
        if step < 0:
            last = tl.where((oh >= 0)[:, None], last, -3e38)
        else:
            best = tl.maximum(best, last)
            best = tl.maximum(best, _convolve(x, w3, oh, 3, H, KEEP, PACKED))
            best = tl.maximum(best, _convolve(x, w4, oh, 4, H, KEEP, PACKED))
            best = tl.maximum(best, _convolve(x, w5, oh, 5, H, KEEP, PACKED))
            ok = (inside & (oh < OH))[:, None]
            at = ((image * OH + oh) * OW + ow)[:, None] * OUT + o[None, :]
            # A sum of zero is no longer zero with a place in its last byte, but smaller than all other sums.
            best = tl.where(best > 1e-30, best, 0.0)
            tl.store(out_ptr + at, best.to(out_ptr.dtype.element_ty), mask=ok)
            if KEEP:
                tl.store(winner_ptr + at, best.to(tl.int32, bitcast=True).to(tl.uint8), mask=ok)


@triton.jit
def _add_share(total, winner, grad, tap: tl.constexpr, PACKED: tl.constexpr):
    """Add what windows send to one of their nine places."""
    if PACKED:
        # Two numbers at once: bytes become fp16 of 1024 and more, the comparison 1 or 0.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 first, second, wanted;
            prmt.b32 wanted, $3, 0x64646464, 0x4140;
            prmt.b32 first, $2, 0x64646464, 0x4140;
            prmt.b32 second, $2, 0x64646464, 0x4342;
            set.eq.f16x2.f16x2 first, first, wanted;
            set.eq.f16x2.f16x2 second, second, wanted;
            fma.rn.f16x2 $0, first, $4, $6;
            fma.rn.f16x2 $1, second, $5, $7;
            }""",
            "=r,=r,r,r,r,r,r,r", [winner, tl.full([1, 1], 9 - tap, tl.uint8), grad, total],
            dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        return total + tl.where(winner == 9 - tap, grad, 0.0)


@triton.jit
def _load_row(grad_ptr, winner_ptr, at, ok, ow, OW: tl.constexpr, OUT: tl.constexpr):
    """Winners and gradients of windows, and of those to the right."""
    right = ok & (ow + 1 < OW)[:, None]
    winner = tl.load(winner_ptr + at, mask=ok, other=0)
    winner_right = tl.load(winner_ptr + at + OUT, mask=right, other=0)
    grad = tl.load(grad_ptr + at, mask=ok, other=0.0)
    grad_right = tl.load(grad_ptr + at + OUT, mask=right, other=0.0)
    return winner, winner_right, grad, grad_right


@triton.jit(do_not_specialize=["strips", "steps", "down"])
def _backward(
    grad_ptr, winner_ptr, image_ptr, part_ptr, strips, steps, down,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    PAIRS: tl.constexpr, PACKED: tl.constexpr,
    ACROSS: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    # To each pooled pixel belong four of the convolution's: rows 2 oh and 2 oh + 1, columns 2 ow and 2 ow + 1. Their
    # gradients come from the window of that pixel and of those to the right, below, and both. One product over pixels,
    # patches [64, pixels] times gradients [pixels, 4 outputs], sums up all four kinds.
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    dtype: tl.constexpr = grad_ptr.dtype.element_ty
    first, image, top, ow, inside = _place(strips, steps, down, OW, ACROSS, COLUMNS, PIXELS)
    image_ptr += first * (H * W * IN // (2 if PAIRS else 1))
    grad_ptr += first * (OH * OW * OUT)
    winner_ptr += first * (OH * OW * OUT)
    total = tl.zeros([64, 4 * OUTPUTS], tl.float32)
    none = tl.zeros([PIXELS, OUTPUTS], tl.float16 if PACKED else tl.float32)
    loaded = _load(image_ptr, image, top, ow, inside, H, W, IN, PAIRS)
    at = ((image * OH + top) * OW + ow)[:, None] * OUT + o[None, :]
    for step in range(steps):
        ok = (inside & (top + step < OH))[:, None]
        winner, winner_right, share, share_right = _load_row(grad_ptr, winner_ptr, at, ok, ow, OW, OUT)
        at += OW * OUT
        ok = (inside & (top + step + 1 < OH))[:, None]
        winner_below, winner_both, share_below, share_both = _load_row(grad_ptr, winner_ptr, at, ok, ow, OW, OUT)
        x = tl.trans(_patches(loaded, ow, W, PAIRS).to(dtype))
        loaded = _load(image_ptr, image, top + step + 1, ow, inside, H, W, IN, PAIRS)
        grad_00 = _add_share(none, winner, share, 4, PACKED)
        grad_01 = _add_share(none, winner, share, 5, PACKED)
        grad_01 = _add_share(grad_01, winner_right, share_right, 3, PACKED)
        grad_10 = _add_share(none, winner, share, 7, PACKED)
        grad_11 = _add_share(none, winner, share, 8, PACKED)
        grad_11 = _add_share(grad_11, winner_right, share_right, 6, PACKED)
        grad_10 = _add_share(grad_10, winner_below, share_below, 1, PACKED)
        grad_11 = _add_share(grad_11, winner_below, share_below, 2, PACKED)
        grad_11 = _add_share(grad_11, winner_both, share_both, 0, PACKED)
        grad = tl.join(tl.join(grad_00, grad_10), tl.join(grad_01, grad_11))
        total = tl.dot(x, tl.reshape(grad, [PIXELS, 4 * OUTPUTS]).to(dtype), total)
    k = tl.arange(0, 64)
    column = tl.arange(0, 4 * OUTPUTS)
    # What a convolution at that kind of pixel sees of the patch, and the bias.
    row = (k // 16)[:, None] - (column // 2 % 2)[None, :]
    place = (k % 16)[:, None] - 3 * (column % 2 + 1)[None, :]
    needed = ((row >= 0) & (row < 3) & (place >= 0) & (place < 9)) | (k == 15)[:, None]
    at = column % 4 * OUT + tl.program_id(1) * OUTPUTS + column // 4
    tl.store(part_ptr + (tl.program_id(0) * 64 + k)[:, None] * (4 * OUT) + at[None, :], total, mask=needed)


@triton.jit(do_not_specialize=["splits"])
def _finish_backward(
    part_ptr, weight_ptr, bias_ptr, splits, factor, stride_o, stride_c, stride_tap,
    IN: tl.constexpr, OUT: tl.constexpr, OUTPUTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    # One program: the shares of one of the four kinds of pixels in the gradients of one number for each output.
    place = tl.program_id(0)
    kind = tl.program_id(1)
    o = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    tap = place // IN
    channel = place % IN
    is_bias = place == 9 * IN
    k = (kind // 2 + tap // 3) * 16 + (kind % 2 + tap % 3 + 1) * 3 + channel
    row = tl.where(is_bias, 15, k)
    total = tl.zeros([SPLITS, OUTPUTS], tl.float32)
    for start in range(0, splits, SPLITS):
        split = start + tl.arange(0, SPLITS)
        at = ((split * 64 + row) * 4 + kind)[:, None] * OUT + o[None, :]
        total += tl.load(part_ptr + at, mask=(split < splits)[:, None], other=0.0)
    total = tl.sum(total, 0)
    if is_bias:
        tl.atomic_add(bias_ptr + o, total, sem="relaxed")
    else:
        into = weight_ptr + o * stride_o + channel * stride_c + tap * stride_tap
        tl.atomic_add(into, total * factor, sem="relaxed")


def _strides(weight: Tensor) -> tuple[int, int, int]:
    """Of outputs, inputs and taps: contiguous and channels-last weights have the three."""
    return weight.stride(0), weight.stride(1), weight.stride(3)


def _images(images: Tensor) -> tuple[Tensor, bool]:
    """Images for the kernels: by two bytes where their rows allow it."""
    images = images.contiguous()
    n, h, w, c = images.shape
    pairs = c == CHANNELS and w % 2 == 0 and images.storage_offset() % 2 == 0
    return (images.view(n, h, w * c).view(torch.int16) if pairs else images), pairs


class _Cut(NamedTuple):
    """How the pooled images are shared among programs: strips of some columns, so many rows high, a few to a program.

    There are ``across`` of them side by side in an image and ``down`` below each other.
    """

    columns: int
    steps: int
    across: int
    down: int
    strips: int
    programs: int


def _cut(images: int, height: int, width: int, blocks: int, most_steps: int, programs: int) -> _Cut:
    """Cut pooled images into strips as high as leaves at least so many programs."""
    columns = min(PIXELS, triton.next_power_of_2(width))
    across = triton.cdiv(width, columns)
    steps = most_steps
    while steps > 1 and images * across * triton.cdiv(height, steps) * blocks * columns < programs * PIXELS:
        steps //= 2
    down = triton.cdiv(height, steps)
    strips = images * across * down
    return _Cut(columns, steps, across, down, strips, triton.cdiv(strips * columns, PIXELS))


def supports(inputs: int) -> bool:
    """Whether these kernels take images of so many channels."""
    return inputs <= CHANNELS


def empty_spread(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the memory that :func:`spread` fills: [6, 64, outputs]."""
    return torch.empty(6, DEPTH, len(weight), dtype=dtype, device=weight.device)


def spread(weight: Tensor, bias: Tensor, into: Tensor) -> Tensor:
    """Write the weights [O, C, 3, 3] and the bias as :func:`forward` needs them."""
    outputs, inputs = weight.shape[:2]
    columns = min(OUTPUTS, outputs)
    _spread[(6, outputs // columns)](
        weight, bias, into, FACTOR, *_strides(weight), IN=inputs, OUT=outputs, COLUMNS=columns
    )
    return into


def forward(images: Tensor, weights: Tensor, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Bytes [B, H, W, C] -> ``maxpool(relu(conv(images / 255) + bias))``; with ``keep``, who won each window.

    That is 9 less the place in the window, or 0 where the ReLU is closed.
    """
    n, h, w, c = images.shape
    oh, ow = (h + 1) // 2, (w + 1) // 2
    outputs = weights.shape[2]
    source, pairs = _images(images)
    out = torch.empty(
        (n, outputs, oh, ow), dtype=weights.dtype, device=images.device, memory_format=torch.channels_last
    )
    winner = torch.empty_like(out, dtype=torch.uint8) if keep else None
    block = min(OUTPUTS, outputs)
    cut = _cut(n, oh, ow, outputs // block, MOST_STEPS, PROGRAMS)
    _forward[(cut.programs, outputs // block)](
        source, weights, out, out if winner is None else winner, cut.strips, cut.steps, cut.down,
        H=h, W=w, OH=oh, OW=ow, IN=c, OUT=outputs, PAIRS=pairs, KEEP=keep, PACKED=PACKED,
        ACROSS=cut.across, COLUMNS=cut.columns, PIXELS=PIXELS, OUTPUTS=block, num_warps=4,
    )  # fmt: skip
    return out, winner


def backward(grad: Tensor, winner: Tensor, images: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Add the gradients of :func:`forward` for weight and bias to ``weight`` and ``bias``, in float32."""
    n, h, w, c = images.shape
    outputs, oh, ow = grad.shape[1:]
    source, pairs = _images(images)
    block = min(GRADIENT_OUTPUTS, outputs)
    cut = _cut(n, oh, ow, outputs // block, MOST_GRADIENT_STEPS, GRADIENT_PROGRAMS)
    parts = torch.empty(cut.programs, DEPTH, 4, outputs, device=grad.device)
    _backward[(cut.programs, outputs // block)](
        grad, winner, source, parts, cut.strips, cut.steps, cut.down, H=h, W=w, OH=oh, OW=ow, IN=c, OUT=outputs,
        PAIRS=pairs, PACKED=PACKED and grad.dtype == torch.float16,
        ACROSS=cut.across, COLUMNS=cut.columns, PIXELS=PIXELS, OUTPUTS=block,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    _finish_backward[(9 * c + 1, 4, outputs // block)](
        parts, weight, bias, cut.programs, FACTOR, *_strides(weight), IN=c, OUT=outputs, OUTPUTS=block, SPLITS=64,
    )  # fmt: skip
