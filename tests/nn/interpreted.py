"""The Triton kernels against their plain twins, run by Triton's interpreter: no GPU needed.

`test_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from achieve.algo.transport import partial_transport
from achieve.config import ModelConfig
from achieve.nn.encoder import ResidualEncoder
from achieve.nn.kernels import entry_pool, fused
from achieve.nn.kernels.entry import entry_weight_backward, prepare
from achieve.nn.kernels.transport import transport

EPS = 1e-5
SMALL = ModelConfig(channels=(16, 16, 16), dense_size=8, hidden_size=8)


def channels_last(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last).requires_grad_(grad)


# Images that fill several tiles, less than one, and an odd number of pixels.
SHAPES = [(2, 16, 8, 8), (3, 32, 5, 7), (2, 16, 40, 40), (2, 512, 6, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("relu", [True, False])
def test_norm(shape: tuple[int, ...], relu: bool) -> None:
    z = channels_last(*shape)
    gain, bias = torch.randn(2, shape[1], generator=torch.Generator().manual_seed(1))
    gain.requires_grad_(), bias.requires_grad_()
    weights = channels_last(*shape, seed=2, grad=False)
    expected = F.group_norm(torch.relu(z) if relu else z, 1, gain, bias, EPS)
    gradients = torch.autograd.grad((expected * weights).sum(), [z, gain, bias])

    result = fused._Norm.apply(z, gain, bias, EPS, relu)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
    mine = torch.autograd.grad((result * weights).sum(), [z, gain, bias])
    for got, wanted in zip(mine, gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_skip_norm(shape: tuple[int, ...]) -> None:
    """What is normed goes on as it is, too; alone, it is a norm."""
    x = channels_last(*shape)
    gain, bias = torch.randn(2, shape[1], generator=torch.Generator().manual_seed(2))
    gain.requires_grad_(), bias.requires_grad_()
    first, second = (channels_last(*shape, seed=s, grad=False) for s in (3, 4))
    for use_both in (True, False):

        def loss(same: Tensor, normed: Tensor, use_both: bool = use_both) -> Tensor:
            return (normed * first).sum() + ((same * second).sum() if use_both else 0)

        expected = F.group_norm(x, 1, gain, bias, EPS)
        gradients = torch.autograd.grad(loss(x, expected), [x, gain, bias])
        same, normed = fused._SkipNorm.apply(x, gain, bias, EPS)
        assert same.data_ptr() == x.data_ptr()
        torch.testing.assert_close(normed, expected, atol=1e-4, rtol=1e-4)
        for got, wanted in zip(torch.autograd.grad(loss(same, normed), [x, gain, bias]), gradients, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("use_sum", [True, False])
def test_add_norm(shape: tuple[int, ...], use_sum: bool) -> None:
    """The sum may go on into a skip connection, or be needed for the norm alone."""
    z, skip = channels_last(*shape), channels_last(*shape, seed=1)
    gain, bias = torch.randn(2, shape[1], generator=torch.Generator().manual_seed(2))
    gain.requires_grad_(), bias.requires_grad_()
    first, second = (channels_last(*shape, seed=s, grad=False) for s in (3, 4))
    inputs = [z, skip, gain, bias]

    def loss(total: Tensor, normed: Tensor) -> Tensor:
        return (normed * first).sum() + ((total * second).sum() if use_sum else 0)

    expected = torch.relu(z) + skip
    expected_normed = F.group_norm(expected, 1, gain, bias, EPS)
    gradients = torch.autograd.grad(loss(expected, expected_normed), inputs)
    total, normed = fused._AddNorm.apply(z, skip, gain, bias, EPS)
    torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(normed, expected_normed, atol=1e-4, rtol=1e-4)
    for got, wanted in zip(
        torch.autograd.grad(loss(total, normed), inputs), gradients, strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (1, 32, 7, 9), (3, 16, 1, 1), (1, 16, 5, 70)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_pool(shape: tuple[int, ...], with_bias: bool) -> None:
    z = channels_last(*shape)
    bias = torch.randn(shape[1], generator=torch.Generator().manual_seed(1)).requires_grad_()
    shifted = z + bias[:, None, None] if with_bias else z
    expected = F.max_pool2d(torch.relu(shifted), 3, stride=2, padding=1)
    weights = channels_last(*expected.shape, seed=2, grad=False)
    inputs = [z, bias] if with_bias else [z]
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)

    result = fused._Pool.apply(z, bias if with_bias else None)
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-6)
    for got, wanted in zip(
        torch.autograd.grad((result * weights).sum(), inputs), gradients, strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-5)


def test_pool_sends_a_gradient_to_one_of_equals() -> None:
    """Flat regions are common in pixel art: of equal inputs the first wins, as in PyTorch."""
    z = torch.ones(1, 16, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    result = fused._Pool.apply(z, None)
    (mine,) = torch.autograd.grad(result.sum(), z)
    (expected,) = torch.autograd.grad(F.max_pool2d(torch.relu(z), 3, 2, 1).sum(), z)
    assert torch.equal(mine, expected)


@pytest.mark.parametrize("inputs", [1, 3, 4, 8, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_prepare(inputs: int, dtype: torch.dtype) -> None:
    """Every byte survives in every format, and channels are added up to a multiple of eight."""
    images = torch.arange(2 * 11 * 13 * inputs).remainder(256).view(2, 11, 13, inputs)
    result = prepare(images.to(torch.uint8), dtype)
    assert result.dtype == dtype and result.shape == (2, -(-inputs // 8) * 8, 11, 13)
    assert torch.equal(result[:, :inputs].double() * 256, images.permute(0, 3, 1, 2).double())
    assert not result[:, inputs:].any()


@pytest.mark.parametrize(
    ("inputs", "outputs", "height", "width"), [(8, 16, 8, 8), (8, 32, 5, 9), (8, 16, 20, 33), (16, 16, 9, 8)]
)
def test_entry_weight_gradient(inputs: int, outputs: int, height: int, width: int) -> None:
    x = channels_last(3, inputs, height, width, grad=False)
    grad = channels_last(3, outputs, height, width, seed=1, grad=False)
    weight = torch.zeros(outputs, inputs, 3, 3, requires_grad=True)
    (expected,) = torch.autograd.grad((F.conv2d(x, weight, padding=1) * grad).sum(), weight)
    result = entry_weight_backward(grad, x, inputs=inputs)
    torch.testing.assert_close(result, expected, atol=1e-3, rtol=1e-4)


def plain_entry(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(images.permute(0, 3, 1, 2).float() / 255, weight, bias, padding=1).relu(), 3, 2, 1)


def own_entry(images: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> list[Tensor]:
    """The output, and the gradients of weight and bias, added to ones."""
    spread = entry_pool.spread(weight, bias, entry_pool.empty_spread(weight, torch.float32))
    out, winner = entry_pool.forward(images, spread, keep=True)
    assert winner is not None
    sums = [torch.ones_like(weight, memory_format=torch.channels_last), torch.ones_like(bias)]
    entry_pool.backward(grad, winner, images, *sums)
    return [out, *(total - 1 for total in sums)]


@pytest.mark.parametrize(
    ("shape", "outputs", "programs"),
    [
        ((3, 12, 16, 3), 16, 1),
        ((2, 9, 21, 3), 32, 1000),
        ((1, 4, 140, 1), 16, 2),
        ((1, 7, 6, 1), 128, 1),
        ((5, 6, 1, 2), 16, 3),
    ],
)
def test_the_entry_as_one_kernel(
    shape: tuple[int, ...], outputs: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an even and an odd number of bytes, several tiles in a row, several images in a tile, few channels."""
    monkeypatch.setattr(entry_pool, "PROGRAMS", programs)
    monkeypatch.setattr(entry_pool, "GRADIENT_PROGRAMS", programs)
    g = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, shape, dtype=torch.uint8, generator=g)
    weight = (torch.randn(outputs, shape[3], 3, 3, generator=g) / 3).requires_grad_()
    bias = torch.randn(outputs, generator=g).requires_grad_()
    expected = plain_entry(pictures, weight, bias)
    grad = channels_last(*expected.shape, seed=2, grad=False)
    wanted = [expected, *torch.autograd.grad((expected * grad).sum(), [weight, bias])]
    for mine, theirs in zip(own_entry(pictures, weight.detach(), bias.detach(), grad), wanted, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), atol=1e-4, rtol=5e-5)


