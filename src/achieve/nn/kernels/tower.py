"""A stack's residual blocks on a GPU: 3x3 convolutions that apply the norm before them and measure for the one after.

:class:`_Tower` runs a chain of up to five of them as one autograd function, because backward every convolution hands
the one before it more than a gradient. The kernels, and how a norm folds into a convolution, are in
`convolution.py`. The plain twin, which defines what is computed, is `ResidualBlock` in `nn/encoder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor, nn
from triton.tools.tensor_descriptor import TensorDescriptor

from achieve.nn.kernels import convolution
from achieve.nn.kernels.flat import FlatParameters
from achieve.nn.kernels.pools import pool_forward
from achieve.nn.layers import NormConv

# Programs that keep most of a GPU busy: below, tiles are made smaller. An H200 has 132 multiprocessors.
ENOUGH_PROGRAMS = 100
# Convolutions of a stack's blocks.
BLOCK_LAYERS = 4
# Stretches of tiles whose sums by class are added up apart.
STRETCHES = 16


class Tile(NamedTuple):
    """Pixels by output channels of a program, and how many input channels it takes at a time.

    With ``tma`` the tensor memory accelerator loads the factors: a tile must then be whole rows of an image.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    registers: int | None = None
    tma: bool = False


class WeightTile(NamedTuple):
    """Outputs by inputs of a program, for one tap or for three, and how many pixels it takes at a time.

    There are about so many programs: each adds up its own stretch of pixels.
    """

    outputs: int
    inputs: int
    taps: int
    depth: int
    warps: int
    stages: int
    programs: int = 132
    tma: bool = False


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
    rows, columns = min(64 if small else 128, outputs), min(64, inputs)
    wide = rows * columns >= 128 * 64
    tma = has_tma(x.device) and _whole_rows(x, 64) and rows >= 64 and columns == 64
    if tma and not small:
        if wide and inputs >= 128:
            return WeightTile(rows, 128, 1, 64, 8, 4, tma=True)
        return WeightTile(rows, columns, 3, 64, 8 if wide else 4, 4, tma=True)
    return WeightTile(rows, columns, 3, 64, 8 if wide else 4, _stages(x.device), 132 if wide or small else 264, tma)


