"""QR-DQN's updates: the weights they end with, the target network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo.qrdqn import QRDQNLearner
from achieve.config import ModelConfig, QRDQNConfig
from achieve.data.replay import Replay, ReplayShape
from achieve.errors import DivergedError
from achieve.nn.model import ActorCritic, QuantileNetwork, count_parameters
from achieve.presets import PRESETS
from tests.algo.recording import snapshot
from tests.algo.replaying import CONFIG, MODEL, filled_replay, make_learner, make_network
from tests.helpers.setup import ACTIONS
from tests.oracles import network as literal
from tests.oracles import quantile
from tests.oracles.adam import Adam

CASES: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "as published": (MODEL, {}),
    "no memory": (replace(MODEL, memory=False), {}),
    "no double": (MODEL, {"double": False}),
    "another kappa": (MODEL, {"kappa": 1.0}),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("case", CASES)
def test_the_weights_after_some_updates(case: str) -> None:
    """Two calls with two and one batches, state by state, in float64 throughout."""
    model, changes = CASES[case]
    learner, network, replay = make_learner(model, **changes)
    config = replace(CONFIG, **changes)
    params, target = literal.parameters(network), literal.parameters(learner.target)
    start = snapshot(network)
    optimizer = Adam(config.learning_rate, config.max_grad_norm, config.adam_eps)
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    for batches in (2, 1):
        for batch in replay.draw(same, batches, config.batch_size):
            steps = replay.transitions(batch)

            def look(params: literal.Params, where: np.ndarray) -> torch.Tensor:
                memory = replay.memory(where) if model.memory else None
                return quantile.heads(params, literal.phi(params, replay.images(where)), memory, ACTIONS)

            with torch.no_grad():
                ahead = look(target, steps.following)
                judge = look(params, steps.following) if config.double else ahead
            here = look(params, batch)
            terms = []
            for k, action in enumerate(steps.actions):
                goal = quantile.bellman(float(steps.rewards[k]), float(steps.discounts[k]), ahead[k], judge[k])
                terms.append(quantile.pairwise(here[k, action], goal, config.kappa))
            loss = torch.stack(terms).mean()
            grads = torch.autograd.grad(loss, list(params.values()))
            optimizer.step(params, dict(zip(params, grads, strict=True)))
        learner.learn(batches, rng)
        report = learner.finish()
        assert report["updates"] == batches and report["skipped_updates"] == 0
    for name, end in snapshot(network).items():
        assert (end - start[name]).norm() > 1e-5, f"{name} has not moved"
        torch.testing.assert_close(end, params[name].detach(), atol=1e-7, rtol=0, msg=name)


def test_target_updates_copy_the_network_and_nothing_else_changes_it() -> None:
    learner, network, _ = make_learner()
    before = snapshot(learner.target)
    learner.learn(3, np.random.default_rng(0))
    learner.finish()
    assert all(torch.equal(value, before[name]) for name, value in snapshot(learner.target).items())
    learner.update_target()
    now = snapshot(network)
    for name, value in snapshot(learner.target).items():
        assert torch.equal(value, now[name]) and not torch.equal(value, before[name]), name
    assert {id(p) for p in network.parameters()}.isdisjoint(id(p) for p in learner.target.parameters())


def test_the_target_network_needs_no_auxiliary_nets() -> None:
    network = make_network(auxiliary=True)
    learner = QRDQNLearner(network, make_network(seed=1), filled_replay(), CONFIG, cuda_graphs=False)
    names = {name for name, _ in learner.target.named_parameters()}
    assert names < {name for name, _ in network.named_parameters()}
    learner.learn(1, np.random.default_rng(0))
    still = {n: p for n, p in network.named_parameters() if n.startswith(("film", "predictor"))}
    assert still and all(p.grad is None for p in still.values())


def test_batches_are_drawn_before_the_first_update() -> None:
    """Drawing and launching apart is the same as at once, and launching twice learns once."""
    (first, mine, _), (second, theirs, _) = make_learner(), make_learner()
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    for _ in range(3):
        first.learn(2, rng)
        second.draw(2, same)
        second.launch()
        second.launch()
    assert first.finish() == second.finish()
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))


def test_nothing_due_changes_nothing() -> None:
    learner, network, _ = make_learner()
    before, rng = snapshot(network), np.random.default_rng(0)
    learner.learn(0, rng)
    assert learner.finish() == {"updates": 0, "skipped_updates": 0}
    assert all(torch.equal(value, before[name]) for name, value in snapshot(network).items())
    assert rng.random() == np.random.default_rng(0).random(), "and draws nothing"


def test_a_network_that_has_diverged_is_told() -> None:
    learner, network, _ = make_learner()
    with torch.no_grad():
        network.advantage.weight.fill_(float("inf"))
    learner.learn(2, np.random.default_rng(0))
    with pytest.raises(DivergedError, match="all 2 QR-DQN updates"):
        learner.finish()


def test_quantiles_of_the_network() -> None:
    network = make_network()
    phi, memory = torch.randn(4, 10), torch.randn(4, 10)
    with torch.no_grad():
        found = network.quantiles(phi, memory)
    assert found.shape == (4, ACTIONS, 6)
    expected = quantile.heads(literal.parameters(network), phi.double(), memory, ACTIONS)
    torch.testing.assert_close(found.double(), expected.detach(), atol=1e-5, rtol=1e-5)


def test_the_encoder_is_that_of_ppo() -> None:
    config = PRESETS["qrdqn-ad"]
    ours = QuantileNetwork(config.model, (64, 64, 3), 17, auxiliary=True, num_quantiles=config.qrdqn.num_quantiles)
    theirs = ActorCritic(PRESETS["ad"].model, (64, 64, 3), 17, auxiliary=True)
    for part in ("encoder", "film", "predictor"):
        shapes = [{n: p.shape for n, p in getattr(one, part).named_parameters()} for one in (ours, theirs)]
        assert shapes[0] == shapes[1]
    heads = 2 * 1024 * 17 * 200 + 17 * 200
    theirs_heads = 2 * 1024 * 18 + 18 + 3
    assert count_parameters(ours) - heads == count_parameters(theirs) - theirs_heads


def test_the_published_numbers() -> None:
    values = QRDQNConfig()
    assert (values.gamma, values.batch_size, values.replay_frequency, values.target_update) == (0.95, 64, 4, 8000)
    assert (values.learning_rate, values.adam_eps, values.max_grad_norm) == (6.25e-5, 1.5e-4, 10.0)
    assert (values.replay_size, values.learning_starts) == (1_000_000, 20_000)


def test_a_million_frames_take_less_than_13_gigabytes() -> None:
    config = PRESETS["qrdqn"]
    shape = ReplayShape(config.replay_rows, config.env.num_envs, (64, 64, 3))
    small = Replay(replace(shape, rows=10), torch.device("cpu"), torch.device("cpu"))
    beside = sum(array.nbytes for array in small.arrays().values()) / 10 * shape.rows
    assert shape.rows * shape.num_envs == 1_000_000
    assert 12e9 < shape.nbytes + beside < 13e9