def test_the_entry_of_flat_and_of_black_images() -> None:
    """Of equal places the first wins, as in PyTorch; a ReLU of zero is closed."""
    weight = torch.ones(16, 3, 3, 3, requires_grad=True)
    bias = torch.tensor([0.0, -1.0, 1.0, 0.5] * 4, requires_grad=True)
    pictures = torch.stack([torch.full((8, 8, 3), value, dtype=torch.uint8) for value in (0, 255)])
    expected = plain_entry(pictures, weight, bias)
    grad = channels_last(*expected.shape, grad=False)
    wanted = [expected, *torch.autograd.grad((expected * grad).sum(), [weight, bias])]
    for mine, theirs in zip(own_entry(pictures, weight.detach(), bias.detach(), grad), wanted, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), atol=1e-5, rtol=5e-5)


def encoder(size: int, channels: tuple[int, ...] = (16, 32, 32)) -> ResidualEncoder:
    torch.manual_seed(0)
    made = ResidualEncoder((size, size, 3), ModelConfig(channels=channels, dense_size=32, hidden_size=32))
    for p in made.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    return made


def images(size: int, count: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=g)


def gradients(made: ResidualEncoder) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in made.stacks.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("size", "count", "scale", "own"),
    [
        (16, 2, 1.0, False),
        (16, 1, 1e-6, False),
        (23, 1, 1e4, False),
        pytest.param(9, 1, 1e-6, True, marks=pytest.mark.long),
    ],
)
def test_the_whole_encoder_in_float32(size: int, count: int, scale: float, own: bool) -> None:
    """Features and all gradients, whatever the size of the gradient that comes in and whoever convolves."""
    made, pictures = encoder(size), images(size, count)
    expected = made.features(pictures)
    weights = scale * torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    wanted = gradients(made)
    made.zero_grad(set_to_none=True)

    fast = fused.FusedEncoder(made, torch.float32, own=own)
    result = fast.features(pictures)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
    (result * weights).sum().backward()
    fast.finish_backward()
    got = gradients(made)
    assert got.keys() == wanted.keys()
    for name, grad in wanted.items():
        error = (got[name] - grad).norm() / grad.norm()
        assert error < 1e-4, f"{name}: {error:.1e}"


