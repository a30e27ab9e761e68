"""Distillation of a QR-DQN network: the same updates, with quantiles kept in place of policy and value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from achieve.algo.regularizers import QuantileRegularizer
from achieve.config import DistillConfig
from achieve.data.trajectories import cut_trajectories
from achieve.nn.model import QuantileNetwork
from tests.algo.distilling import EPISODES, Setting, make_distiller, script
from tests.algo.recording import record, snapshot
from tests.algo.replaying import MODEL, make_network
from tests.algo.test_phase import replay
from tests.helpers.setup import ACTIONS, literal_experience, make_buffer
from tests.oracles import network as literal
from tests.oracles import quantile
from tests.oracles.distill import Agent, Experience, Objective
from tests.oracles.ppo import Normalizer

CONFIG = DistillConfig(num_epochs=1, num_targets=2, batch_size=12)
KAPPA = 0.3


def kept(agent: Agent, old: Agent, data: Experience, steps: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """Each action's quantiles in each state, onto all of the frozen copy's, pair by pair."""
    memory = data.remembered(steps)
    new = quantile.heads(agent.params, latents, memory, ACTIONS)
    with torch.no_grad():
        before = quantile.heads(old.params, literal.phi(old.params, data.observations[steps]), memory, ACTIONS)
    terms = [
        quantile.pairwise(new[k, a], before[k, a], KAPPA) for k in range(len(steps)) for a in range(ACTIONS)
    ]
    return torch.stack(terms).mean()


def make_setting(config: DistillConfig = CONFIG, *, coef: float = 1.0, memory: bool = True) -> Setting:
    network = make_network(replace(MODEL, memory=memory), auxiliary=True)
    rewards, dones = script(EPISODES)
    buffer = make_buffer(rewards, dones, memory=MODEL.hidden_size if memory else 0)
    regularizer = QuantileRegularizer(network, buffer, coef, KAPPA)
    distiller = make_distiller(network, buffer, config, regularizer=regularizer)
    agent = Agent(literal.parameters(network), Normalizer(False), ACTIONS)
    return Setting(
        network,  # type: ignore[arg-type]
        buffer,
        distiller,
        cut_trajectories(buffer.rewards, buffer.dones, buffer.fresh, 0.15),
        agent,
        agent.frozen(),
        literal_experience(buffer),
        Objective(config.temperature, policy_coef=coef, keep=kept),
    )


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("coef", "memory"), [(0.4, True), pytest.param(1.0, False, marks=pytest.mark.long)]
)
def test_the_weights_after_a_phase(coef: float, memory: bool) -> None:
    """Predictions and matches that build on one another, in float64 throughout."""
    setting = make_setting(coef=coef, memory=memory)
    start = snapshot(setting.network)
    events = record(setting.distiller, setting.usable)
    report = setting.distiller.run(np.random.default_rng(0), torch.Generator().manual_seed(0))
    replay(setting, events, CONFIG)
    for name, end in snapshot(setting.network).items():
        assert (end - start[name]).norm() > 1e-3, f"{name} has not moved"
        torch.testing.assert_close(end, setting.agent.params[name].detach(), atol=1e-8, rtol=0, msg=name)
    assert report.updates["prediction"] and report.updates["matching"]
    assert {"prediction_quantile_reg", "matching_quantile_reg", "matching_drift"} <= report.statistics.keys()
    assert 0 <= report.statistics["prediction_changed_actions"] <= 1
    assert not any("policy" in name or "value" in name for name in report.statistics)


def test_frozen_quantiles_are_those_of_the_network_before_the_phase() -> None:
    setting = make_setting()
    setting.distiller._freeze(setting.usable)
    regularizer = setting.distiller.regularizer
    assert isinstance(regularizer, QuantileRegularizer)
    places = torch.from_numpy(np.concatenate([t.steps for t in setting.usable]))
    latents = literal.phi(setting.old.params, setting.data.observations[places])
    expected = quantile.heads(setting.old.params, latents, setting.data.remembered(places), ACTIONS)
    found = regularizer.old_quantiles[places].double()
    torch.testing.assert_close(found, expected.sort(2).values, atol=1e-5, rtol=1e-5)


def test_the_term_brings_values_back_to_where_they_were() -> None:
    """Descending it alone, from a network that has moved on."""
    setting = make_setting()
    network, buffer, regularizer = setting.network, setting.buffer, setting.distiller.regularizer
    assert isinstance(network, QuantileNetwork)
    setting.distiller._freeze(setting.usable)
    images = torch.from_numpy(np.concatenate([t.steps for t in setting.usable]))
    memory = buffer.flat("memory")[images]
    old = regularizer.old_quantiles[images].mean(2)  # type: ignore[attr-defined]
    with torch.no_grad():
        network.advantage.bias.add_(torch.randn_like(network.advantage.bias))
        phi = network.encode(buffer.flat("observations")[images])

    def distance() -> float:
        with torch.no_grad():
            return float((network.quantiles(phi, memory).mean(2) - old).abs().mean())

    before = distance()
    optimizer = torch.optim.Adam(network.advantage.parameters(), lr=0.02)
    everywhere = torch.arange(len(images))
    for _ in range(100):
        term, drift, changed = regularizer.terms(phi, memory, images, everywhere, torch.ones(len(images)))
        assert drift.item() == pytest.approx(distance(), rel=1e-4)
        optimizer.zero_grad()
        term.backward()
        optimizer.step()
    assert distance() < 0.2 * before
    with torch.no_grad():
        best = network.quantiles(phi, memory).mean(2).argmax(1)
        changed = regularizer.terms(phi, memory, images, everywhere, torch.ones(len(images)))[2]
    assert changed.item() == pytest.approx((best != old.argmax(1)).float().mean().item())
