"""GAE and the PPO losses against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from achieve.algo import ppo
from achieve.algo.gae import gae, normalize_advantages
from tests.oracles import ppo as literal

PATTERNS = {
    "none": [],
    "first": [0],
    "last": [11],
    "middle": [5],
    "consecutive": [3, 4, 5],
    "every": list(range(12)),
    "several": [0, 4, 9, 11],
}


def rollout(ends: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twelve steps of three environments; the second ends one step later than the first, the third never."""
    rng = np.random.default_rng(seed)
    dones = np.zeros((12, 3), dtype=bool)
    dones[ends, 0] = True
    dones[[(t + 1) % 12 for t in ends], 1] = True
    return rng.choice([-0.1, 0.0, 0.1, 0.9, 1.0], (12, 3)), rng.normal(2, 1, (13, 3)), dones


@pytest.mark.parametrize("pattern", PATTERNS)
def test_gae(pattern: str) -> None:
    rewards, values, dones = rollout(PATTERNS[pattern])
    for gamma, lam in ((0.95, 0.65), (0.95, 0.0), (0.99, 1.0), (0.0, 0.65)):
        advantages, targets = gae(
            torch.from_numpy(rewards), torch.from_numpy(values), torch.from_numpy(dones), gamma, lam
        )
        expected, expected_targets = literal.gae(rewards, values, dones, gamma, lam)
        np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(targets.numpy(), expected_targets, atol=1e-12)


def test_gae_by_hand() -> None:
    """Two steps: 1 + 0.5 * 4 - 2 = 1 at the end; before it 0 + 0.5 * 2 - 1 = 0, and half of a half of 1."""
    advantages, targets = gae(
        torch.tensor([[0.0], [1.0]]),
        torch.tensor([[1.0], [2.0], [4.0]]),
        torch.tensor([[False], [False]]),
        0.5,
        0.5,
    )
    assert advantages.flatten().tolist() == [0.25, 1.0]
    assert targets.flatten().tolist() == [1.25, 3.0]


def test_nothing_after_an_end_reaches_before_it() -> None:
    rewards, values, dones = rollout([5])
    changed_rewards, changed_values = rewards.copy(), values.copy()
    changed_rewards[6:, 0] += 10
    changed_values[6:, 0] += 10
    first = gae(*map(torch.from_numpy, (rewards, values, dones)), 0.95, 0.65)[0]
    second = gae(*map(torch.from_numpy, (changed_rewards, changed_values, dones)), 0.95, 0.65)[0]
    assert torch.equal(first[:6, 0], second[:6, 0])
    assert not torch.equal(first[6:, 0], second[6:, 0])


def test_advantages_are_normalised_over_the_whole_rollout() -> None:
    advantages = np.random.default_rng(1).normal(3, 2, (40, 5))
    result = normalize_advantages(torch.from_numpy(advantages))
    np.testing.assert_allclose(result.numpy(), literal.normalized(advantages), atol=1e-12)
    constant = normalize_advantages(torch.full((4, 2), 7.0))
    assert torch.equal(constant, torch.zeros(4, 2))


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 6, generator=g, dtype=torch.float64) * 2
    actions = torch.randint(0, 6, (64,), generator=g)
    # Ratios well inside, outside and on either side of the clip range.
    old = ppo.log_probability(logits, actions) + torch.linspace(-0.8, 0.8, 64, dtype=torch.float64)
    return logits, actions, old, torch.randn(64, generator=g, dtype=torch.float64)


def test_log_probabilities(batch: tuple[torch.Tensor, ...]) -> None:
    logits, actions, *_ = batch
    expected = [
        float(literal.log_softmax(row)[a]) for row, a in zip(logits, actions.tolist(), strict=True)
    ]
    np.testing.assert_allclose(ppo.log_probability(logits, actions).numpy(), expected, atol=1e-12)


def test_clipped_objective(batch: tuple[torch.Tensor, ...]) -> None:
    logits, actions, old, advantages = batch
    new = ppo.log_probability(logits, actions)
    result = ppo.policy_objective(new, old, advantages, 0.2)
    assert float(result) == pytest.approx(literal.objective(new, old, advantages, 0.2), rel=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.1, 1.0, 1.1, 1.1),  # inside: the ratio itself
        (1.5, 1.0, 1.2, 0.0),  # clipped from above: no gradient
        (0.5, 1.0, 0.5, 0.5),  # worse than the clip allows to hide
        (0.5, -1.0, -0.8, 0.0),
        (1.5, -1.0, -1.5, -1.5),
    ],
)
def test_clipping_case_by_case(
    ratio: float, advantage: float, expected: float, slope: float
) -> None:
    new = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    old = torch.zeros(1, dtype=torch.float64)
    result = ppo.policy_objective(new, old, torch.tensor([advantage], dtype=torch.float64), 0.2)
    result.backward()
    assert float(result.detach()) == pytest.approx(expected)
    assert new.grad is not None and float(new.grad) == pytest.approx(slope)


def test_divergence_from_uniform(batch: tuple[torch.Tensor, ...]) -> None:
    logits = batch[0].clone().requires_grad_()
    pi = logits.detach().softmax(1).numpy()
    found = ppo.divergence_from_uniform(logits)
    actions = pi.shape[1]
    np.testing.assert_allclose(found.detach().numpy(), (np.log(1 / actions / pi) / actions).sum(1), atol=1e-12)
    found.sum().backward()
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), pi - 1 / actions, atol=1e-12)


def test_entropy(batch: tuple[torch.Tensor, ...]) -> None:
    np.testing.assert_allclose(ppo.entropy(batch[0]).numpy(), literal.entropy(batch[0]), atol=1e-12)
    uniform = ppo.entropy(torch.zeros(1, 17, dtype=torch.float64))
    assert float(uniform) == pytest.approx(np.log(17))


def test_value_loss_with_and_without_the_half() -> None:
    values, targets = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 2.0, 1.0])
    assert float(ppo.value_loss(values, targets, half=False)) == pytest.approx(10 / 3)
    assert float(ppo.value_loss(values, targets, half=True)) == pytest.approx(5 / 3)


def test_diagnostics(batch: tuple[torch.Tensor, ...]) -> None:
    logits, actions, old, _ = batch
    new = ppo.log_probability(logits, actions)
    ratio = np.exp(new.numpy() - old.numpy())
    expected = np.mean(ratio - 1 - np.log(ratio))
    assert float(ppo.approximate_kl(new, old)) == pytest.approx(expected)
    assert float(ppo.clip_fraction(new, old, 0.2)) == pytest.approx(
        np.mean(np.abs(ratio - 1) > 0.2)
    )


def test_the_kl_estimate_is_unbiased() -> None:
    """Averaged over the old policy's actions it is KL(old || new)."""
    g = torch.Generator().manual_seed(3)
    old, new = torch.randn(2, 1, 5, generator=g, dtype=torch.float64)
    weights = old.softmax(1)[0]
    estimate = 0.0
    for action in range(5):
        index = torch.tensor([action])
        term = ppo.approximate_kl(ppo.log_probability(new, index), ppo.log_probability(old, index))
        estimate += float(weights[action] * term)
    assert estimate == pytest.approx(literal.kl(old, new)[0])
