"""Self-imitation: its losses point by point, what it is told of kept episodes, and what it does to a policy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from achieve.algo import imitation
from achieve.algo.contrastive import next_memories
from achieve.algo.imitation import (
    SelfImitation,
    discounted_returns,
    horizon,
    imitation_losses,
    keep_rare,
    leading_to,
    recompute_states,
    refresh,
)
from achieve.algo.ppo import log_probability
from achieve.algo.rarity import UnlockKinds, rarity_weights
from achieve.config import DistillConfig, ModelConfig
from achieve.data.kept import KeptEpisodes
from achieve.data.trajectories import Trajectory
from tests.algo import test_rarity as rare
from tests.algo.distilling import EPISODES, make_distiller, script, statistics
from tests.helpers.setup import ACTIONS, IMAGE, MODEL, make_buffer, make_network


def test_returns_of_an_episode() -> None:
    rewards = np.array([0.0, 1.0, 0.0, -0.1, 3.0])
    expected = [sum(0.9**k * r for k, r in enumerate(rewards[t:])) for t in range(5)]
    np.testing.assert_allclose(discounted_returns(rewards, 0.9), expected)


def test_how_far_a_step_looks() -> None:
    assert horizon(0.95) == pytest.approx(58.4, abs=0.1)
    assert horizon(1.0) == np.inf and horizon(0.0) == 1
    assert leading_to(np.array([3, 9]), 2).tolist() == [False, True, True, True, False, False, False, True, True, True]


def test_losses_point_by_point() -> None:
    g = torch.Generator().manual_seed(0)
    log_probs, values, returns = (torch.randn(7, generator=g).requires_grad_() for _ in range(3))
    policy, value, gain = imitation_losses(log_probs, values, returns)
    expected_policy = expected_value = 0.0
    for lp, v, r in zip(log_probs.tolist(), values.tolist(), returns.tolist(), strict=True):
        better = max(r - v, 0.0)
        expected_policy -= lp * better / 7
        expected_value += 0.5 * better**2 / 7
    assert float(policy.detach()) == pytest.approx(expected_policy, rel=1e-5)
    assert float(value.detach()) == pytest.approx(expected_value, rel=1e-5)
    (policy_grad,) = torch.autograd.grad(policy, log_probs, retain_graph=True)
    assert torch.allclose(policy_grad, -gain / 7)
    policy.backward(retain_graph=True)
    assert values.grad is None, "the policy's loss does not move the values"
    value.backward()
    assert values.grad is not None and ((values.grad < 0) == (gain > 0)).all()


def kept_of(buffer: rare.RolloutBuffer, rows: int = 4096, memory_size: int = rare.SIZE) -> KeptEpisodes:
    return KeptEpisodes(rows, tuple(buffer.observations.shape[2:]), memory_size, torch.device("cpu"))


def learned() -> tuple[UnlockKinds, rare.RolloutBuffer, rare.Recognizer]:
    kinds, buffer, network = rare.make()
    rare.fill(buffer, np.random.default_rng(0))
    kinds.learn()
    return kinds, buffer, network


def test_episodes_with_a_rare_kind_are_kept() -> None:
    kinds, buffer, _ = learned()
    kept = kept_of(buffer)
    count = keep_rare(kept, kinds, buffer, 0.5, 0.2)
    expected = []
    for episode in buffer.trajectories(0.5):
        after = episode.steps[episode.unlocks + 1]
        if {4, 5} & set(buffer.flat("observations")[after, 0].tolist()):
            expected.append(episode.steps)
    assert count == len(kept) == len(expected) > 3
    for mine, steps in zip(kept.episodes(), expected, strict=True):
        assert torch.equal(kept.observations[torch.from_numpy(mine)], buffer.flat("observations")[steps])
        np.testing.assert_array_equal(kept.rewards[mine], buffer.rewards.ravel()[steps])


def test_memories_and_returns_are_those_of_the_encoder_and_the_rates_now(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, buffer, network = learned()
    kept = kept_of(buffer)
    keep_rare(kept, kinds, buffer, 0.5, 0.2)
    network.turn(7)
    weigh = partial(rarity_weights, rate=0.2, power=0.5, limit=5.0)
    monkeypatch.setattr(imitation, "FORESIGHT", 0.9**5.5)
    refresh(kept, kinds, MODEL, 0.5, 0.9, 0.2, weigh)
    counted = np.bincount(rare.true_kinds(buffer)[1], minlength=rare.KINDS) / buffer.dones.sum()
    worth = set(kept.worth.tolist())
    for steps in kept.episodes():
        images = kept.observations[torch.from_numpy(steps)]
        rewards = kept.rewards[steps].astype(np.float64)
        memory = torch.zeros(rare.SIZE)
        rarely = []
        for t, position in enumerate(steps):
            mine = kept.memories[kept.memory_of[position]]
            assert torch.allclose(mine, memory, atol=1e-5), t
            if rewards[t] > 0.5 and t < len(steps) - 1:
                before, after = network.encode(images[t : t + 2])
                memory = (after - before) / (after - before).norm()
                kind = int(images[t + 1, 0])
                rewards[t] *= weigh(counted[kind])
                rarely += [t] if counted[kind] < 0.2 else []
        np.testing.assert_allclose(kept.returns[torch.from_numpy(steps)], discounted_returns(rewards, 0.9), rtol=1e-5)
        soon = [any(0 <= u - t <= 5 for u in rarely) for t in range(len(steps))]
        assert [int(p) in worth for p in steps] == soon and any(soon)


@pytest.mark.parametrize("last", [True, False])
def test_set_memories_are_those_that_acting_would_have_had(last: bool) -> None:
    kinds, buffer, network = learned()
    model = replace(MODEL, hidden_size=rare.SIZE, memory=last, set_memory=True)
    kept = kept_of(buffer, memory_size=model.memory_size)
    keep_rare(kept, kinds, buffer, 0.5, 0.2)
    refresh(kept, kinds, model, 0.5, 0.9, 0.2)
    counts = []
    for steps in kept.episodes():
        phi = network.encode(kept.observations[torch.from_numpy(steps)])
        memory = torch.zeros(1, model.memory_size)
        for t, position in enumerate(steps):
            torch.testing.assert_close(kept.memories[kept.memory_of[position]], memory[0])
            reward = torch.tensor([float(kept.rewards[position])])
            happened = phi[t : t + 1], phi[t + 1 : t + 2], reward, torch.tensor([False]), 0.5
            if t < len(steps) - 1:
                memory = next_memories(memory, *happened, last=last, every=True)
        counts.append(int((kept.rewards[steps[:-1]] > 0.5).sum()))
    assert len(set(counts)) > 1 < max(counts), "episodes of different numbers of unlocks"


def test_what_is_rare_no_more_is_not_imitated() -> None:
    kinds, buffer, _ = learned()
    kept = kept_of(buffer)
    keep_rare(kept, kinds, buffer, 0.5, 0.2)
    refresh(kept, kinds, MODEL, 0.5, 0.9, 0.01)
    assert len(kept) > 3 and not len(kept.worth)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_states_of_kept_steps_are_those_of_a_run_over_the_episode(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "STEPS_AT_ONCE", 4)
    network = make_network(replace(MODEL, core=core, core_size=6))
    assert network.core is not None
    kept = KeptEpisodes(40, IMAGE, MODEL.hidden_size, torch.device("cpu"), state_size=network.state_size)
    g = torch.Generator().manual_seed(0)
    for length in (9, 14, 12, 11):  # around the end of the ring
        images = torch.randint(0, 256, (length, *IMAGE), dtype=torch.uint8, generator=g)
        kept.add(images, torch.zeros(length, dtype=torch.int64), np.zeros(length, np.float32))
    beginnings = [steps[: 5 + 3 * i] for i, steps in enumerate(kept.episodes())]
    recompute_states(kept, network, beginnings)
    with torch.no_grad():
        for steps in beginnings:
            state = torch.zeros(1, network.state_size)
            for step in steps:
                assert torch.allclose(kept.states[step], state[0], atol=1e-5)
                _, state = network.core.step(network.encode(kept.observations[step][None]), state)


@pytest.mark.parametrize("memory", [True, False])
def test_the_policy_is_drawn_to_what_went_better(memory: bool) -> None:
    model = MODEL if memory else ModelConfig(channels=(4, 6, 6), dense_size=12, hidden_size=10, memory=False)
    config = DistillConfig(
        objectives=("imitation",), num_epochs=2, batch_size=16, learning_rate=1e-2, imitation_coef=10.0
    )
    network = make_network(model)
    size = model.hidden_size if memory else 0
    buffer = make_buffer(*script(EPISODES), memory=size)
    kept = KeptEpisodes(64, IMAGE, size, torch.device("cpu"))
    g = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (20, *IMAGE), dtype=torch.uint8, generator=g)
    actions = torch.randint(0, ACTIONS, (20,), generator=g)
    kept.add(images, actions, np.zeros(20, np.float32))
    returns = np.full(64, -1e3, np.float32)
    returns[:10] = 100.0  # the rest went worse than expected
    kept.remember(returns, np.zeros(64, np.int64), torch.zeros(0, size), np.arange(20))
    distiller = make_distiller(network, buffer, config, kept=kept)
    episodes = [episode for episode in buffer.trajectories(0.15) if len(episode.unlocks)]

    def chosen() -> torch.Tensor:
        with torch.no_grad():
            logits, _ = network.heads(network.encode(images), kept.memories[:1].expand(20, -1) if memory else None)
            return log_probability(logits, actions)

    before = chosen()
    report = distiller.run_on(episodes, np.random.default_rng(0), torch.Generator())
    assert report.updates == {"imitation": 2 * config.imitation_updates}
    assert (chosen()[:10] - before[:10]).mean() > 0.1
    assert 0.3 < report.statistics["imitation_share"] < 0.7 and report.statistics["imitation_policy_reg"] > 0


def test_no_update_without_rare_episodes() -> None:
    config = DistillConfig(objectives=("imitation",))
    buffer = make_buffer(*script(EPISODES))
    kept = KeptEpisodes(64, IMAGE, MODEL.hidden_size, torch.device("cpu"))
    distiller = make_distiller(make_network(), buffer, config, kept=kept)
    objective = distiller.objectives["imitation"]
    assert isinstance(objective, SelfImitation)
    assert not list(objective.updates([Trajectory(np.arange(5), np.array([1]))], np.random.default_rng(0)))
    kept.worth = np.arange(3)
    assert not list(objective.updates([], np.random.default_rng(0)))
    assert not statistics(distiller, "imitation")
