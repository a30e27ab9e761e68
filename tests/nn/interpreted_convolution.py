"""The convolution kernels against PyTorch's norm and convolution in float64, run by Triton's interpreter.

`test_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from achieve.nn.kernels import hopper, norm_conv
from achieve.nn.kernels.norm_conv import Before, Folded, Gradient, Tile, WeightTile
from achieve.nn.kernels.norms import norm_forward
from achieve.nn.kernels.pools import pool_forward
from achieve.nn.kernels.tower import Tower
from achieve.nn.layers import NormConv
from achieve.nn.padding import Real
from achieve.reproduce.mps import SHARED
from tests.helpers.gluon import played

EPS = 1e-5
TILE = Tile(64, 16, 16, 4, 1)
TMA = TILE._replace(rows=32, tma=True)
GLUON = TILE._replace(rows=32, stages=2, gluon=True)


@pytest.fixture(autouse=True)
def gluon() -> Iterator[None]:
    """Triton's interpreter does not know Gluon."""
    with played(hopper, "forward", "backward", "weight_gradient"):
        yield


def draw(*shape: int, seed: int, offset: float = 0.0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + offset
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x


def fold(*layer: Tensor) -> Folded:
    (folded,) = norm_conv.fold([layer], norm_conv.empty_folded(layer[:1], torch.float32))
    return folded


class Layer:
    """A norm and the convolution after it, drawn at random, and an input whose mean is not zero."""

    def __init__(self, images: int, inputs: int, outputs: int, height: int, width: int, seed: int = 0) -> None:
        self.x = draw(images, inputs, height, width, seed=seed, offset=0.5).relu()
        self.weight = draw(outputs, inputs, 3, 3, seed=seed + 1).contiguous() / 10
        self.gain = draw(inputs, seed=seed + 2, offset=1.0)
        self.bias = draw(inputs, seed=seed + 3) / 3
        self.folded = fold(self.weight, self.gain, self.bias)

    def convolve(self, **options: object) -> norm_conv.Result:
        return norm_conv.convolve(self.x, norm_conv.image_sums(self.x), self.folded, EPS, **options)

    def twin(self, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(F.group_norm(x, 1, gain, bias, EPS), weight, padding=1)

    def leaves(self) -> list[Tensor]:
        return [t.double().requires_grad_() for t in (self.x, self.weight, self.gain, self.bias)]


# Whole images in a tile, several tiles to an image, pixels that fill no tile, more outputs than inputs, two rows.
SHAPES = [(2, 16, 16, 8, 8), (2, 16, 32, 12, 16), (3, 32, 16, 5, 7), (1, 16, 16, 2, 3)]
# The largest is slow under the interpreter.
MARKED = [pytest.param(shape, marks=pytest.mark.long) if shape == SHAPES[1] else shape for shape in SHAPES]


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_folded_weights(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    """By hand: the sums of the taps inside, for a first, an inner and a last row and column."""
    layer = Layer(*shape)
    weight = layer.weight.contiguous(memory_format=layout)
    folded = fold(weight, layer.gain, layer.bias)
    expected = layer.weight * layer.gain[:, None, None]
    assert torch.equal(folded.weight, expected.flatten(2).transpose(1, 2))
    ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    for table, of in zip(folded.table, (expected, layer.weight * layer.bias[:, None, None]), strict=True):
        sums = F.conv2d(ones, of.double().sum(1, keepdim=True), padding=1)[0].flatten(1).T
        torch.testing.assert_close(table.double(), sums, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", [8, 24])
def test_a_norm_leaves_the_sums_of_what_it_makes(side: int) -> None:
    """In one piece, and in several."""
    x = draw(2, 16, side, side, seed=0, offset=0.5)
    sums = torch.empty(2, 2, 1)
    _, y, _, _ = norm_forward(x, None, draw(16, seed=1), draw(16, seed=2), EPS, relu=False, sums=sums)
    torch.testing.assert_close(sums, norm_conv.image_sums(y).sum(2, keepdim=True), atol=1e-2, rtol=1e-4)


# With every shape; and whole rows of images, for the tensor memory accelerator.
TILES = [
    pytest.param(shape, tile, marks=[pytest.mark.long] if shape == SHAPES[1] and tile in (None, TILE) else [])
    for shape in SHAPES
    for tile in (None, TILE, *([TMA, GLUON, GLUON._replace(stages=3)] if shape in SHAPES[:2] else []))
]


@pytest.mark.parametrize(("shape", "tile"), TILES)
@pytest.mark.parametrize(("relu", "add"), [(False, False), (True, False), (True, True)])
def test_forward(shape: tuple[int, ...], tile: Tile | None, relu: bool, add: bool) -> None:
    layer = Layer(*shape)
    expected = layer.twin(*layer.leaves())
    skip = draw(*expected.shape, seed=9) if add else None
    result = layer.convolve(relu=relu, skip=skip, keep=add, tile=tile)
    expected = expected.relu() if relu else expected
    if add:
        assert result.kept is not None and skip is not None
        torch.testing.assert_close(result.kept.double(), expected, atol=1e-5, rtol=1e-5)
        expected = expected + skip
    torch.testing.assert_close(result.out.double(), expected, atol=1e-5, rtol=1e-5)
    mean, variance = layer.x.double().mean((1, 2, 3)), layer.x.double().var((1, 2, 3), correction=0)
    torch.testing.assert_close(
        result.moments.double(), torch.stack([mean, (variance + EPS).rsqrt()], 1), atol=1e-5, rtol=1e-5
    )
    if relu:
        sums = torch.stack([expected.sum((1, 2, 3)), expected.square().sum((1, 2, 3))], 1)
        torch.testing.assert_close(result.sums.sum(2).double(), sums, atol=1e-3, rtol=1e-5)


def backward(layer: Layer, upstream: Tensor) -> tuple[Gradient, norm_conv.Result]:
    result = layer.convolve(relu=False)
    return norm_conv.begin_backward(upstream, result.out, layer.folded, result.moments, relu=False), result


@pytest.mark.parametrize(("shape", "tile"), TILES)
def test_input_gradient(shape: tuple[int, ...], tile: Tile | None) -> None:
    """With that of a skip connection on top."""
    layer = Layer(*shape)
    leaves = layer.leaves()
    out = layer.twin(*leaves)
    upstream, other = draw(*out.shape, seed=5), draw(*layer.x.shape, seed=6)
    (expected,) = torch.autograd.grad((out * upstream).sum() + (leaves[0] * other).sum(), leaves[:1])
    grad, result = backward(layer, upstream)
    mine, passed = norm_conv.convolve_backward(
        grad, layer.folded, layer.x, result.moments, grad_sum=other, store=True, before=None, tile=tile
    )
    assert mine is not None and passed is None
    torch.testing.assert_close(mine.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "tile"), [(SHAPES[0], TILE), (SHAPES[0], TMA), (SHAPES[0], GLUON._replace(rows=64)),
                        pytest.param(SHAPES[1], TILE, marks=pytest.mark.long), (SHAPES[1], GLUON),
                        *((shape, TILE) for shape in SHAPES[2:])]
)  # fmt: skip
@pytest.mark.parametrize("kept", [True, False])
def test_what_is_passed_to_the_convolution_before(shape: tuple[int, ...], tile: Tile, kept: bool) -> None:
    """Its gradient through the ReLU, and with it all that its own backward pass asks for."""
    layer, before = Layer(*shape), Layer(*shape, seed=20)
    n, c, _, h, w = shape
    earlier = Layer(n, 32, c, h, w, seed=30)
    made = earlier.convolve(relu=True)
    relu = made.out
    layer.x = relu + before.x if kept else relu
    leaves = earlier.leaves()
    y = earlier.twin(*leaves)
    x = y.relu() + (before.x.double() if kept else 0)
    out = layer.twin(x, layer.weight.double(), layer.gain.double(), layer.bias.double())
    upstream = draw(*out.shape, seed=5)
    (wanted, expected) = torch.autograd.grad((out * upstream).sum(), [y, leaves[0]])
    grad, result = backward(layer, upstream)
    stored, passed = norm_conv.convolve_backward(
        grad, layer.folded, layer.x, result.moments, store=False,
        before=Before(relu if kept else None, earlier.folded, made.moments), tile=tile,
    )  # fmt: skip
    assert stored is None and passed is not None
    rstd = made.moments[:, 1].double().view(-1, 1, 1, 1)
    torch.testing.assert_close(passed.scaled.double() / rstd, wanted, atol=1e-4, rtol=1e-4)
    exact = wanted.float().contiguous(memory_format=torch.channels_last)
    begun = norm_conv.begin_backward(exact, relu, earlier.folded, made.moments, relu=True)
    torch.testing.assert_close(passed.sums.sum(2), begun.sums.sum(2), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(passed.class_sums.sum(1), begun.class_sums.sum(1), atol=1e-3, rtol=1e-3)
    mine, _ = norm_conv.convolve_backward(
        passed, earlier.folded, earlier.x, made.moments, store=True, before=None
    )
    assert mine is not None
    torch.testing.assert_close(mine.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", MARKED)
def test_beginning_at_a_pool(shape: tuple[int, ...]) -> None:
    """As from the gradient that PyTorch's max-pool leaves."""
    layer = Layer(*shape)
    result = layer.convolve(relu=False)
    y = result.out.clone(memory_format=torch.preserve_format).requires_grad_()
    expected = F.max_pool2d(y.relu(), 3, stride=2, padding=1)
    upstream = draw(*expected.shape, seed=5)
    (at_y,) = torch.autograd.grad(expected, y, upstream)
    wanted = norm_conv.begin_backward(
        at_y.contiguous(memory_format=torch.channels_last), result.out, layer.folded, result.moments, relu=False
    )
    pooled, winner = pool_forward(result.out, None)
    mine = norm_conv.begin_pool_backward(
        upstream, pooled, winner, (shape[3], shape[4]), layer.folded, result.moments
    )
    torch.testing.assert_close(mine.scaled, wanted.scaled, atol=1e-4, rtol=1e-4)
    # The two may divide a sum into other parts: a window's largest element can lie in the tile beside its own.
    torch.testing.assert_close(mine.sums.sum(2), wanted.sums.sum(2), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine.class_sums.sum(1), wanted.class_sums.sum(1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        (SHAPES[0], None),
        pytest.param(SHAPES[1], WeightTile(16, 16, 1, 16, 4, 1, 30), marks=pytest.mark.long),
        (SHAPES[2], WeightTile(16, 16, 3, 32, 4, 1, 1)),
        (SHAPES[0], WeightTile(16, 16, 1, 32, 4, 1, 18, tma=True)),
        (SHAPES[1], WeightTile(16, 16, 3, 32, 4, 1, 30, tma=True)),
        (SHAPES[0], WeightTile(16, 16, 3, 32, 4, 2, 18, gluon=True)),
        (SHAPES[1], WeightTile(16, 16, 3, 64, 4, 3, 3, gluon=True)),
        (SHAPES[1], WeightTile(32, 16, 3, 64, 4, 2, 9, gluon=True)),
    ],
)
def test_weight_gradients(shape: tuple[int, ...], tile: WeightTile | None) -> None:
    """The weights', the gain's and the bias's, however many programs add them up."""
    layer = Layer(*shape)
    leaves = layer.leaves()
    out = layer.twin(*leaves)
    upstream = draw(*out.shape, seed=5)
    _, *expected = torch.autograd.grad((out * upstream).sum(), leaves)
    grad, result = backward(layer, upstream)
    affine = torch.full((9 * out.shape[1], 2, layer.x.shape[1]), torch.nan)
    weight = norm_conv.weight_gradient(
        grad, layer.x, result.moments, layer.weight, layer.gain, layer.bias, affine, tile
    )
    for mine, wanted in zip((weight, *affine.sum(0)), expected, strict=True):
        torch.testing.assert_close(mine.double(), wanted, atol=1e-3, rtol=1e-4)


def test_fewer_programs_add_up_weight_gradients_where_runs_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_conv, "has_gluon", lambda device: True)
    for side in (32, 8):
        x = torch.empty(16, 64, side, side)
        monkeypatch.delenv(SHARED, raising=False)
        alone = norm_conv.choose_weight_tile(x, 128)
        monkeypatch.setenv(SHARED, "1")
        shared = norm_conv.choose_weight_tile(x, 128)
        assert shared.gluon and shared.programs < alone.programs
        assert shared._replace(programs=alone.programs) == alone


# Four images, of which three are real; how many they are at least may be all of the real ones, or fewer.
PADDED = (4, 16, 32, 8, 8)
WEIGHT_TILES = (
    WeightTile(16, 16, 1, 32, 4, 1, 18), WeightTile(16, 16, 3, 32, 4, 1, 18, tma=True),
    WeightTile(16, 16, 3, 32, 4, 2, 18, gluon=True),
)  # fmt: skip


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("number", range(3))
def test_images_that_fill_a_batch_up_are_not_read_and_change_nothing(least: int, number: int) -> None:
    tile, weight_tile = (TILE, TMA, GLUON)[number], WEIGHT_TILES[number]
    layer = Layer(*PADDED)
    layer.x[3] = torch.nan
    real = Real(torch.tensor([3]), least)
    skip, upstream = draw(4, 32, 8, 8, seed=9), draw(4, 32, 8, 8, seed=5)
    few = Layer(*PADDED)
    few.x = few.x[:3].contiguous(memory_format=torch.channels_last)
    result = layer.convolve(skip=skip, keep=True, tile=tile, real=real)
    wanted = few.convolve(skip=skip[:3], keep=True, tile=tile)
    for mine, theirs in zip(result, wanted, strict=True):
        assert torch.equal(mine[:3], theirs)
    assert not result.out[3].any() and not result.kept[3].any() and not result.sums[3].any()
    assert result.moments[3].tolist() == [0, 1]
    upstream[3] = 0
    grad = norm_conv.begin_backward(upstream, result.kept, layer.folded, result.moments, relu=True)
    less = norm_conv.begin_backward(upstream[:3], wanted.kept, few.folded, wanted.moments, relu=True)
    earlier, other = Layer(4, 16, 16, 8, 8, seed=30), draw(4, 16, 8, 8, seed=6)
    moments = earlier.convolve().moments
    for spoilt in (grad.scaled, grad.sums, other, moments):
        spoilt[3] = torch.nan
    stored, passed = norm_conv.convolve_backward(
        grad, layer.folded, layer.x, result.moments, grad_sum=other, store=True, tile=tile, real=real,
        before=Before(layer.x, earlier.folded, moments),
    )  # fmt: skip
    expected, left = norm_conv.convolve_backward(
        less, few.folded, few.x, wanted.moments, grad_sum=other[:3], store=True, tile=tile,
        before=Before(few.x, earlier.folded, moments[:3]),
    )  # fmt: skip
    for mine, theirs in zip((stored, *passed), (expected, *left), strict=True):
        assert torch.equal(mine[:3], theirs)
        assert not mine[3].any()
    weights = []
    for one, its_grad, of, given in ((layer, grad, result, real), (few, less, wanted, None)):
        affine = torch.zeros(9 * 32, 2, 16)
        found = norm_conv.weight_gradient(
            its_grad, one.x, of.moments, one.weight, one.gain, one.bias, affine, weight_tile, real=given
        )
        weights.append([found, *affine.sum(0)])
    for mine, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_a_tower_of_a_batch_filled_up() -> None:
    """Its output and all gradients are those of the real images alone."""
    torch.manual_seed(0)
    layers = [NormConv(16, 32 if i == 4 else 16, norm=True, gain=1.0) for i in range(5)]
    x, upstream = draw(4, 16, 8, 8, seed=0).relu(), draw(4, 32, 4, 4, seed=1)
    x[3] = 7
    upstream[3] = 0
    found = []
    for images, real in ((4, Real(torch.tensor([3]), 2)), (3, None)):
        start = x[:images].clone(memory_format=torch.preserve_format).requires_grad_()
        out = Tower(layers, torch.float32)(start, cached=False, real=real)
        parameters = [p for layer in layers for p in layer.parameters()]
        at_x, *others = torch.autograd.grad(out, [start, *parameters], upstream[:images])
        found.append([out[:3], at_x[:3], *others])
        if images == 4:
            assert not out[3].any() and not at_x[3].any()
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("per_stretch", [1, 2])
def test_sums_by_class_of_many_tiles(per_stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many stretches as are read at once, and more; the last one shorter than the others."""
    monkeypatch.setattr(norm_conv, "FEW_TILES", 20)
    monkeypatch.setattr(norm_conv, "STRETCH", per_stretch)
    assert norm_conv._stretches(20) == (2, 10)
    assert norm_conv._stretches(35) == (per_stretch, 35 // per_stretch + per_stretch - 1)
    layer = Layer(35, 16, 16, 2, 3)
    leaves = layer.leaves()
    out = layer.twin(*leaves)
    upstream = draw(*out.shape, seed=5)
    _, *expected = torch.autograd.grad((out * upstream).sum(), leaves)
    grad, result = backward(layer, upstream)
    affine = torch.full((9 * 16, 2, 16), torch.nan)
    weight = norm_conv.weight_gradient(grad, layer.x, result.moments, layer.weight, layer.gain, layer.bias, affine)
    for mine, wanted in zip((weight, *affine.sum(0)), expected, strict=True):
        torch.testing.assert_close(mine.double(), wanted, atol=1e-3, rtol=1e-4)


def test_sums_by_class_are_in_few_stretches_or_in_short_ones() -> None:
    for tiles in (1, 15, 224 * 16, norm_conv.FEW_TILES):
        assert norm_conv._stretches(tiles)[1] <= norm_conv.STRETCHES
    for tiles, most in ((1024 * 8, 128), (2048 * 8, 128), (2048 * 16, 256)):
        per_program, stretches = norm_conv._stretches(tiles)
        assert per_program <= most and stretches <= norm_conv.MOST_STRETCHES and per_program * stretches >= tiles


@pytest.mark.parametrize("count", [4, 5])
def test_a_tower(count: int) -> None:
    """Two blocks, with the next stack's convolution and without: output and every gradient."""
    torch.manual_seed(0)
    layers = [NormConv(16, 32 if i == 4 else 16, norm=True, gain=1.0) for i in range(count)]
    for layer in layers:
        for p in layer.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
    start = draw(2, 16, 6, 5, seed=1)
    parameters = [p for layer in layers for p in layer.parameters()]

    def twin(x: Tensor) -> Tensor:
        for first, second in (layers[:2], layers[2:4]):
            x = x + second(first(x))
        return F.max_pool2d(layers[4](x), 3, stride=2, padding=1) if count == 5 else x

    for layer in layers:
        layer.double()
    x = start.double().requires_grad_()
    expected = twin(x)
    upstream = draw(*expected.shape, seed=2)
    wanted = torch.autograd.grad((expected * upstream).sum(), [x, *parameters])
    for layer in layers:
        layer.float()
    x = start.clone(memory_format=torch.preserve_format).requires_grad_()
    result = Tower(layers, torch.float32)(x, cached=False)
    torch.testing.assert_close(result.double(), expected, atol=1e-4, rtol=1e-4)
    for mine, one in zip(torch.autograd.grad((result * upstream).sum(), [x, *parameters]), wanted, strict=True):
        assert (mine.double() - one).norm() < 1e-4 * one.norm()
