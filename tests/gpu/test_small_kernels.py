"""The kernels around the encoder against their plain twins, at the sizes of a run and on a real GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo import gae as plain_gae
from achieve.algo.collect import Collector
from achieve.algo.learner import PPOLearner
from achieve.algo.meters import Meters
from achieve.algo.qrdqn import QRDQNLearner
from achieve.algo.regularizers import QuantileRegularizer
from achieve.config import ModelConfig, PPOConfig, QRDQNConfig
from achieve.data.buffer import RolloutBuffer
from achieve.nn.kernels.heads import heads
from achieve.nn.kernels.policy import gae as fast_gae
from achieve.nn.model import SET_SCALE, ActorCritic
from tests.gpu.common import DEVICE, copy_to_gpu
from tests.helpers.envs import ScriptedEnv

pytestmark = pytest.mark.gpu

IMAGE, ACTIONS = (64, 64, 3), 17


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def make(model: ModelConfig) -> ActorCritic:
    """A network moved off its initial values."""
    torch.manual_seed(0)
    made = ActorCritic(model, IMAGE, ACTIONS, auxiliary=False)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.02 * torch.randn_like(p))
        made.normalizer.update(torch.randn(50) * 2 + 1)
    return made


@pytest.fixture(scope="module")
def network() -> ActorCritic:
    """The paper's."""
    return make(ModelConfig())


@pytest.mark.parametrize("num_envs", [8, 5, 64])
def test_acting(network: ActorCritic, num_envs: int) -> None:
    check_acting(network, num_envs)


@pytest.mark.parametrize("last", [True, False])
def test_acting_with_a_set_memory(last: bool) -> None:
    check_acting(make(ModelConfig(memory=last, set_memory=True)), 8)


def check_acting(network: ActorCritic, num_envs: int) -> None:
    """A short rollout, replayed with the kernels and called without, of the same features."""
    rng = np.random.default_rng(0)
    rewards, dones = rng.choice([0.0, 0.1, 1.0], (12, num_envs)), rng.random((12, num_envs)) < 0.1
    found = []
    for kernels in (False, True):
        mine = copy_to_gpu(network, "fp16", fused=True)
        buffer = RolloutBuffer(1, 12, num_envs, IMAGE, mine.config.memory_size, DEVICE)
        collector = Collector(mine, ScriptedEnv(rewards, dones), buffer, 0.15, cuda_graphs=kernels)
        assert (collector._kernels is not None) is kernels
        collector.start()
        collector.collect(torch.Generator(DEVICE).manual_seed(0))
        if mine.config.set_memory:  # with the weights that played, there is nothing new to be found
            carried = collector.memory.clone()
            collector.refresh()
            torch.testing.assert_close(collector.memory, carried, atol=2e-2 * SET_SCALE, rtol=0)
        found.append(buffer)
    plain, fast = found
    assert torch.equal(fast.observations, plain.observations)
    assert (fast.actions == plain.actions).float().mean() > 0.99  # a tie of rounding errors may fall either way
    error = 2e-3 * (SET_SCALE if network.config.set_memory else 1)
    for name in ("values", "memory"):
        torch.testing.assert_close(getattr(fast, name), getattr(plain, name), atol=error, rtol=2e-3)
    same = fast.actions == plain.actions
    torch.testing.assert_close(fast.log_probs[same], plain.log_probs[same], atol=error, rtol=2e-3)
    assert plain.memory.any()


def test_gae() -> None:
    rewards, values = random(512, 8), random(513, 8, seed=1)
    dones = random(512, 8, seed=2) > 2
    result = fast_gae(rewards, values, dones, 0.95, 0.65)
    expected = plain_gae.gae(rewards.cpu(), values.cpu(), dones.cpu(), 0.95, 0.65)
    for got, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["rollout", "minibatch"])
