"""The kernels of the size-preserving encoder against their plain twin, run by Triton's interpreter.

`test_small_kernels.py` runs this file.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from achieve.config import ModelConfig
from achieve.nn.encoder import SizePreservingEncoder
from achieve.nn.kernels import fused_spcnn, large, preserving
from achieve.nn.kernels.flat import FlatAdam
from achieve.nn.kernels.fused_spcnn import FEW_IMAGES, FusedSizePreserving

MODEL = ModelConfig(encoder="spcnn", channels=(16, 32, 16), hidden_size=24, norm=False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pictures(count: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def made(shape: tuple[int, ...] = (8, 8, 3), model: ModelConfig = MODEL) -> SizePreservingEncoder:
    torch.manual_seed(0)
    encoder = SizePreservingEncoder(shape, model)
    with torch.no_grad():
        for name, p in encoder.named_parameters():
            if name.endswith("bias"):
                p.normal_(std=0.1)
    return encoder


def gradients(encoder: SizePreservingEncoder, phi: Tensor) -> dict[str, Tensor]:
    (phi * random(*phi.shape, seed=5)).sum().backward()
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


def distance(mine: Tensor, right: Tensor) -> float:
    return float((mine.detach() - right.detach()).norm() / right.detach().norm())


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((8, 8, 3), (16, 32, 16)), ((9, 11, 3), (16, 16)), ((8, 12, 12), (32, 16)), ((8, 9, 1), (16, 16, 16, 64))],
)
def test_latents_and_gradients(shape: tuple[int, ...], channels: tuple[int, ...]) -> None:
    encoder = made(shape, replace(MODEL, channels=channels))
    images = pictures(5, shape)
    expected = encoder(images)
    right = gradients(encoder, expected)
    encoder.zero_grad()

    fast = FusedSizePreserving(encoder, torch.float32)
    phi = fast.head(fast.features(images))
    torch.testing.assert_close(phi, expected, atol=1e-5, rtol=1e-4)
    fast.flat.zero_grad()
    (phi * random(*phi.shape, seed=5)).sum().backward()
    fast.finish_backward()
    for name, p in encoder.named_parameters():
        assert p.grad is not None and distance(p.grad, right[name]) < 1e-5, name


def test_half_precision_is_near() -> None:
    encoder = made()
    images = pictures(9, (8, 8, 3))
    expected = encoder(images)
    # Of a size that would vanish in fp16.
    factor = 1e-9
    right = gradients(encoder, expected * factor)
    encoder.zero_grad()
    fast = FusedSizePreserving(encoder, torch.float16)
    phi = fast.head(fast.features(images))
    assert 1e-6 < distance(phi, expected) < 2e-3
    fast.flat.zero_grad()
    (phi * factor * random(*phi.shape, seed=5)).sum().backward()
    fast.finish_backward()
    for name, p in encoder.named_parameters():
        assert p.grad is not None and distance(p.grad, right[name]) < 1e-2, name


@pytest.mark.parametrize("factors", [(1.0, 1e-4), (1e-4, 1.0), (1.0, 0.0)])
def test_images_encoded_in_two_calls_have_both_gradients(factors: tuple[float, float]) -> None:
    """Each call's gradients have a scale of their own."""
    encoder = made(model=replace(MODEL, channels=(16, 16)))
    parts = pictures(5, (8, 8, 3)).split(3)
    encoded = zip(map(encoder, parts), factors, strict=True)
    right = gradients(encoder, torch.cat([phi * factor for phi, factor in encoded]))
    encoder.zero_grad()
    fast = FusedSizePreserving(encoder, torch.float32)
    fast.flat.zero_grad()
    phi = torch.cat([fast.head(fast.features(part)) * factor for part, factor in zip(parts, factors, strict=True)])
    (phi * random(*phi.shape, seed=5)).sum().backward()
    fast.finish_backward()
    for name, p in encoder.named_parameters():
        assert p.grad is not None and distance(p.grad, right[name]) < 1e-5, name


@pytest.mark.parametrize("count", [2, FEW_IMAGES + 1])
def test_without_gradients(count: int) -> None:
    encoder = made((8, 10, 3), replace(MODEL, channels=(16, 32)))
    images = pictures(count, (8, 10, 3))
    fast = FusedSizePreserving(encoder, torch.float32)
    with torch.no_grad():
        found = fast.features(images)
        torch.testing.assert_close(found, encoder.features(images), atol=1e-5, rtol=1e-4)
        assert found.is_contiguous()
        torch.testing.assert_close(fast.head(found), encoder(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 512, 1024), (16, 40, 600), (17, 40, 600), (130, 136, 520)])
