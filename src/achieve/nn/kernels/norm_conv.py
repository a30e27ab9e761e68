"""A 3x3 convolution with the norm before it folded in, one at a time: tiles, memory and launches of `convolution.py`.

`tower.py` chains them. The plain twin, which defines what is computed, is `NormConv` in `nn/layers.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from achieve.nn.kernels import convolution
from achieve.nn.padding import Real

# Below so many programs, tiles are made smaller. An H200 has 132 multiprocessors; half as many act as fast when alone,
# and leave room when several runs act at the same time.
ENOUGH_PROGRAMS = 60
# Set by `reproduce/mps.py`.
SHARED = "ACHIEVE_GPU_SHARED"
# Programs of a weight gradient. Each leaves sums to be written and added up: fewer are less work, and take longer only
# where no other run fills the GPU meanwhile.
WEIGHT_PROGRAMS, SMALL_WEIGHT_PROGRAMS, SHARED_WEIGHT_PROGRAMS = 264, 132, 99
# Versions of Triton whose Gluon the kernels of `hopper.py` are written for.
GLUON_OF = frozenset({(3, 6), (3, 7)})
# Windows of a max-pool whose pixels' gradients a program computes: four pixels each.
POOLED_WINDOWS = 32
# Stretches of tiles whose sums by class are added up apart, as many as are then read at once; of more tiles than a few
# hundred images have, each so many, as what takes time is a stretch's length.
STRETCHES = 16
FEW_TILES = 4096
STRETCH = 128
MOST_STRETCHES = 128


class Tile(NamedTuple):
    """Pixels by output channels of a program, and how many input channels it takes at a time.

    With ``tma`` the tensor memory accelerator loads the factors: a tile must then be whole rows of an image. With
    ``gluon`` it does so as the kernels of `hopper.py` say.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    registers: int | None = None
    tma: bool = False
    gluon: bool = False


class WeightTile(NamedTuple):
    """Outputs by inputs of a program, for one tap or for three, and how many pixels it takes at a time.

    There are about so many programs: each adds up its own stretch of pixels. ``tma`` and ``gluon``: see :class:`Tile`.
    """

    outputs: int
    inputs: int
    taps: int
    depth: int
    warps: int
    stages: int
    programs: int = 132
    tma: bool = False
    gluon: bool = False


# Tiles in Gluon where they are faster. With two stages, three programs fit on a multiprocessor.
GLUON_NARROW = Tile(256, 64, 32, 4, 2, gluon=True)
# Backward only.
GLUON_SMALL = Tile(64, 128, 32, 4, 3, gluon=True)


class Folded(NamedTuple):
    """A convolution with its norm's gain in half precision [O, 9, C], and the tables [2, 9, O] of both its sums."""

    weight: Tensor
    table: Tensor


class Gradient(NamedTuple):
    """Of a convolution's output times its norm's rstd; its norm's sums [N, 2, P]; its own by class [N, T, 9, O]."""

    scaled: Tensor
    sums: Tensor
    class_sums: Tensor


def choose_tile(x: Tensor, outputs: int, *, backward: bool = False) -> Tile:
    """Return the largest tile with which there are enough programs."""
    images, inputs, height, width = x.shape
    pixels = height * width
    tile = GLUON_SMALL if backward and pixels == GLUON_SMALL.rows else GLUON_NARROW
    if has_gluon(x.device) and inputs % tile.depth == 0 and outputs % tile.columns == 0 and width % 8 == 0:
        enough = images * pixels * outputs >= ENOUGH_PROGRAMS * tile.rows * tile.columns
        if enough and _whole_rows(x, tile.rows):
            return tile
    largest = rows, columns = min(128, max(16, triton.next_power_of_2(pixels))), min(128, outputs)
    while images * pixels * outputs < ENOUGH_PROGRAMS * rows * columns and rows * columns > 512:
        if rows >= columns and rows > 16:
            rows //= 2
        else:
            columns //= 2
    depth, large = min(64, inputs), rows * columns >= 128 * 128
    wide = rows >= 64 and columns >= 64 and depth == 64
    # Few images are a matter of latency: fetching a descriptor would add to it.
    if not (has_tma(x.device) and wide and (rows, columns) == largest and _whole_rows(x, rows)):
        return Tile(rows, columns, depth, 8 if large and not backward else 4, _stages(x.device))
    # Two programs of 8 warps or three of 4 to a multiprocessor: one loads its epilogue's inputs while others multiply.
    registers = 128 if large else 168
    return Tile(rows, columns, depth, 8 if large else 4, 4 if rows == 64 else 3, registers, tma=True)