@pytest.mark.parametrize("scales", [(1.0, 1e-4), (1e-4, 1.0)])
def test_images_encoded_in_two_calls_have_both_gradients(scales: tuple[float, float]) -> None:
    """Each call's gradients have a scale of their own."""
    made, pictures = encoder(8), images(8, 2).split(1)
    weights = torch.randn(made.features(pictures[0]).shape, generator=torch.Generator().manual_seed(1))

    def loss(features: Callable[[Tensor], Tensor]) -> Tensor:
        first, second = (scale * (features(one) * weights).sum() for one, scale in zip(pictures, scales, strict=True))
        return first + second

    loss(made.features).backward()
    wanted = gradients(made)
    made.zero_grad(set_to_none=True)
    fast = fused.FusedEncoder(made, torch.float32)
    loss(fast.features).backward()
    fast.finish_backward()
    for name, grad in gradients(made).items():
        error = (grad - wanted[name]).norm() / wanted[name].norm()
        assert error < 1e-4, f"{name}: {error:.1e}"


@pytest.mark.parametrize(
    ("dtype", "forward", "backward"), [(torch.float16, 2e-3, 0.98), (torch.bfloat16, 2e-2, 0.9)]
)
def test_the_whole_encoder_in_half_precision(
    dtype: torch.dtype, forward: float, backward: float
) -> None:
    """Features by relative error, gradients by their direction: rounding moves a few of the pools' winners."""
    made, pictures = encoder(16), images(16)
    expected = made.features(pictures)
    weights = 1e-5 * torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    wanted = gradients(made)
    made.zero_grad(set_to_none=True)
    fast = fused.FusedEncoder(made, dtype)
    result = fast.features(pictures)
    assert (result - expected).norm() / expected.norm() < forward
    (result * weights).sum().backward()
    fast.finish_backward()
    got = gradients(made)
    if dtype == torch.bfloat16:
        # The interpreter multiplies matrices of bfloat16 as if their bits were integers.
        del got["0.entry.conv.weight"]
    for name, grad in got.items():
        cosine = F.cosine_similarity(grad.flatten(), wanted[name].flatten(), dim=0)
        assert cosine > backward, f"{name}: {cosine:.3f}"
        assert 0.9 < grad.norm() / wanted[name].norm() < 1.1, name


