"""Minibatches seen in a mirror, against minibatches of worlds that were mirrored beforehand."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo import learner as learner_module
from achieve.algo import ppo
from achieve.algo.learner import PPOLearner
from achieve.algo.reflection import Mirror, consistency, make_tables, reflect
from achieve.algo.schedule import scheduled
from achieve.config import ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from achieve.envs.crafter.reflection import make_reflection
from achieve.envs.crafter.vec import CrafterVecEnv
from achieve.envs.reflection import Reflection
from achieve.nn.model import ActorCritic
from tests.oracles import ppo as slow

CPU = torch.device("cpu")
MODEL = ModelConfig(encoder="strided", channels=(4, 4, 4), dense_size=8, hidden_size=12)
LENGTH, ENVS = 8, 4
SIZE = LENGTH * ENVS // 2
SAMPLES = PPOConfig(rollout_length=LENGTH, num_minibatches=2, num_epochs=1, reflection="samples")
CONSISTENCY = replace(SAMPLES, reflection="consistency", reflection_share=0.25, reflection_coef=0.7)


@pytest.fixture(scope="module")
def reflection() -> Reflection:
    made = make_reflection((9, 9), (64, 64))
    assert made is not None
    return made


def network() -> ActorCritic:
    torch.manual_seed(0)
    made = ActorCritic(MODEL, (64, 64, 3), 17, auxiliary=False)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def observations() -> Tensor:
    env = CrafterVecEnv(ENVS, seed=1, threads=1)
    rng = np.random.default_rng(0)
    seen = [env.reset()[0].copy()]
    seen += [env.step(rng.integers(1, 5, ENVS))[0].copy() for _ in range(LENGTH)]
    return torch.from_numpy(np.stack(seen))


def filled(observations: Tensor) -> RolloutBuffer:
    buffer = RolloutBuffer(1, LENGTH, ENVS, (64, 64, 3), MODEL.hidden_size, CPU)
    g = torch.Generator().manual_seed(0)
    buffer.observations.copy_(observations)
    buffer.memory.normal_(generator=g)
    buffer.actions.random_(0, 17, generator=g)
    buffer.actions[:, :2] = buffer.actions[:, :2] % 4 + 1  # moves, which have another name in a mirror
    buffer.log_probs.uniform_(-3, -2, generator=g)
    buffer.values.normal_(generator=g)
    buffer.rewards[:] = np.random.default_rng(0).random((LENGTH, ENVS))
    buffer.filled = LENGTH
    return buffer


def test_reflected_samples_are_steps_of_mirrored_worlds(reflection: Reflection, observations: Tensor) -> None:
    """The same update as from a buffer in which images and actions of the first half are mirrored beforehand."""
    tables = make_tables(reflection, CPU)
    index = torch.from_numpy(np.random.default_rng(3).permutation(LENGTH * ENVS)[:SIZE])
    half, which = index[: SIZE // 2], 1 + torch.arange(SIZE // 2) % 3
    ends = []
    for beforehand in (False, True):
        buffer, mine = filled(observations), network()
        if beforehand:
            images, actions = buffer.flat("observations"), buffer.flat("actions")
            images[half] = reflect(images[half], which, tables)[0]
            actions[half] = torch.from_numpy(reflection.actions)[which, actions[half]]
            learner = PPOLearner(mine, buffer, replace(SAMPLES, reflection="none"), cuda_graphs=False)
        else:
            learner = PPOLearner(mine, buffer, SAMPLES, cuda_graphs=False, reflection=reflection)
        learner._estimate_advantages(scheduled(SAMPLES, 0))
        learner._minibatch(index)
        ends.append((learner._meters.means(), [p.clone() for p in mine.parameters()]))
    (found, weights), (wanted, expected) = ends
    assert found.pop("reflected") == 0.5 and found.pop("reflection_kl") > 0
    assert found == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    start = list(network().parameters())
    assert any(not torch.allclose(a, b, atol=1e-5) for a, b in zip(weights, start, strict=True))


def test_consistency_adds_images_and_leaves_the_rest_as_it_is(reflection: Reflection, observations: Tensor) -> None:
    index = torch.from_numpy(np.random.default_rng(3).permutation(LENGTH * ENVS)[:SIZE])
    count = SIZE // 4
    found = {}
    for coef in (0.0, 0.7):
        buffer, mine = filled(observations), network()
        config = replace(CONSISTENCY, reflection_coef=coef)
        learner = PPOLearner(mine, buffer, config, cuda_graphs=False, reflection=reflection)
        learner._estimate_advantages(scheduled(SAMPLES, 0))
        learner._minibatch(index)
        found[coef] = learner._meters.means(), [p.grad.clone() for p in mine.parameters() if p.grad is not None]
    plain = PPOLearner(network(), filled(observations), replace(SAMPLES, reflection="none"), cuda_graphs=False)
    plain._estimate_advantages(scheduled(SAMPLES, 0))
    plain._minibatch(index)
    without = plain._meters.means()
    statistics = found[0.7][0]
    assert statistics["reflected"] == count / SIZE
    for name in ("policy_loss", "value_loss", "entropy", "kl", "value_mean"):
        assert statistics[name] == pytest.approx(without[name], rel=1e-5), "the minibatch itself is not reflected"
    assert any(not torch.allclose(a, b) for a, b in zip(found[0.0][1], found[0.7][1], strict=True))

    mine, buffer = network(), filled(observations)
    tables = make_tables(reflection, CPU)
    images, memory = (buffer.flat(name)[index[:count]] for name in ("observations", "memory"))
    which = 1 + torch.arange(count) % 3
    with torch.no_grad():
        logits, values = mine.heads(mine.encode(images), memory)
        other, mirrored = mine.heads(mine.encode(reflect(images, which, tables)[0]), memory)
    names = torch.from_numpy(reflection.actions)[which]
    divergences = slow.kl(logits.double(), other.double().gather(1, names))
    assert statistics["reflection_kl"] == pytest.approx(np.mean(divergences), rel=1e-4)
    assert statistics["reflection_value"] == pytest.approx(float((values - mirrored).square().mean()), rel=1e-4)


def test_gradients_of_consistency_reach_the_mirrored_side_alone() -> None:
    g = torch.Generator().manual_seed(0)
    logits, mirrored = (torch.randn(6, 5, generator=g, requires_grad=True) for _ in range(2))
    values, others = (torch.randn(6, generator=g, requires_grad=True) for _ in range(2))
    divergence, deviation = consistency(logits, values, mirrored, others)
    np.testing.assert_allclose(
        divergence.detach().numpy(), slow.kl(logits.detach().double(), mirrored.detach().double()), rtol=1e-5
    )
    torch.testing.assert_close(deviation, (values - others).square())
    (divergence.sum() + deviation.sum()).backward()
    assert logits.grad is None and values.grad is None
    assert mirrored.grad is not None and others.grad is not None and mirrored.grad.any() and others.grad.any()
    same, zero = consistency(logits, values, logits, values)
    assert float(same.detach().abs().max()) < 1e-6 and not zero.any()


def test_images_without_a_player_keep_the_names_of_their_actions(reflection: Reflection, observations: Tensor) -> None:
    mirror = Mirror(reflection, SAMPLES, CPU)
    images = observations.flatten(0, 1)[:12].clone()
    images[1] = 0
    shown, _, names = mirror.show(images, torch.zeros(12, 3))
    assert torch.equal(shown[1], images[1]) and torch.equal(shown[6:], images[6:])
    assert names.tolist() == reflection.actions[[1, 0, 3, 1, 2, 3, *[0] * 6]].tolist()
    _, (moved, _) = mirror.terms(torch.zeros(12, 17), torch.zeros(12), names, torch.zeros(12).long(), torch.zeros(12))
    assert float(moved) == pytest.approx(5 / 12)


def test_phases_count_on_and_say_how_it_went(reflection: Reflection, observations: Tensor) -> None:
    for config, own in ((SAMPLES, 2), (CONSISTENCY, 3)):
        learner = PPOLearner(network(), filled(observations), config, cuda_graphs=False, reflection=reflection)
        report = learner.update(np.random.default_rng(0))
        assert len(report) == len(learner_module.STATISTICS) + own + 1
        assert report["reflected"] == config.reflection_share and np.isfinite(list(report.values())).all()


@pytest.mark.parametrize("kind", ["samples", "consistency"])
def test_epochs_are_judged_by_steps_as_they_were_taken(
    kind: Literal["samples", "consistency"], reflection: Reflection, observations: Tensor
) -> None:
    mine, buffer = network(), filled(observations)
    config = replace(SAMPLES, reflection=kind, reflection_share=0.25, num_minibatches=1, target_kl=1.0)
    index = torch.from_numpy(np.random.default_rng(3).permutation(LENGTH * ENVS))
    others = index[len(index) // 4 :] if kind == "samples" else index
    images, memory, actions, before = (
        buffer.flat(name)[others] for name in ("observations", "memory", "actions", "log_probs")
    )
    with torch.no_grad():
        log_probs = ppo.log_probability(mine.heads(mine.encode(images), memory)[0], actions)
        expected = float(ppo.approximate_kl(log_probs, before))
    learner = PPOLearner(mine, buffer, config, cuda_graphs=False, reflection=reflection)
    learner._estimate_advantages(scheduled(config, 0))
    learner._minibatch(index)
    assert learner._epoch_kl() == pytest.approx(expected, rel=1e-4)
    if kind == "samples":
        assert learner._meters.means()["kl"] != pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("config", [SAMPLES, CONSISTENCY], ids=["samples", "consistency"])
def test_heads_of_several_horizons_learn_from_what_the_value_learns_from(
    config: PPOConfig, reflection: Reflection, observations: Tensor
) -> None:
    """Reflected images of samples, the originals with consistency, and targets of the steps themselves."""
    mine, buffer = network(), filled(observations)
    config = replace(config, value_gammas=(0.9, 0.98))
    learner = PPOLearner(mine, buffer, config, cuda_graphs=False, reflection=reflection)
    horizons = learner.horizons
    assert horizons is not None
    with torch.no_grad():
        horizons.weight.normal_(generator=torch.Generator().manual_seed(0))
        horizons.targets.normal_(generator=torch.Generator().manual_seed(1))
    index = torch.from_numpy(np.random.default_rng(3).permutation(LENGTH * ENVS)[:SIZE])
    images, memory = (buffer.flat(name)[index] for name in ("observations", "memory"))
    if config.reflection == "samples":
        images = Mirror(reflection, config, CPU).show(images, memory)[0]
    with torch.no_grad():
        expected = float(horizons.loss(mine.encode(images), memory, index))
    learner._minibatch(index)
    assert learner._meters.means()["horizon_loss"] == pytest.approx(expected, rel=1e-5)