def test_dense_layer(rows: int, outputs: int, inputs: int) -> None:
    x, weight, bias = random(rows, inputs), random(outputs, inputs, seed=1), random(outputs, seed=2)
    expected = torch.relu(F.linear(x, weight, bias))
    found = large.dense(x, weight, bias)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)

    grad = 1e-3 * random(rows, outputs, seed=4)
    inverse = torch.zeros(())
    scaled, by_bias = large.scaled_gradient(grad, expected, inverse, -4, torch.float32)
    masked = grad * (expected > 0)
    torch.testing.assert_close(by_bias, masked.sum(0), atol=1e-6, rtol=1e-4)
    assert torch.equal(scaled * inverse, masked), "a power of two"
    assert 8 < (grad / inverse).abs().max() <= 16
    into = random(outputs, inputs, seed=6)
    added = into.clone()
    large.weight_gradient(scaled, x, inverse, into, add=False)
    large.weight_gradient(scaled, x, inverse, added, add=True)
    torch.testing.assert_close(into, masked.t() @ x, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(added, random(outputs, inputs, seed=6) + into)


def test_the_order_of_features_changes_with_the_last_layer() -> None:
    z = random(2, 16, 5, 7).contiguous(memory_format=torch.channels_last)
    bias = random(16, seed=1)
    right = torch.relu(z + bias[:, None, None])
    rows = preserving.to_rows(z, bias)
    torch.testing.assert_close(rows, right)
    grad = random(2, 16, 5, 7, seed=2)
    given, inverse = torch.tensor(0.25), torch.zeros(())
    back, by_bias = preserving.rows_backward(grad, rows, grad.abs().max()[None], given, inverse, 4)
    assert back.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(back * inverse, 0.25 * grad * (right > 0))
    torch.testing.assert_close(by_bias * inverse, 0.25 * (grad * (right > 0)).sum((0, 2, 3)))
    assert 2**-5 < back.abs().max() <= 2**-4


def test_the_optimiser_keeps_the_half_precision_weights_up_to_date() -> None:
    encoder = made()
    images = pictures(3, (8, 8, 3))
    fast = FusedSizePreserving(encoder, torch.float16)
    adam = FlatAdam([fast.flat], 1e-2, 0.5, 1e-8, torch.zeros(()))
    before = encoder.linear.weight.detach().clone()
    adam.zero_grad()
    fast.head(fast.features(images)).sum().backward()
    norm = adam.step(None)
    assert norm.isfinite() and norm > 0
    for p in (encoder.linear.weight, *(conv.weight for conv in encoder.convs)):
        assert torch.equal(fast.half_of(p), p.half())
    assert not torch.equal(before, encoder.linear.weight)


def test_weights_changed_in_place_are_converted() -> None:
    encoder = made()
    fast = FusedSizePreserving(encoder, torch.float32)
    with torch.no_grad():
        for p in encoder.parameters():
            p.mul_(0.5)
    images = pictures(2, (8, 8, 3))
    with torch.no_grad():
        torch.testing.assert_close(fast.head(fast.features(images)), encoder(images), atol=1e-5, rtol=1e-4)


def test_copies_have_buffers_of_their_own() -> None:
    fast = FusedSizePreserving(made(), torch.float32)
    other = copy.deepcopy(fast)
    images = pictures(2, (8, 8, 3))
    with torch.no_grad():
        expected = fast.head(fast.features(images))
        for p in fast.flat.parameters:
            p.zero_()
        torch.testing.assert_close(other.head(other.features(images)), expected)


@pytest.mark.parametrize(
    "model",
    [
        replace(MODEL, norm=True),
        replace(MODEL, channels=(16,)),
        replace(MODEL, channels=(16, 24)),
        replace(MODEL, channels=(8, 8, 8, 8)),
    ],
)
def test_what_is_not_supported_is_refused(model: ModelConfig) -> None:
    encoder: nn.Module = made(model=model)
    assert not fused_spcnn.supports(encoder)
    with pytest.raises(ValueError, match="powers of two"):
        FusedSizePreserving(encoder, torch.float16)  # type: ignore[arg-type]
