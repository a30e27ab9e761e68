"""Values at several discounts: their mixture, their targets, and what an update makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.horizons import DECAY, HorizonRegularizer, HorizonValues, mixture, target_lambda
from achieve.algo.learner import PPOLearner
from achieve.algo.regularizers import PolicyValueRegularizer
from achieve.algo.schedule import scheduled
from achieve.config import DistillConfig, ModelConfig, PPOConfig, TrainConfig, validate
from achieve.errors import ConfigError
from tests.algo.test_learner import CONFIG, ENVS, LENGTH, filled_buffer
from tests.helpers.setup import MODEL, make_network
from tests.oracles import ppo

GAMMAS = (0.9, 0.95, 0.98, 0.995)
HORIZONS = replace(CONFIG, value_gammas=GAMMAS, gamma_end=0.99, horizon_from=0, horizon_to=1000)


@pytest.mark.parametrize("gamma", [0.9, 0.91, 0.95, 0.9501, 0.97, 0.98, 0.99, 0.995])
def test_a_mixture_lies_where_the_discount_does(gamma: float) -> None:
    weights = mixture(GAMMAS, gamma)
    assert sum(weights) == pytest.approx(1) and min(weights) >= 0
    place = sum(w * math.log(1 - other) for w, other in zip(weights, GAMMAS, strict=True))
    assert place == pytest.approx(math.log(1 - gamma))
    used = [k for k, weight in enumerate(weights) if weight]
    assert len(used) == (1 if gamma in GAMMAS else 2) and used == list(range(used[0], used[-1] + 1)), "neighbours"
    if gamma in GAMMAS:
        assert weights[GAMMAS.index(gamma)] == 1


def test_outside_of_all_discounts_the_last_one_counts() -> None:
    assert mixture(GAMMAS, 0.5) == [1, 0, 0, 0] and mixture(GAMMAS, 0.999) == [0, 0, 0, 1]
    assert mixture((0.9,), 0.95) == [1]


def test_targets_of_all_heads_are_equally_fast() -> None:
    def speed(gamma: float, lam: float) -> float:
        return gamma * (1 - lam) / (1 - gamma * lam)

    assert target_lambda(0.95, 0.95, 0.65) == pytest.approx(0.65)
    for own in GAMMAS:
        lam = target_lambda(own, 0.95, 0.65)
        assert (1 - lam) / (1 - own) == pytest.approx(0.35 / 0.05)
        assert speed(own, lam) == pytest.approx(speed(0.95, 0.65), abs=0.02)
    assert target_lambda(0.5, 0.95, 0.65) == 0, "and never negative"


def literal_update(
    learner: PPOLearner, config: PPOConfig, statistics: tuple[np.ndarray, np.ndarray, float], step: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, float]]:
    """Mixed advantages [T, N], normalised targets [T, N, K] and statistics of the newest rollout, in plain loops."""
    buffer, network, horizons = learner._buffer, learner._network, learner.horizons
    assert horizons is not None
    rows = slice(buffer.filled - LENGTH, buffer.filled)
    images = buffer.observations[rows.start : rows.stop + 1].flatten(0, 1)
    memory = buffer.memory[rows.start : rows.stop + 1].flatten(0, 1)
    with torch.no_grad():
        x = network.encode(images)
        if memory.shape[1]:
            x = torch.cat([x, memory], 1)
        outputs = (x @ horizons.weight.T + horizons.bias).view(LENGTH + 1, ENVS, -1).numpy()
    mean_ewma, square_ewma, count = statistics
    normalize = network.config.normalize_value

    def mean_and_std(k: int) -> tuple[float, float]:
        if not normalize:
            return 0.0, 1.0
        weight = max(count, 0.01)
        mean = mean_ewma[k] / weight
        return mean, math.sqrt(max(square_ewma[k] / weight - mean**2, 0.01))

    now = scheduled(config, step)
    weights = mixture(config.value_gammas, now.gamma)
    all_returns, mixed = [], np.zeros((LENGTH, ENVS))
    for k, gamma in enumerate(config.value_gammas):
        mean, std = mean_and_std(k)
        values = torch.from_numpy(outputs[..., k] * std + mean)
        given = buffer.rewards[rows], values, buffer.dones[rows], gamma
        _, returns = ppo.gae(*given, target_lambda(gamma, config.gamma, config.gae_lambda))
        advantages, _ = ppo.gae(*given, now.gae_lambda)
        all_returns.append(returns)
        mixed += weights[k] * ppo.normalized(advantages)
    returns = np.stack(all_returns, 2)
    flat = returns.reshape(-1, returns.shape[2])
    mean_ewma = DECAY * mean_ewma + (1 - DECAY) * flat.mean(0)
    square_ewma = DECAY * square_ewma + (1 - DECAY) * (flat**2).mean(0)
    count = DECAY * count + (1 - DECAY)
    targets = np.stack([(returns[..., k] - m) / s for k in range(returns.shape[2]) for m, s in [mean_and_std(k)]], 2)
    return ppo.normalized(mixed), targets, (mean_ewma, square_ewma, count)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    "model",
    [
        MODEL, replace(MODEL, memory=False), replace(MODEL, normalize_value=False), replace(MODEL, set_memory=True),
        replace(MODEL, memory=False, set_memory=True),
    ],
    ids=["", "no memory", "no value normalisation", "both memories", "set memory"],
)
def test_rollouts_are_those_of_plain_loops(model: ModelConfig) -> None:
    buffer, network = filled_buffer(model), make_network(model)
    learner = PPOLearner(network, buffer, replace(HORIZONS, learning_rate=1e-2), cuda_graphs=False)
    assert learner.horizons is not None
    heads = len(GAMMAS)
    statistics = np.zeros(heads), np.zeros(heads), 0.0
    rng = np.random.default_rng(0)
    for rollout, step in enumerate((100, 400, 900)):
        buffer.filled = (rollout + 1) * LENGTH
        rows = slice(rollout * LENGTH, buffer.filled)
        mixed, targets, statistics = literal_update(learner, HORIZONS, statistics, step)
        started = learner.horizons.weight.detach().clone()
        report = learner.update(rng, step)
        np.testing.assert_allclose(buffer.advantages[rows].numpy(), mixed, atol=1e-7)
        kept = learner.horizons.targets.view(-1, ENVS, heads)[rows]
        np.testing.assert_allclose(kept.numpy(), targets, atol=1e-7)
        assert not torch.equal(learner.horizons.weight, started), "heads learn"
        assert report["horizon_loss"] > 0
        assert [name for name in report if name.startswith("explained_variance_")] == [
            f"explained_variance_{gamma}" for gamma in GAMMAS
        ]
    if model.normalize_value:
        np.testing.assert_allclose(learner.horizons.mean_ewma.numpy(), statistics[0], atol=1e-9)


def test_the_loss_reaches_heads_and_latents() -> None:
    buffer, network = filled_buffer(), make_network()
    horizons = HorizonValues(network, buffer, HORIZONS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        horizons.weight.normal_(generator=generator)
        horizons.targets.normal_(generator=generator)
    index = torch.tensor([3, 0, 17])
    phi = torch.randn(3, 10, generator=generator, requires_grad=True)
    memory = torch.randn(3, 10, generator=generator)
    loss = horizons.loss(phi, memory, index)
    values = torch.cat([phi, memory], 1) @ horizons.weight.T + horizons.bias
    errors = [(values[row, k] - horizons.targets[index[row], k]) ** 2 for row in range(3) for k in range(len(GAMMAS))]
    torch.testing.assert_close(loss, torch.stack(errors).mean())
    loss.backward()
    assert phi.grad is not None and phi.grad.any()
    assert horizons.weight.grad is not None and horizons.weight.grad.any()
    halved = HorizonValues(network, buffer, replace(HORIZONS, value_half=True))
    halved.load_state_dict(horizons.state_dict())
    halved.targets.copy_(horizons.targets)
    torch.testing.assert_close(halved.loss(phi, memory, index), loss / 2)


def test_heads_learn_the_values_of_their_discounts() -> None:
    """The same rollout again and again: every head comes to explain its targets."""
    buffer, network = filled_buffer(), make_network()
    config = replace(HORIZONS, learning_rate=1e-2, num_epochs=4, num_minibatches=1)
    learner, rng = PPOLearner(network, buffer, config, cuda_graphs=False), np.random.default_rng(0)
    reports = [learner.update(rng, 0) for _ in range(30)]
    for gamma in GAMMAS:
        name = f"explained_variance_{gamma}"
        assert reports[0][name] == pytest.approx(0, abs=0.2)
        assert reports[-1][name] > 0.6, name


def test_with_the_only_head_at_gamma_advantages_begin_as_without() -> None:
    """Where the network's own value is 0 everywhere, as a new head is."""
    buffer = filled_buffer()
    buffer.values.zero_()
    advantages = []
    for gammas in ((), (0.95,)):
        config = replace(CONFIG, value_gammas=gammas, learning_rate=1e-12)
        PPOLearner(make_network(), buffer, config, cuda_graphs=False).update(np.random.default_rng(0))
        advantages.append(buffer.advantages.clone())
    torch.testing.assert_close(advantages[0], advantages[1], atol=1e-5, rtol=1e-5)