@cache
def has_tma(device: torch.device) -> bool:
    """Whether this device has a tensor memory accelerator: compute capability 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _whole_rows(x: Tensor, rows: int) -> bool:
    """Whether a tile of so many pixels is whole rows of one image."""
    height, width = x.shape[2:]
    return rows % width == 0 and height * width % rows == 0


def _image_blocks(x: Tensor, tile_rows: int, channels: int) -> TensorDescriptor:
    """Describes images [N, H, W, C] in blocks of whole rows: what lies outside reads as zero."""
    block = [1, tile_rows // x.shape[3], x.shape[3], channels]
    x = x.permute(0, 2, 3, 1)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block)


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
) -> Result:
    """``conv(norm(x))``, its ReLU with ``relu``, plus ``skip`` if any; with ``keep``, the ReLU is stored apart too."""
    n, c, h, w = x.shape
    outputs = folded.weight.shape[0]
    tile = tile or choose_tile(x, outputs)
    rows, tiles = _tiles(h * w, tile.rows)
    factors: tuple[Any, Any] = (x, folded.weight)
    if tile.tma:
        factors = (
            _image_blocks(x, rows, tile.depth), _blocks(folded.weight.flatten(1), tile.columns, tile.depth)
        )  # fmt: skip
    out = _like(x, outputs)
    kept = _like(x, outputs) if keep else None
    column_tiles = outputs // tile.columns
    out_sums = _empty_sums(n, tiles * column_tiles, x.device)
    moments = torch.empty(n, 2, device=x.device)
    convolution.forward[(n * tiles * column_tiles,)](
        *factors, folded.table, sums, out if skip is None else skip, out if kept is None else kept, out,
        out_sums, moments, eps, H=h, W=w, C=c, OUT=outputs, **_parts(sums),
        RELU=relu, ADD=skip is not None, KEEP=keep, SUMS=relu,
        BM=rows, BN=tile.columns, BK=tile.depth, TMA=tile.tma,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
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
    rows, tiles = _tiles(h * w, 64)
    result = _empty_gradient(pooled, tiles, columns, shape)
    convolution.begin_pool_backward[(n * tiles * (c // columns),)](
        grad, pooled, winner, folded.table, moments, *result, H=h, W=w, OH=oh, OW=ow, OUT=c, BM=rows, BN=columns,
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
) -> tuple[Tensor | None, Gradient | None]:
    """The gradient of a convolution's raw input, ``grad_sum`` added, if to be stored; that of the one before it."""
    n, c, h, w = x.shape
    outputs = folded.weight.shape[0]
    tile = tile or choose_tile(grad.scaled, c, backward=True)
    rows, tiles = _tiles(h * w, tile.rows)
    factors: tuple[Any, Any] = (grad.scaled, folded.weight)
    if tile.tma:
        factors = (
            _image_blocks(grad.scaled, rows, tile.depth), _blocks(folded.weight.flatten(1), tile.depth, tile.columns)
        )  # fmt: skip
    grad_x = _like(x, c) if store else None
    result = _empty_gradient(x, tiles, tile.columns) if before is not None else None
    kept, own, moments_before = before if before is not None else (None, folded, moments)
    convolution.backward[(n * tiles * (c // tile.columns),)](
        *factors, x, grad.sums, moments, x if grad_sum is None else grad_sum,
        x if grad_x is None else grad_x, x if kept is None else kept, own.table, moments_before,
        *(result or (x, moments, moments)), H=h, W=w, C=c, OUT=outputs, **_parts(grad.sums),
        HAS_GRAD_SUM=grad_sum is not None, STORE_X=store, BEFORE=before is not None, KEPT=kept is not None,
        BM=rows, BN=tile.columns, BK=tile.depth, TMA=tile.tma,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
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
    factors: tuple[Any, Any] = (grad.scaled, x)
    if tile.tma:
        by_pixel = grad.scaled.permute(0, 2, 3, 1).reshape(-1, outputs)
        factors = (_blocks(by_pixel, tile.depth, tile.outputs), _image_blocks(x, tile.depth, tile.inputs))
    convolution.weight_gradient[(groups, splits)](
        *factors, parts, n * h * w, steps, H=h, W=w, C=c, OUT=outputs, TAPS=tile.taps,
        BM=tile.outputs, BN=tile.inputs, BK=tile.depth, TMA=tile.tma,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    tiles = grad.class_sums.shape[1]
    per_program = triton.cdiv(n * tiles, STRETCHES)
    stretches = triton.cdiv(n * tiles, per_program)
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


class _Tower(torch.autograd.Function):
    """Two residual blocks on ``x``; if there is a next stack, its convolution, ReLU and max-pool too.

    ``parameters`` are weight, gain and bias of each of the four or five convolutions. Their gradients are left where
    ``flat`` keeps them, or without it returned, as any other function does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sums: Tensor | None,
        folded: list[Folded],
        eps: list[float],
        train: bool,
        flat: FlatParameters | None,
        *parameters: Tensor,
    ) -> Tensor:
        sums = image_sums(x) if sums is None else sums
        saved: list[Tensor] = []
        skip = x
        for index, (weights, small) in enumerate(zip(folded, eps, strict=True)):
            adds = index % 2 == 1
            result = convolve(
                x, sums, weights, small, relu=index < BLOCK_LAYERS, skip=skip if adds else None, keep=adds and train
            )
            # What the ReLU made of this convolution's output: kept apart where a skip connection was added to it.
            saved += [x, result.moments, result.out if result.kept is None else result.kept]
            x, sums = result.out, result.sums
            skip = x if adds else skip
        if len(folded) > BLOCK_LAYERS:
            ctx.shape = x.shape[2:]
            x, winner = pool_forward(x, None)
            saved[-1:] = [x, winner]
        if train:
            ctx.save_for_backward(*saved)
        ctx.folded, ctx.flat, ctx.parameters = folded, flat, parameters
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        folded = ctx.folded
        count = len(folded)
        saved, parameters = ctx.saved_tensors, ctx.parameters
        inputs, moments, relus = (saved[i : 3 * count : 3] for i in range(3))
        grad_x = grads[0].contiguous(memory_format=torch.channels_last)
        if count > BLOCK_LAYERS:
            pooled, winner = saved[-2:]
            grad = begin_pool_backward(grad_x, pooled, winner, ctx.shape, folded[-1], moments[-1])
        else:
            grad = begin_backward(grad_x, relus[-1], folded[-1], moments[-1], relu=True)
        owner = _Gradients(ctx.flat, parameters, inputs, max(weights.weight.shape[0] for weights in folded))
        for index in reversed(range(count)):
            owner.add(index, grad, inputs[index], moments[index])
            joins = index % 2 == 0  # its input is also a skip connection's: the entry's of the blocks, or a sum
            before = None
            if index > 0:
                before = Before(relus[index - 1] if joins else None, folded[index - 1], moments[index - 1])
            stored, passed = convolve_backward(
                grad, folded[index], inputs[index], moments[index],
                grad_sum=grad_x if joins and index < BLOCK_LAYERS else None, store=joins, before=before,
            )  # fmt: skip
            grad_x = cast(Tensor, stored) if joins else grad_x
            grad = cast(Gradient, passed)
        return grad_x, *[None] * 5, *owner.finish()


class _Gradients:
    """Computes the gradients of a tower's parameters, beside the rest of the backward pass where they lie flat.

    Nothing waits for them before the optimiser. Their kernels are short or leave multiprocessors idle at their end.
    """

    def __init__(
        self, flat: FlatParameters | None, parameters: Sequence[Tensor], inputs: Sequence[Tensor], most: int
    ) -> None:
        self._flat, self._parameters = flat, parameters
        self._count = len(inputs)
        self._found: dict[int, Tensor] = {}
        with self._beside():
            # Shares of the gains' and the biases' gradients; a layer of fewer outputs leaves the rest zero.
            self._affine = torch.zeros(self._count, 9 * most, 2, inputs[0].shape[1], device=inputs[0].device)

    def _beside(self, *read: Tensor) -> AbstractContextManager[object]:
        return nullcontext() if self._flat is None else self._flat.beside(*read)

    def add(self, index: int, grad: Gradient, x: Tensor, moments: Tensor) -> None:
        """Take in a layer: the gradient of its output, its input and that one's moments."""
        weight, gain, bias = self._parameters[3 * index : 3 * index + 3]
        with self._beside(*grad, x, moments, self._affine):
            into = None
            if self._flat is not None and weight.grad is None:
                into, _ = self._flat.place(cast(nn.Parameter, weight))
            found = weight_gradient(grad, x, moments, weight, gain, bias, self._affine[index], into=into)
        if into is None:
            self._found[index] = found

    def finish(self) -> list[Tensor | None]:
        """Return the gradients of all parameters, or Nones, where they were brought to their place."""
        with self._beside(self._affine):
            sums = self._affine.sum(1)
        by_layer = [(self._found.get(i), sums[i, 0], sums[i, 1]) for i in range(self._count)]
        gradients = [gradient for layer in by_layer for gradient in layer]
        if self._flat is None:
            return gradients
        found = [(cast(nn.Parameter, p), g) for p, g in zip(self._parameters, gradients, strict=True) if g is not None]
        self._flat.leave(*zip(*found, strict=True))
        return [None] * len(gradients)


class Tower:
    """The residual blocks of a stack, and the convolution that follows them, with weights that may be kept folded."""

    def __init__(
        self,
        layers: list[NormConv],
        dtype: torch.dtype,
        flat: FlatParameters | None = None,
    ) -> None:
        self._dtype = dtype
        self._flat = flat
        self._weights = [layer.conv.weight for layer in layers]
        self._norms = [cast(nn.GroupNorm, layer.norm) for layer in layers]
        self._cached: list[Folded] = []

    def cache_weights(self) -> None:
        """Fold the weights now, for calls with ``cached``: right while they do not change."""
        if not self._cached:
            self._cached = empty_folded(self._weights, self._dtype)
        self._fold(self._cached)  # in place: captured graphs read from there

    def __call__(self, x: Tensor, *, cached: bool, sums: Tensor | None = None) -> Tensor:
        """Return the blocks' output, or that of the following convolution and max-pool.

        ``sums`` are those of ``x`` as :func:`image_sums` returns them, where they are known.
        """
        folded = self._cached if cached else self._fold(empty_folded(self._weights, self._dtype))
        parameters = [p for layer in self._layers() for p in layer]
        eps = [norm.eps for norm in self._norms]
        return cast(Tensor, _Tower.apply(x, sums, folded, eps, torch.is_grad_enabled(), self._flat, *parameters))

    def _layers(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(weight, norm.weight, norm.bias) for weight, norm in zip(self._weights, self._norms, strict=True)]

    def _fold(self, into: list[Folded]) -> list[Folded]:
        with torch.no_grad():
            return fold(self._layers(), into)


def supports(device: torch.device) -> bool:
    """Whether this device has the tensor cores these kernels are written for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def fits(x: Tensor) -> bool:
    """Whether images are large enough to have a first and a last row and column that differ."""
    return min(x.shape[2:]) > 1