def choose_weight_tile(x: Tensor, outputs: int) -> WeightTile:
    """Return the tile of a weight gradient."""
    _, inputs, height, width = x.shape
    # The smallest images leave each program few pixels to add up.
    small = height * width <= 64
    if has_gluon(x.device) and inputs % 64 == 0 and outputs % 64 == 0 and _whole_rows(x, 64) and width % 8 == 0:
        programs = SMALL_WEIGHT_PROGRAMS if small else WEIGHT_PROGRAMS
        return WeightTile(64, 64, 3, 64, 4, 4, SHARED_WEIGHT_PROGRAMS if _shares_gpu() else programs, gluon=True)
    rows, columns = min(64 if small else 128, outputs), min(64, inputs)
    wide = rows * columns >= 128 * 64
    tma = has_tma(x.device) and _whole_rows(x, 64) and rows >= 64 and columns == 64
    if tma and not small:
        # Compute capability 12.0 has the accelerator and less than half of the shared memory.
        stages = 4 if _stages(x.device) == 3 else 2
        if wide and inputs >= 128:
            return WeightTile(rows, 128, 1, 64, 8, stages, tma=True)
        return WeightTile(rows, columns, 3, 64, 8 if wide else 4, stages, tma=True)
    programs = SMALL_WEIGHT_PROGRAMS if wide or small else WEIGHT_PROGRAMS
    return WeightTile(rows, columns, 3, 64, 8 if wide else 4, _stages(x.device), programs, tma)


def _shares_gpu() -> bool:
    """Whether other runs use the GPU at the same moment, as those that `--jobs` starts under MPS are told."""
    return SHARED in os.environ


@cache
def has_tma(device: torch.device) -> bool:
    """Whether this device has a tensor memory accelerator: compute capability 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def gluon_kernels() -> ModuleType | None:
    """The kernels in Gluon, if this Triton has a Gluon that they are written for: it is still being changed."""
    if tuple(map(int, triton.__version__.split(".")[:2])) not in GLUON_OF:
        return None
    try:
        return import_module("achieve.nn.kernels.hopper")
    except ImportError:
        return None


@cache
def has_gluon(device: torch.device) -> bool:
    """Whether the kernels in Gluon run on this device: their products are those of compute capability 9.0 alone."""
    exact = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return exact and gluon_kernels() is not None


def _whole_rows(x: Tensor, rows: int) -> bool:
    """Whether a tile of so many pixels is whole rows of one image."""
    height, width = x.shape[2:]
    return rows % width == 0 and height * width % rows == 0


def _image_blocks(x: Tensor, tile_rows: int, channels: int) -> TensorDescriptor:
    """Describes images [N, H, W, C] in blocks of whole rows: what lies outside reads as zero."""
    block = [1, tile_rows // x.shape[3], x.shape[3], channels]
    x = x.permute(0, 2, 3, 1)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block)


def _in_parts(x: Tensor, pixels: int, channels: int) -> tuple[Any, Any]:
    """Describes images by every fourth column, in blocks of so many pixels: of all four parts, and of one."""
    hopper = cast(Any, gluon_kernels())
    width, every = x.shape[3], hopper.PARTS_OF_ROW.value
    parts = x.permute(0, 2, 3, 1).unflatten(2, (width // every, every)).permute(0, 3, 1, 2, 4)
    rest = [pixels // width, width // every, channels]
    return hopper.describe(parts, [1, every, *rest]), hopper.describe(parts, [1, 1, *rest])


def _multiplied(x: Tensor, weight: Tensor, tile: Tile, block: tuple[int, int]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module of the kernels of this tile, their first arguments, which load images and weights, and the last."""
    rows, _ = _tiles(x.shape[2] * x.shape[3], tile.rows)
    options: dict[str, Any] = {
        "BM": rows, "BN": tile.columns, "BK": tile.depth, "num_warps": tile.warps, "maxnreg": tile.registers
    }  # fmt: skip
    if tile.gluon:
        hopper = cast(Any, gluon_kernels())
        factors = (*_in_parts(x, rows, tile.depth), hopper.describe(weight.flatten(1), list(block)))
        return hopper, factors, options | {"STAGES": tile.stages}
    options |= {"TMA": tile.tma, "num_stages": tile.stages}
    if tile.tma:
        return convolution, (_image_blocks(x, rows, tile.depth), _blocks(weight.flatten(1), *block)), options
    return convolution, (x, weight), options


