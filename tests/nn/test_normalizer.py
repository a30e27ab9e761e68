"""The value normaliser against plain floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from achieve.nn.normalizer import ValueNormalizer
from tests.oracles.ppo import Normalizer


def statistics(normalizer: ValueNormalizer) -> tuple[float, float]:
    mean, std = normalizer.statistics()
    return float(mean), float(std)


def test_before_any_update() -> None:
    normalizer = ValueNormalizer()
    assert statistics(normalizer) == pytest.approx((0.0, 0.1), rel=1e-6)
    assert float(normalizer.normalize(torch.tensor(3.0))) == pytest.approx(30)
    assert float(normalizer.denormalize(torch.tensor(3.0))) == pytest.approx(0.3)


def test_the_first_update_is_fully_debiased() -> None:
    normalizer = ValueNormalizer()
    normalizer.update(torch.tensor([1.0, 5.0]))
    assert statistics(normalizer) == pytest.approx((3.0, 2.0), rel=1e-5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
def test_a_sequence_of_updates(scale: float) -> None:
    rng = np.random.default_rng(0)
    normalizer, literal = ValueNormalizer().double(), Normalizer()
    for step in range(300):
        targets = rng.normal(0.02 * step, 1, rng.integers(1, 40)) * scale
        normalizer.update(torch.from_numpy(targets))
        literal.update(targets)
        assert statistics(normalizer) == pytest.approx(literal.statistics(), rel=1e-9)
        x = torch.tensor(1.7, dtype=torch.float64)
        assert float(normalizer.normalize(x)) == pytest.approx(float(literal.normalize(x)))
        assert float(normalizer.denormalize(x)) == pytest.approx(float(literal.denormalize(x)))


def test_in_float32_it_stays_close() -> None:
    rng = np.random.default_rng(1)
    normalizer, literal = ValueNormalizer(), Normalizer()
    for _ in range(1000):
        targets = rng.normal(3, 0.5, 64)
        normalizer.update(torch.from_numpy(targets).float())
        literal.update(targets)
    assert statistics(normalizer) == pytest.approx(literal.statistics(), rel=1e-4)


def test_the_variance_has_a_floor() -> None:
    normalizer = ValueNormalizer()
    for _ in range(20):
        normalizer.update(torch.full((8,), 7.0))
    mean, std = statistics(normalizer)
    assert mean == pytest.approx(7.0, rel=1e-5)
    assert std == pytest.approx(0.1, rel=1e-3)


def test_the_debiasing_weight_has_a_floor() -> None:
    """One update weighs 0.01, which is the floor: from there on averages are exact."""
    normalizer = ValueNormalizer(decay=0.999)
    normalizer.update(torch.tensor([10.0]))
    # 0.001 * 10 divided by 0.01, not by 0.001.
    assert statistics(normalizer)[0] == pytest.approx(1.0, rel=1e-4)


def test_weights_count_targets() -> None:
    rng = np.random.default_rng(2)
    weighted, repeated = ValueNormalizer().double(), Normalizer()
    for _ in range(20):
        targets = rng.normal(1, 2, 12)
        counts = rng.integers(0, 3, 12)
        counts[0] = 1
        weighted.update(torch.from_numpy(targets), torch.from_numpy(counts).double())
        repeated.update(np.repeat(targets, counts))
        assert statistics(weighted) == pytest.approx(repeated.statistics(), rel=1e-9)


def test_weights_of_zero_change_nothing() -> None:
    normalizer = ValueNormalizer()
    normalizer.update(torch.tensor([1.0, 2.0]))
    before = {name: b.clone() for name, b in normalizer.named_buffers()}
    normalizer.update(torch.tensor([100.0, 50.0]), torch.zeros(2))
    assert all(torch.equal(before[name], b) for name, b in normalizer.named_buffers())


def test_normalising_and_back() -> None:
    normalizer = ValueNormalizer()
    normalizer.update(torch.tensor([3.0, 9.0]))
    x = torch.linspace(-5, 5, 11)
    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(x)), x)


def test_disabled_it_is_the_identity_and_holds_nothing() -> None:
    normalizer = ValueNormalizer(enabled=False)
    x = torch.tensor([math.pi])
    normalizer.update(x)
    assert torch.equal(normalizer.normalize(x), x) and torch.equal(normalizer.denormalize(x), x)
    assert not list(normalizer.buffers())


def test_a_change_of_scale_is_followed() -> None:
    """As when the discount changes: 24 updates per rollout of targets that grow threefold within 73 rollouts."""
    rng = np.random.default_rng(3)
    normalizer = ValueNormalizer()
    rollouts, worst = 73, 0.0
    for rollout in range(2 * rollouts):
        scale = 1 + 2 * min(1.0, rollout / rollouts)
        for _ in range(24):
            normalizer.update(torch.from_numpy(scale * rng.normal(1, 1, 512)).float())
        mean, std = statistics(normalizer)
        worst = max(worst, abs(mean / scale - 1), abs(std / scale - 1))
    assert worst < 0.15
    assert statistics(normalizer) == pytest.approx((3.0, 3.0), rel=0.02)
