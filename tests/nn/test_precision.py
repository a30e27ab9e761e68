"""The arithmetic of the convolutions, and calls that may become graphs, where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from achieve.nn.cuda_graphs import GraphRunner
from tests.helpers.setup import make_network


@pytest.fixture
def images() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (6, 16, 16, 3), dtype=torch.uint8, generator=g)


@pytest.mark.parametrize("fused", [True, False])
def test_float32_is_the_plain_network(images: torch.Tensor, fused: bool) -> None:
    network = make_network()
    expected = network.encode(images)
    assert network.use_precision("fp32", fused=fused) == "fp32"
    assert torch.equal(network.encode(images), expected)
    network.cache_weights()
    assert torch.equal(network.encode(images, cached=True), expected)


def test_bfloat16_touches_the_convolutions_alone(images: torch.Tensor) -> None:
    network = make_network()
    expected = network.encode(images)
    assert network.use_precision("bf16", fused=True) == "bf16"
    result = network.encode(images)
    assert result.dtype == torch.float32
    assert not torch.equal(result, expected)
    assert (result - expected).norm() / expected.norm() < 0.2
    # The dense part has not changed: the same features give the same latents to the last bit.
    features = network.encoder.features(images)
    assert torch.equal(network.encoder.head(features), expected)
    result.sum().backward()
    network.finish_backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in network.parameters())
    network.use_precision("fp32", fused=True)
    assert torch.equal(network.encode(images), expected)


def test_without_graphs_a_step_is_simply_called() -> None:
    total = torch.zeros(())
    runner = GraphRunner(lambda: [total], enabled=False)
    for size in (2, 3):
        runner("key", lambda x: total.add_(x.sum()), torch.ones(size))
    assert float(total) == 5