@pytest.mark.parametrize("size", [512, 2048, 100])
def test_the_loss_of_a_minibatch(network: ActorCritic, size: int, norm: Literal["rollout", "minibatch"]) -> None:
    buffer = RolloutBuffer(1, 512, 8, IMAGE, 0, DEVICE)
    for name in ("values", "advantages", "returns"):
        getattr(buffer, name).normal_()
    buffer.actions.random_(0, ACTIONS)
    buffer.log_probs.uniform_(-3.2, -2.5)
    index = torch.randperm(4096, device=DEVICE)[:size]
    found = []
    for kernels in (False, True):
        mine = copy_to_gpu(network)
        learner = PPOLearner(mine, buffer, PPOConfig(advantage_norm=norm), cuda_graphs=kernels)
        assert learner._fusible is kernels
        logits, values = (0.3 * random(size, ACTIONS)).requires_grad_(), random(size, seed=1).requires_grad_()
        loss, statistics = (learner._fused_loss if kernels else learner.loss)(logits, values, index)
        loss.backward()
        state = mine.normalizer.state_dict().values()
        found.append((loss.detach(), torch.stack(list(statistics)).detach(), logits.grad, values.grad, *state))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [512, 131])
@pytest.mark.parametrize("memories", [0, 1, 2])
def test_heads(rows: int, memories: int) -> None:
    policy, value = (torch.nn.Linear((1 + memories) * 1024, outputs).to(DEVICE) for outputs in (ACTIONS, 1))
    phi = random(rows, 1024).requires_grad_()
    memory = random(rows, memories * 1024, seed=1) if memories else None
    x = phi if memory is None else torch.cat([phi, memory], 1)
    by_logits, by_values = random(rows, ACTIONS, seed=2), random(rows, seed=3)
    inputs = [phi, *policy.parameters(), *value.parameters()]
    found = []
    for logits, values in ((policy(x), value(x).squeeze(1)), heads(phi, memory, policy, value)):
        loss = (logits * by_logits).sum() + (values * by_values).sum()
        found.append([logits, values, *torch.autograd.grad(loss, inputs)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_statistics_are_summed_up() -> None:
    both = [Meters(tuple("abcdefghi"), DEVICE, kernels=kernels) for kernels in (False, True)]
    for update in range(5):
        values = list(random(9, seed=update).unbind())
        if update == 2:
            values[4] = torch.tensor(float("nan"), device=DEVICE)
        for meters in both:
            meters.add(*values, weight=torch.tensor(float(update), device=DEVICE))
    torch.testing.assert_close(both[1].sums, both[0].sums, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("batch", "actions", "count"), [(64, ACTIONS, 200), (7, 5, 33)])
def test_the_quantile_loss(batch: int, actions: int, count: int) -> None:
    quantiles, judge, ahead = (random(batch, actions, count, seed=s) for s in range(3))
    taken = torch.randint(0, actions, (batch,), device=DEVICE)
    rewards, discounts = random(batch, seed=3), torch.full((batch,), 0.95, device=DEVICE)
    learner = object.__new__(QRDQNLearner)
    learner._config = QRDQNConfig()
    found = []
    for how in (learner.loss, learner._fused_loss):
        theta = quantiles.clone().requires_grad_()
        loss, statistics = how(theta, judge, ahead, taken, rewards, discounts)
        loss.backward()
        found.append((loss.detach(), torch.stack(list(statistics)), theta.grad))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("images", "actions", "count"), [(224, ACTIONS, 200), (7, 5, 33)])
def test_the_quantile_penalty(images: int, actions: int, count: int) -> None:
    """As accurate as the plain twin in float32, measured against that in float64."""
    quantiles, old = random(images, actions, count), random(300, actions, count, seed=1).sort(2).values
    steps = torch.randint(0, 300, (images,), device=DEVICE)
    states = torch.randint(0, images, (512,), device=DEVICE)
    weights = (torch.arange(512, device=DEVICE) < 400).float()
    found = []
    for dtype, fused in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        theta = quantiles.to(dtype, copy=True).requires_grad_()  # each has a gradient of its own
        regularizer = object.__new__(QuantileRegularizer)
        regularizer._kappa, regularizer.old_quantiles, regularizer.fused = 0.1, old.to(dtype), fused
        regularizer._network = SimpleNamespace(quantiles=lambda *_, theta=theta: theta)  # type: ignore[assignment]
        loss, *figures = regularizer.terms(theta, theta, steps, states, weights.to(dtype))
        loss.backward()
        assert theta.grad is not None
        found.append([part.detach().double() for part in (loss, *figures, theta.grad)])
    exact, plain, kernels = found
    for wanted, near, got in zip(exact, plain, kernels, strict=True):
        assert float((got - wanted).norm()) <= 2 * float((near - wanted).norm()) + 1e-6 * float(wanted.norm())
