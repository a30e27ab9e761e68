"""The contrastive losses, the regularisers and the memory's rule, case by case."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from achieve.algo.contrastive import (
    achievement_representation,
    contrastive_loss,
    next_memory,
    policy_divergence,
    value_deviation,
    weighted_mean,
)
from tests.data.test_trajectories import REWARDS, THRESHOLD
from tests.oracles import distill
from tests.oracles import network as literal
from tests.oracles import ppo as slow


def vectors(count: int, seed: int, size: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return literal.unit(torch.randn(count, size, generator=g, dtype=torch.float64))


def test_contrastive_loss() -> None:
    anchor, positive, negative = (vectors(20, seed) for seed in range(3))
    result = contrastive_loss((anchor * positive).sum(1), (anchor * negative).sum(1), 0.1)
    torch.testing.assert_close(result, distill.two_way(anchor, positive, negative, 0.1))


def test_contrastive_loss_by_hand() -> None:
    loss = contrastive_loss(torch.tensor([1.0, 0.3, -1.0]), torch.tensor([-1.0, 0.3, 1.0]), 0.1)
    # exp(10) against exp(-10); equal; and the wrong way round, where the loss is the difference over the temperature.
    assert loss.tolist() == pytest.approx([math.log1p(math.exp(-20)), math.log(2), 20], rel=1e-5)


def test_representation() -> None:
    before, after = torch.randn(2, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(achievement_representation(before, after), literal.nu(before, after))
    zero = achievement_representation(before, before)
    assert not zero.any(), "two equal latents give the zero vector, not a division by zero"


def test_the_gradient_of_an_absent_achievement_is_zero() -> None:
    latent = torch.randn(3, 6, requires_grad=True)
    achievement_representation(latent, latent).sum().backward()
    assert latent.grad is not None and not latent.grad.any()


def test_policy_divergence_in_both_directions() -> None:
    g = torch.Generator().manual_seed(0)
    new, old = torch.randn(2, 10, 5, generator=g, dtype=torch.float64)
    for direction, expected in (
        ("new-old", slow.kl(new, old)),
        ("old-new", slow.kl(old, new)),
    ):
        result = policy_divergence(new, old, direction)
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)
    assert not np.allclose(slow.kl(new, old), slow.kl(old, new))
    assert float(policy_divergence(new, new, "new-old").abs().max()) == 0


def test_value_deviation_in_both_readings() -> None:
    values, targets = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])
    assert value_deviation(values, targets, "returns").tolist() == [1.0, 4.0]
    assert value_deviation(values, targets, "frozen").tolist() == [0.5, 2.0]


def test_weighted_mean() -> None:
    values = torch.tensor([1.0, 2.0, 4.0])
    assert float(weighted_mean(values, torch.tensor([1.0, 0.0, 1.0]))) == 2.5
    assert float(weighted_mean(values, torch.zeros(3))) == 0


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("done", [False, True])
def test_memory_after_one_step(name: str, dtype: torch.dtype, done: bool) -> None:
    reward, unlocked = REWARDS[name]
    memory, latent, phi = torch.randn(3, 1, 6)
    result = next_memory(
        memory, latent, phi, torch.tensor([reward], dtype=dtype), torch.tensor([done]), THRESHOLD
    )
    expected = literal.nu(latent, phi) if unlocked else memory
    if done:
        expected = torch.zeros(1, 6)
    torch.testing.assert_close(result, expected)