def _blocks(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Describes a matrix in blocks."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


@cache
def _stages(device: torch.device) -> int:
    """Loads in flight: as many as shared memory holds."""
    if device.type != "cuda":
        return 1
    memory: int = cast(Any, torch.cuda.get_device_properties(device)).shared_memory_per_block_optin
    return 3 if memory >= 160 * 1024 else 2


def _tiles(pixels: int, rows: int) -> tuple[int, int]:
    """Rows of a tile, and tiles of an image: a tile is a part of one image."""
    rows = min(rows, max(16, triton.next_power_of_2(pixels)))
    return rows, triton.cdiv(pixels, rows)


def _stretches(tiles: int) -> tuple[int, int]:
    """How many tiles' sums by class a program adds up, and how many programs there are."""
    wanted = STRETCHES if tiles <= FEW_TILES else min(MOST_STRETCHES, triton.cdiv(tiles, STRETCH))
    per_program = triton.cdiv(tiles, wanted)
    return per_program, triton.cdiv(tiles, per_program)


def _like(x: Tensor, channels: int, shape: tuple[int, int] | None = None) -> Tensor:
    h, w = shape or x.shape[2:]
    return torch.empty((len(x), channels, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _empty_sums(images: int, parts: int, device: torch.device) -> Tensor:
    return torch.empty(images, 2, parts, device=device)


def _parts(sums: Tensor) -> dict[str, int]:
    """How many parts there are, and how many a program reads: one number for most, so that one kernel serves them."""
    return {"parts": sums.shape[2], "PARTS": max(64, triton.next_power_of_2(sums.shape[2]))}


def _weight_strides(weight: Tensor) -> tuple[int, int, int]:
    """Of outputs, inputs and taps: contiguous and channels-last weights have the three."""
    return weight.stride(0), weight.stride(1), weight.stride(3)


def empty_folded(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Folded]:
    """Return the memory that :func:`fold` fills: one stretch for the weights, one for the tables."""
    sizes = [weight.shape[:2] for weight in weights]
    halves = torch.empty(sum(9 * o * c for o, c in sizes), dtype=dtype, device=weights[0].device)
    tables = torch.empty(sum(18 * o for o, _ in sizes), device=weights[0].device)
    return [
        Folded(half.view(o, 9, c), table.view(2, 9, o))
        for (o, c), half, table in zip(
            sizes, halves.split([9 * o * c for o, c in sizes]), tables.split([18 * o for o, _ in sizes]), strict=True
        )
    ]


def fold(layers: Sequence[tuple[Tensor, Tensor, Tensor]], into: list[Folded]) -> list[Folded]:
    """Fold norms' gains and biases into the convolutions after them: (weight, gain, bias) of up to five in a row.

    All have as many inputs, and all but the last as many outputs.
    """
    outputs, inputs = layers[-1][0].shape[:2]
    five = [*layers, *[layers[0]] * (5 - len(layers))]
    convolution.fold_weights[(max(outputs, inputs), len(layers))](
        *(tensor for layer in five for tensor in layer), into[0].weight, into[0].table, outputs,
        *_weight_strides(layers[0][0]), C=inputs,
    )  # fmt: skip
    return into


def _real(real: Real | None, x: Tensor) -> dict[str, Any]:
    """What tells kernels which images are real: all of them, if nothing is said."""
    if real is None:
        return {"real_ptr": _unread(x.device), "least": len(x)}
    return {"real_ptr": real.images, "least": real.least}


@cache
def _unread(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=device)


def image_sums(x: Tensor) -> Tensor:
    """Sums and sums of squares of images, in parts: [N, 2, parts]."""
    n, c, h, w = x.shape
    columns = min(128, c)
    rows, tiles = _tiles(h * w, 64)
    sums = _empty_sums(n, tiles * (c // columns), x.device)
    convolution.image_sums[(n * tiles * (c // columns),)](x, sums, HW=h * w, C=c, BM=rows, BN=columns)
    return sums


class Result(NamedTuple):
    """What a convolution leaves: its output, the ReLU alone, the output's sums, the input's mean and rstd [N, 2]."""

    out: Tensor
    kept: Tensor | None
    sums: Tensor
    moments: Tensor


def convolve(
    x: Tensor,
    sums: Tensor,
    folded: Folded,
    eps: float,
    *,
    relu: bool = True,
    skip: Tensor | None = None,
    keep: bool = False,
    tile: Tile | None = None,
    real: Real | None = None,
) -> Result:
    """``conv(norm(x))``, its ReLU with ``relu``, plus ``skip`` if any; with ``keep``, the ReLU is stored apart too."""
    n, c, h, w = x.shape
    outputs = folded.weight.shape[0]
    tile = tile or choose_tile(x, outputs)
    _, tiles = _tiles(h * w, tile.rows)
    kernels, factors, options = _multiplied(x, folded.weight, tile, (tile.columns, tile.depth))
    out = _like(x, outputs)
    kept = _like(x, outputs) if keep else None
    column_tiles = outputs // tile.columns
    out_sums = _empty_sums(n, tiles * column_tiles, x.device)
    moments = torch.empty(n, 2, device=x.device)
    kernels.forward[(n * tiles * column_tiles,)](
        *factors, folded.table, sums, out if skip is None else skip, out if kept is None else kept, out,
        out_sums, moments, eps, H=h, W=w, C=c, OUT=outputs, **_parts(sums), **_real(real, x),
        RELU=relu, ADD=skip is not None, KEEP=keep, SUMS=relu, **options,
    )  # fmt: skip
    return Result(out, kept, out_sums, moments)


def _empty_gradient(x: Tensor, tiles: int, columns: int, shape: tuple[int, int] | None = None) -> Gradient:
    n, c = x.shape[:2]
    sums = _empty_sums(n, tiles * (c // columns), x.device)
    return Gradient(_like(x, c, shape), sums, torch.empty(n, tiles, 9, c, device=x.device))


def begin_backward(grad: Tensor, y: Tensor, folded: Folded, moments: Tensor, *, relu: bool) -> Gradient:
    """The gradient of a convolution with output ``y`` from that of its output, or of its ReLU with ``relu``."""
    n, c, h, w = y.shape
    columns = min(64, c)
    rows, tiles = _tiles(h * w, 64)
    result = _empty_gradient(y, tiles, columns)
    convolution.begin_backward[(n * tiles * (c // columns),)](
        grad, y, folded.table, moments, *result, H=h, W=w, OUT=c, RELU=relu, BM=rows, BN=columns
    )
    return result


def begin_pool_backward(
    grad: Tensor, pooled: Tensor, winner: Tensor, shape: tuple[int, int], folded: Folded, moments: Tensor
) -> Gradient:
    """:func:`begin_backward` from the gradient of the ReLU's max-pool, of an output of that height and width."""
    n, c, oh, ow = pooled.shape
    h, w = shape
    columns = min(64, c)
    windows, tiles = _tiles(oh * ow, POOLED_WINDOWS)
    result = _empty_gradient(pooled, tiles, columns, shape)
    convolution.begin_pool_backward[(n * tiles * (c // columns),)](
        grad, pooled, winner, folded.table, moments, *result, H=h, W=w, OH=oh, OW=ow, OUT=c, BM=windows, BN=columns,
    )  # fmt: skip
    return result


class Before(NamedTuple):
    """The convolution whose ReLU is part of an input: that ReLU (None: it is the input), its weights and moments."""

    relu: Tensor | None
    folded: Folded
    moments: Tensor


def convolve_backward(
    grad: Gradient,
    folded: Folded,
    x: Tensor,
    moments: Tensor,
    *,
    grad_sum: Tensor | None = None,
    store: bool,
    before: Before | None,
    tile: Tile | None = None,
    real: Real | None = None,
) -> tuple[Tensor | None, Gradient | None]:
    """The gradient of a convolution's raw input, ``grad_sum`` added, if to be stored; that of the one before it."""
    n, c, h, w = x.shape
    outputs = folded.weight.shape[0]
    tile = tile or choose_tile(grad.scaled, c, backward=True)
    _, tiles = _tiles(h * w, tile.rows)
    kernels, factors, options = _multiplied(grad.scaled, folded.weight, tile, (tile.depth, tile.columns))
    grad_x = _like(x, c) if store else None
    result = _empty_gradient(x, tiles, tile.columns) if before is not None else None
    kept, own, moments_before = before if before is not None else (None, folded, moments)
    kernels.backward[(n * tiles * (c // tile.columns),)](
        *factors, x, grad.sums, moments, x if grad_sum is None else grad_sum,
        x if grad_x is None else grad_x, x if kept is None else kept, own.table, moments_before,
        *(result or (x, moments, moments)), H=h, W=w, C=c, OUT=outputs, **_parts(grad.sums), **_real(real, x),
        HAS_GRAD_SUM=grad_sum is not None, STORE_X=store, BEFORE=before is not None, KEPT=kept is not None, **options,
    )  # fmt: skip
    return grad_x, result


def weight_gradient(
    grad: Gradient,
    x: Tensor,
    moments: Tensor,
    weight: Tensor,
    gain: Tensor,
    bias: Tensor,
    affine: Tensor,
    tile: WeightTile | None = None,
    into: Tensor | None = None,
    real: Real | None = None,
) -> Tensor:
    """The gradient of a convolution's weights, [O, C, 3, 3] in float32, channels last; written ``into``, if given.

    ``affine`` [9 O, 2, C] receives shares of those of the norm's gain and bias, to be summed over the first axis.
    """
    n, c, h, w = x.shape
    outputs = weight.shape[0]
    tile = tile or choose_weight_tile(x, outputs)
    groups = (outputs // tile.outputs) * (c // tile.inputs) * (9 // tile.taps)
    steps = triton.cdiv(triton.cdiv(n * h * w, max(1, tile.programs // groups)), tile.depth)
    splits = triton.cdiv(n * h * w, steps * tile.depth)
    parts = torch.empty(splits, outputs, 9, c, device=x.device)
    kernels: Any = gluon_kernels() if tile.gluon else convolution
    factors: tuple[Any, ...] = (grad.scaled, x)
    options: dict[str, Any] = {"TAPS": tile.taps, "TMA": tile.tma, "num_stages": tile.stages}
    if tile.gluon:
        factors = (_in_parts(grad.scaled, tile.depth, tile.outputs)[0], *_in_parts(x, tile.depth, tile.inputs))
        options = {"STAGES": tile.stages}
    elif tile.tma:
        by_pixel = grad.scaled.permute(0, 2, 3, 1).reshape(-1, outputs)
        factors = (_blocks(by_pixel, tile.depth, tile.outputs), _image_blocks(x, tile.depth, tile.inputs))
    kernels.weight_gradient[(groups, splits)](
        *factors, parts, **_real(real, x), images=n, H=h, W=w, C=c, OUT=outputs,
        BM=tile.outputs, BN=tile.inputs, BK=tile.depth, num_warps=tile.warps, **options,
    )  # fmt: skip
    tiles = grad.class_sums.shape[1]
    per_program, stretches = _stretches(n * tiles)
    classes = torch.empty(stretches, 2, 9, outputs, device=x.device)
    convolution.class_sums[(stretches, 9)](
        grad.class_sums, moments, classes, n * tiles, per_program, TILES=tiles, OUT=outputs,
        ROWS=max(1, 2048 // outputs),
    )  # fmt: skip
    out = torch.empty(outputs, 3, 3, c, device=x.device).permute(0, 3, 1, 2) if into is None else into
    some = max(1, min(outputs, 256 // c))
    convolution.finish_weight_gradient[(outputs // some, 9)](
        parts, classes, weight, gain, bias, out, affine, splits, stretches, *_weight_strides(weight), C=c, OUT=outputs,
        SOME=some, SPLITS=max(1, 4096 // (some * c)), STRETCHES=STRETCHES,
    )  # fmt: skip
    return out
