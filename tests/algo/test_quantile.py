"""Quantile regression against all pairs, one by one."""

from __future__ import annotations

import math

import pytest
import torch

from achieve.algo.quantile import (
    action_values,
    bellman_targets,
    epsilon_greedy_logits,
    levels,
    linear_schedule,
    of_actions,
    quantile_huber_loss,
    sorted_quantile_huber_loss,
)
from tests.oracles import quantile


def test_levels_are_the_middles() -> None:
    assert levels(4, torch.zeros(1)).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_loss_by_hand() -> None:
    """One quantile at its median: half of each Huber loss; 0.5 is quadratic, 3 linear."""
    loss = quantile_huber_loss(torch.tensor([[0.0]]), torch.tensor([[0.5, -3.0]]), 1.0)
    assert loss.item() == pytest.approx((0.5 * 0.125 + 0.5 * 2.5) / 2)


@pytest.mark.parametrize("kappa", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize(("count", "targets"), [(1, 1), (5, 5), (4, 9), (32, 32)])
def test_loss_of_all_pairs(kappa: float, count: int, targets: int) -> None:
    torch.manual_seed(count)
    theta, y = torch.randn(3, count).double() * 2, torch.randn(3, targets).double() * 2
    found = quantile_huber_loss(theta, y, kappa)
    assert found.shape == (3,)
    for row in range(3):
        assert found[row].item() == pytest.approx(quantile.loss(theta[row].tolist(), y[row].tolist(), kappa))


@pytest.mark.parametrize("kappa", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize(("count", "targets"), [(1, 1), (5, 5), (4, 9), (200, 200)])
def test_sorted_loss_is_the_loss_of_all_pairs(kappa: float, count: int, targets: int) -> None:
    """Values and gradients."""
    torch.manual_seed(count)
    theta = (torch.randn(6, count).double() * 2).requires_grad_()
    y = torch.randn(6, targets).double() * 2 + 3
    expected = quantile_huber_loss(theta, y, kappa)
    (wanted,) = torch.autograd.grad(expected.sum(), theta)
    found = sorted_quantile_huber_loss(theta.view(2, 3, -1), y.sort(1).values.view(2, 3, -1), kappa)
    (gradient,) = torch.autograd.grad(found.sum(), theta)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9)


def test_sorted_loss_in_float32_keeps_its_digits() -> None:
    """Also far from zero, where sums of squares would lose them."""
    torch.manual_seed(0)
    theta, y = torch.randn(8, 200) + 40, torch.randn(8, 200) + 40
    expected = quantile_huber_loss(theta.double(), y.double(), 1.0)
    found = sorted_quantile_huber_loss(theta, y.sort(1).values, 1.0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_sorted_loss_with_ties() -> None:
    theta = torch.tensor([[0.0, 1.0, 1.0, 2.0]]).double()
    y = torch.tensor([[0.0, 0.0, 1.0, 2.0, 3.0]]).double()
    expected = quantile_huber_loss(theta, y, 1.0)
    torch.testing.assert_close(sorted_quantile_huber_loss(theta, y, 1.0), expected)


def test_regression_finds_the_quantiles() -> None:
    """With a small kappa, descending the loss ends at the quantiles of the targets."""
    y = torch.linspace(0, 1, 1001).double()[None]
    theta = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.01)
    for _ in range(600):
        optimizer.zero_grad()
        quantile_huber_loss(theta, y, 1e-3).sum().backward()
        optimizer.step()
    torch.testing.assert_close(theta.detach()[0], levels(5, theta), atol=0.02, rtol=0)


def test_targets_use_the_best_actions_quantiles_and_end_with_the_episode() -> None:
    following = torch.tensor([[[0.0, 1.0], [5.0, 7.0]], [[2.0, 3.0], [0.0, 0.0]]])
    assert action_values(following).tolist() == [[0.5, 6.0], [2.5, 0.0]]
    assert of_actions(following, torch.tensor([1, 0])).tolist() == [[5.0, 7.0], [2.0, 3.0]]
    targets = bellman_targets(torch.tensor([1.0, 0.5]), torch.tensor([0.5, 0.0]), following, torch.tensor([1, 0]))
    assert targets.tolist() == [[3.5, 4.5], [0.5, 0.5]]


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_epsilon_greedy_as_a_policy(epsilon: float) -> None:
    logits = epsilon_greedy_logits(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), epsilon)
    other = epsilon / 4
    expected = [other, 1 - 3 * other, other, other]
    assert logits.exp()[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert logits.argmax(1).item() == 1 or epsilon == 1.0
    if epsilon == 0:
        assert logits[0, 0].item() == -math.inf


def test_schedule() -> None:
    assert [linear_schedule(s, 1.0, 0.0, 10) for s in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]


def _projected(targets: torch.Tensor, weights: torch.Tensor, count: int, kappa: float) -> torch.Tensor:
    """The quantiles [count] that minimise the loss onto weighted targets, by bisection of its slope."""
    low, high = targets.min().expand(count), targets.max().expand(count)
    tau = levels(count, targets)[:, None]
    for _ in range(30):
        middle = (low + high) / 2
        errors = targets - middle[:, None]
        pull = (torch.where(errors < 0, 1 - tau, tau) * (errors / kappa).clamp(-1, 1)) @ weights
        low, high = torch.where(pull > 0, middle, low), torch.where(pull > 0, high, middle)
    return (low + high) / 2


@pytest.mark.parametrize(
    ("kappa", "value"),
    [
        (0.1, 0.49),
        pytest.param(1.0, 1.08, marks=pytest.mark.long),
        pytest.param(0.01, 0.36, marks=pytest.mark.long),
    ],
)
def test_what_kappa_makes_of_rare_rewards(kappa: float, value: float) -> None:
    """The fixed point of QR-DQN's backups in a world of one state and one action, which is in docs/qrdqn.md."""
    chance, gamma, count = 0.018, 0.95, 200
    theta = torch.zeros(count, dtype=torch.float64)
    weights = torch.cat([torch.full((count,), p, dtype=torch.float64) for p in (1 - chance, chance)]) / count
    for _ in range(100):
        targets = torch.cat([reward + gamma * theta for reward in (0.0, 1.0)])
        theta = _projected(targets, weights, count, kappa)
    assert theta.mean().item() == pytest.approx(value, abs=0.01)
    # The loss itself agrees that this is its minimum: samples in the proportion of the weights.
    drawn = torch.cat([targets[:count].repeat(491), targets[count:].repeat(9)])[None]
    free = theta[None].clone().requires_grad_()
    quantile_huber_loss(free, drawn, kappa).sum().backward()
    assert free.grad is not None and free.grad.abs().max() < 1e-3