def test_phases_hold_the_heads_where_they_were() -> None:
    buffer, network = filled_buffer(), make_network()
    horizons = HorizonValues(network, buffer, HORIZONS)
    with torch.no_grad():
        horizons.weight.normal_(generator=torch.Generator().manual_seed(0))
    config = DistillConfig(value_reg_coef=0.7)
    given = network, buffer, config
    regularizer, plain = HorizonRegularizer(*given, horizons), PolicyValueRegularizer(*given)
    assert regularizer.names == ("policy_reg", "value_reg", "horizon_reg") and regularizer.coefs == (1.0, 0.7, 0.7)
    steps = torch.arange(buffer.steps)
    memory = buffer.flat("memory")[: buffer.steps]
    with torch.no_grad():
        phi = network.encode(buffer.flat("observations")[: buffer.steps])
        for each in (regularizer, plain):
            each.allocate(buffer.steps)
            each.record(steps, phi, memory)
    images, states, weights = torch.tensor([5, 9, 2]), torch.tensor([2, 0]), torch.tensor([1.0, 3.0])
    moved = (phi[images] + 0.1).requires_grad_()
    still = regularizer.terms(phi[images], memory[images], images, states, weights)
    assert float(still[2]) == 0
    before = network.normalizer.state_dict()
    kept = {name: value.clone() for name, value in before.items()}
    terms = regularizer.terms(moved, memory[images], images, states, weights)
    network.normalizer.load_state_dict(kept)
    for mine, theirs in zip(terms, plain.terms(moved, memory[images], images, states, weights), strict=False):
        torch.testing.assert_close(mine, theirs)
    shift = 0.1 * horizons.weight[:, : phi.shape[1]].sum(1)
    torch.testing.assert_close(terms[2], shift.square().mean(), msg="all latents moved alike, and so did all values")
    terms[2].backward()
    assert moved.grad is not None and moved.grad[states].any()
    assert horizons.weight.grad is None, "in a phase the encoder moves, not the heads"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"value_gammas": (0.95, 0.9)}, "ppo.value_gammas is 0.95 0.9; give different discounts below 1, in"),
        ({"value_gammas": (0.9, 0.9, 0.99)}, "ppo.value_gammas is 0.9 0.9 0.99; give different discounts"),
        ({"value_gammas": (0.9, 1.0)}, "ppo.value_gammas is 0.9 1.0; give different discounts below 1"),
        ({"value_gammas": (0.9, 1.5)}, "ppo.value_gammas is 1.5; it must lie between 0 and 1"),
        ({"value_gammas": (0.97, 0.99)}, "ppo.gamma is 0.95, outside ppo.value_gammas, which is 0.97 0.99; change one"),
        (
            {"value_gammas": (0.9, 0.98), "gamma_end": 0.99},
            "ppo.gamma_end is 0.99, outside ppo.value_gammas, which is 0.9 0.98; change one of them",
        ),
    ],
)
def test_discounts_that_cannot_be_mixed_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(TrainConfig(ppo=PPOConfig(**settings)))
    assert str(refused.value).startswith(sentence)


def test_a_recurrent_core_is_refused() -> None:
    config = TrainConfig(model=ModelConfig(core="gru"), ppo=PPOConfig(value_gammas=(0.9, 0.95)))
    with pytest.raises(ConfigError, match=r"^the heads of ppo\.value_gammas cannot see a recurrent core"):
        validate(config)
