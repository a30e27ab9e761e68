"""The kernels around the losses against their plain twins, run by Triton's interpreter.

`test_small_kernels.py` runs this file in a process of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo import gae as plain_gae
from achieve.algo import learner as learner_module
from achieve.algo.learner import PPOLearner
from achieve.algo.meters import Meters
from achieve.algo.ppo import approximate_kl
from achieve.algo.qrdqn import QRDQNLearner
from achieve.algo.regularizers import QuantileRegularizer
from achieve.config import PPOConfig, QRDQNConfig
from achieve.nn.kernels import available
from achieve.nn.kernels.heads import heads
from achieve.nn.kernels.policy import gae as fast_gae
from achieve.nn.kernels.quantile import NUM_STATISTICS
from achieve.nn.kernels.quantile_penalty import quantile_penalty
from tests.helpers.setup import ACTIONS, MODEL, make_buffer, make_network

CPU = torch.device("cpu")
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("length", "num_envs"), [(1, 2), (16, 3), (37, 2)])
def test_gae(length: int, num_envs: int) -> None:
    rewards, values = random(length, num_envs), random(length + 1, num_envs, seed=1)
    dones = random(length, num_envs, seed=2) > 0.8
    dones[-1, 0] = True
    expected = plain_gae.gae(rewards, values, dones, 0.95, 0.65)
    result = fast_gae(rewards, values, dones, 0.95, 0.65)
    for got, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


LOSSES = {
    "published": (PPOConfig(), MODEL, 40),
    "the paper's value loss, other coefficients": (
        PPOConfig(value_half=True, clip_coef=0.05, vf_coef=1.5, ent_coef=0.3),
        MODEL,
        33,
    ),
    "no normaliser": (PPOConfig(), replace(MODEL, normalize_value=False), 5),
    "advantages normalised over the minibatch": (PPOConfig(advantage_norm="minibatch", ent_coef=0.0), MODEL, 37),
}


@pytest.mark.parametrize("case", LOSSES)
def test_the_loss_of_a_minibatch(case: str) -> None:
    """Loss, gradients, statistics, and the normaliser afterwards."""
    config, model, size = LOSSES[case]
    rng = np.random.default_rng(0)
    buffer = make_buffer(rng.normal(size=(30, 4)).astype(np.float32), rng.random((30, 4)) < 0.1)
    buffer.advantages.normal_()
    index = torch.from_numpy(rng.permutation(120)[:size])
    found = []
    for kernels in (False, True):
        network = make_network(model)
        learner = PPOLearner(network, buffer, config, cuda_graphs=False)
        logits = (2 * random(size, ACTIONS)).requires_grad_()
        # Some ratios within the clip range, some outside, and one exactly 1 with an advantage of 0.
        old = logits.detach().log_softmax(1).gather(1, buffer.flat("actions")[index][:, None])[:, 0]
        old[1:] += 0.3 * random(size - 1, seed=3)
        buffer.flat("log_probs")[index] = old
        buffer.flat("advantages")[index[0]] = 0
        values = random(size, seed=1).requires_grad_()
        loss, statistics = (learner._fused_loss if kernels else learner.loss)(logits, values, index)
        (3 * loss).backward()
        state = network.normalizer.state_dict()
        found.append((loss.detach(), torch.stack(list(statistics)).detach(), logits.grad, values.grad, *state.values()))
    assert 0 < found[0][1][learner_module.STATISTICS.index("clip_fraction")] < 1
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize(("rows", "hidden", "actions"), [(5, 40, 5), (70, 130, 17), (3, 16, 1)])
@pytest.mark.parametrize("memories", [0, 1, 2])
def test_heads(rows: int, hidden: int, actions: int, memories: int) -> None:
    """Outputs, and the gradients of latents, weights and biases."""
    policy, value = (torch.nn.Linear((1 + memories) * hidden, outputs) for outputs in (actions, 1))
    phi = random(rows, hidden).requires_grad_()
    memory = random(rows, memories * hidden, seed=1) if memories else None
    x = phi if memory is None else torch.cat([phi, memory], 1)
    by_logits, by_values = random(rows, actions, seed=2), random(rows, seed=3)
    inputs = [phi, *policy.parameters(), *value.parameters()]
    found = []
    for logits, values in (
        (policy(x), value(x).squeeze(1)),
        heads(phi, memory, policy, value),
    ):
        loss = (logits * by_logits).sum() + (values * by_values).sum()
        found.append([logits, values, *torch.autograd.grad(loss, inputs)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


class OwnPolicyLoss(PPOLearner):
    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        return approximate_kl(log_probs, old_log_probs)


def test_a_learner_with_a_policy_loss_of_its_own_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "small_kernels", lambda device, enabled: True)
    buffer = make_buffer(np.zeros((8, 4), dtype=np.float32), np.zeros((8, 4), dtype=bool))
    config = PPOConfig(rollout_length=8, num_minibatches=2, num_epochs=1)
    assert PPOLearner(make_network(), buffer, config, cuda_graphs=False)._fusible
    learner = OwnPolicyLoss(make_network(), buffer, config, cuda_graphs=False)
    assert not learner._fusible
    statistics = learner.update(np.random.default_rng(0))
    assert statistics["policy_loss"] == pytest.approx(statistics["kl"])


def test_an_update_with_kernels_is_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advantages, minibatches, statistics and weights, with settings on their way to other values."""
    ends = []
    for kernels in (False, True):
        monkeypatch.setattr(available, "small_kernels", lambda device, enabled, kernels=kernels: kernels)
        rng = np.random.default_rng(0)
        buffer = make_buffer(rng.normal(size=(8, 4)).astype(np.float32), rng.random((8, 4)) < 0.2)
        network = make_network()
        config = PPOConfig(
            rollout_length=8, num_minibatches=2, gamma_end=0.99, gae_lambda_end=0.9, ent_coef_end=0.2,
            learning_rate_end=1e-3, horizon_to=900_000, target_kl=1e9, value_gammas=(0.9, 0.97, 0.995),
            frontier_entropy=4.0,
        )  # fmt: skip
        learner = PPOLearner(network, buffer, config, cuda_graphs=False)
        assert buffer.beyond is not None
        buffer.beyond.copy_(torch.from_numpy(rng.random((8, 4))))
        statistics = learner.update(np.random.default_rng(1), 800_000)
        ends.append((statistics, [p.detach() for p in network.parameters()]))
    assert ends[0][0].keys() == ends[1][0].keys() >= {"beyond", "entropy_beyond", "entropy_within"}
    assert list(ends[1][0].values()) == pytest.approx(list(ends[0][0].values()), rel=1e-3, abs=1e-5)
    for got, wanted in zip(ends[1][1], ends[0][1], strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("weight", [None, 0.0, 2.5])
@pytest.mark.parametrize("broken", [None, float("nan"), float("inf")])
def test_statistics_are_summed_up(weight: float | None, broken: float | None) -> None:
    names = tuple("abcde")
    both = [Meters(names, CPU, kernels=kernels) for kernels in (False, True)]
    for update in range(3):
        values = list(random(5, seed=update).unbind())
        if broken is not None and update == 1:
            values[3] = torch.tensor(broken)
        for meters in both:
            meters.add(*values, weight=None if weight is None else torch.tensor(weight))
    torch.testing.assert_close(both[1].sums, both[0].sums, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("actions", "count"), [(4, 8), (5, 41), (1, 33)])
@pytest.mark.parametrize("kappa", [0.1, 1.0])
def test_the_quantile_loss(actions: int, count: int, kappa: float) -> None:
    batch = 3
    quantiles, judge, ahead = (random(batch, actions, count, seed=s) for s in range(3))
    taken = torch.tensor([actions - 1, 0, actions // 2])
    rewards, discounts = random(batch, seed=3), torch.tensor([0.95, 0.0, 0.9])
    learner = object.__new__(QRDQNLearner)
    learner._config = QRDQNConfig(kappa=kappa)
    found = []
    for kernels in (False, True):
        theta = quantiles.clone().requires_grad_()
        how = learner._fused_loss if kernels else learner.loss
        loss, statistics = how(theta, judge, ahead, taken, rewards, discounts)
        (3 * loss).backward()
        found.append((loss.detach(), torch.stack(list(statistics)), theta.grad))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)
    assert len(found[0][1]) == NUM_STATISTICS


@pytest.mark.parametrize(("actions", "count"), [(4, 8), (5, 41), (1, 33)])
@pytest.mark.parametrize("kappa", [0.1, 1.0])
def test_the_quantile_penalty(actions: int, count: int, kappa: float) -> None:
    """Images looked at several times, once, not at all, or by padding alone, and values of actions near each other."""
    images, steps = 7, 20
    quantiles, old = random(images, actions, count), random(steps, actions, count, seed=1).sort(2).values
    rows = torch.tensor([3, 19, 0, 4, 5, 5, 11])
    states = torch.tensor([0, 2, 2, 4, 5, 6, 6, 6, 1, 3])
    weights = torch.tensor([1.0] * 8 + [0.0] * 2)
    regularizer = object.__new__(QuantileRegularizer)
    regularizer._kappa, regularizer.old_quantiles = kappa, old
    found = []
    for fused in (False, True):
        theta = quantiles.clone().requires_grad_()
        regularizer.fused = fused
        regularizer._network = HeldQuantiles(theta)  # type: ignore[assignment]
        loss, *figures = regularizer.terms(theta, theta, rows, states, weights)
        (3 * loss).backward()
        assert theta.grad is not None and not theta.grad[[1, 3]].any()
        found.append((loss.detach(), torch.stack(figures), theta.grad))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)
    assert not found[0][1].requires_grad and (actions == 1 or 0 < found[0][1][1] < 1)


class HeldQuantiles:
    """A network whose quantiles are given."""

    def __init__(self, quantiles: Tensor) -> None:
        self._quantiles = quantiles

    def quantiles(self, phi: Tensor, memory: Tensor) -> Tensor:
        return self._quantiles


def test_the_penalty_of_no_states() -> None:
    quantiles = random(3, 2, 8).requires_grad_()
    tables = (torch.arange(3), torch.zeros(4, dtype=torch.int64), torch.zeros(4))
    loss, *figures = quantile_penalty(quantiles, random(3, 2, 8, seed=1), tables, 1.0)
    loss.backward()
    assert not loss.detach().any() and not torch.stack(figures).any()
    assert quantiles.grad is not None and not quantiles.grad.any()