@pytest.mark.parametrize("shape", [(16, 16, 1), (9, 21, 4), (12, 8, 12)])
def test_images_of_other_sizes_and_channels(shape: tuple[int, int, int]) -> None:
    """Greyscale, frames that are not square, stacked frames."""
    torch.manual_seed(0)
    made = ResidualEncoder(shape, SMALL)
    pictures = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    expected = made.features(pictures)
    weights = torch.randn(expected.shape)
    (expected * weights).sum().backward()
    wanted = gradients(made)
    made.zero_grad(set_to_none=True)
    fast = fused.FusedEncoder(made, torch.float32)
    result = fast.features(pictures)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
    (result * weights).sum().backward()
    fast.finish_backward()
    for name, grad in gradients(made).items():
        assert (grad - wanted[name]).norm() <= 1e-4 * wanted[name].norm(), name


def test_a_zero_gradient_stays_zero() -> None:
    made = encoder(8)
    fast = fused.FusedEncoder(made, torch.float16)
    (fast.features(images(8)) * 0).sum().backward()
    fast.finish_backward()
    assert not any(g.any() for g in gradients(made).values())


@pytest.mark.parametrize("own", [pytest.param(True, marks=pytest.mark.long), False])
def test_kept_weights_are_those_of_the_last_keeping(own: bool) -> None:
    made, pictures = encoder(8), images(8)
    fast = fused.FusedEncoder(made, torch.float32, own=own)
    with torch.no_grad():
        fast.cache_weights()
        before = fast.features(pictures, cached=True)
        assert torch.equal(before, fast.features(pictures))
        for p in made.parameters():
            p.add_(0.1)
        fast.cache_weights()
        after = fast.features(pictures, cached=True)
        assert torch.equal(after, fast.features(pictures))
    assert not torch.equal(before, after)


def test_transport() -> None:
    rng = np.random.default_rng(0)
    rows = torch.tensor([1, 22, 7, 0, 5, 22, 3, 16])
    columns = torch.tensor([22, 1, 9, 4, 0, 22, 3, 17])
    x, y = (rng.normal(size=(8, 22, 6)) for _ in range(2))
    x, y = (v / np.linalg.norm(v, axis=2, keepdims=True) for v in (x, y))
    cost = torch.from_numpy(1 - x @ y.transpose(0, 2, 1)).float()
    expected = partial_transport(cost, rows, columns, reg=0.05, iterations=100)
    result = transport(cost, rows, columns, reg=0.05, iterations=100)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(result > 0.5, expected > 0.5)
    assert not result[3:5].any(), "empty problems have empty plans"


def test_transport_of_wide_problems_and_of_views() -> None:
    g = torch.Generator().manual_seed(0)
    cost = torch.rand(2, 40, 24, generator=g).transpose(1, 2)
    rows, columns = torch.tensor([24, 20]), torch.tensor([40, 33])
    expected = partial_transport(cost, rows, columns, reg=0.05, iterations=100)
    result = transport(cost, rows, columns, reg=0.05, iterations=100)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("inputs", "supported"), [(16, True), (17, False)])
def test_more_channels_than_registers_hold_are_refused(inputs: int, supported: bool) -> None:
    made = ResidualEncoder((16, 16, inputs), SMALL)
    assert fused.supports(made) is supported


@pytest.mark.parametrize(
    ("channels", "norm"), [((16, 24, 16), True), ((8, 16, 16), True), ((16, 16, 16), False)]
)
def test_what_is_not_supported_is_refused(channels: tuple[int, ...], norm: bool) -> None:
    made = ResidualEncoder((16, 16, 3), replace(SMALL, channels=channels, norm=norm))
    assert not fused.supports(made)
    with pytest.raises(ValueError, match="powers of two"):
        fused.FusedEncoder(made, torch.float16)
