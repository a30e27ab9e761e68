"""The set memory, the sum of all achievements of an episode so far, against a walk through time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo import contrastive
from achieve.algo.collect import Collector
from achieve.algo.contrastive import add_to_set, next_memories, next_memory, next_set_memory
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import LONGEST_SET, SET_SCALE, ActorCritic
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE, MODEL, make_network, perturb
from tests.oracles import network as literal
from tests.oracles.episodes import is_unlock

LENGTH, ROLLOUTS, ENVS = 8, 3, 4
SIZE = MODEL.hidden_size
THRESHOLD = 0.15


def script() -> tuple[np.ndarray, np.ndarray]:
    """An episode that outlives the script, one that ends with it, one that ends at an unlock, and many short ones."""
    rng = np.random.default_rng(0)
    rewards = rng.choice([0.0, 0.1, 1.0], (LENGTH * ROLLOUTS, ENVS), p=[0.5, 0.1, 0.4])
    dones = np.zeros(rewards.shape, dtype=bool)
    dones[-1, 1] = dones[10, 2] = True
    rewards[10, 2] = 1
    dones[3::6, 3] = True
    rewards[22, 3] = 1
    return rewards, dones


class Play:
    """Rollouts with other weights each, and all their observations."""

    def __init__(self, *, last: bool, phases: int = 1) -> None:
        self.rewards, self.dones = script()
        self.network = make_network(replace(MODEL, memory=last, set_memory=True))
        size = self.network.config.memory_size
        self.buffer = RolloutBuffer(ROLLOUTS // phases, LENGTH, ENVS, IMAGE, size, torch.device("cpu"))
        for name in ("memory", "log_probs", "values"):
            setattr(self.buffer, name, getattr(self.buffer, name).double())
        envs = ScriptedEnv(self.rewards, self.dones)
        self.collector = Collector(self.network, envs, self.buffer, THRESHOLD, cuda_graphs=False)
        self.params: list[literal.Params] = []
        self.images: list[Tensor] = []
        self.memory: list[Tensor] = []
        self.collector.start()
        generator = torch.Generator().manual_seed(0)
        for rollout in range(ROLLOUTS):
            self.params.append(literal.parameters(self.network))
            self.collector.collect(generator)
            first = self.buffer.filled - LENGTH
            self.images += list(self.buffer.observations[first : first + LENGTH].clone())
            self.memory += list(self.buffer.memory[first : first + LENGTH].clone())
            if rollout + 1 < ROLLOUTS:
                if self.buffer.full:
                    self.buffer.clear()
                torch.manual_seed(100 + rollout)
                perturb(self.network, 0.1)
        self.images.append(self.collector.observation.clone())

    def expected(self, params: list[literal.Params]) -> list[Tensor]:
        """Memories before each step and after the last [N, M], where each rollout was played with these weights."""
        last, total = torch.zeros(2, ENVS, SIZE, dtype=torch.float64)
        found = []
        for t in range(LENGTH * ROLLOUTS + 1):
            found.append(torch.cat([last, total] if self.network.config.memory else [total], 1))
            if t == LENGTH * ROLLOUTS:
                return found
            last, total = last.clone(), total.clone()
            weights = params[t // LENGTH]
            with torch.no_grad():
                before, after = (literal.phi(weights, self.images[i]) for i in (t, t + 1))
            for env in range(ENVS):
                if is_unlock(self.rewards[t, env]):
                    last[env] = literal.nu(before[env], after[env])
                    total[env] += SET_SCALE * last[env]
                if self.dones[t, env]:
                    last[env] = total[env] = 0
        return found


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("phases", [1, 3])
def test_along_episodes_and_rollouts(last: bool, phases: int) -> None:
    play = Play(last=last, phases=phases)
    expected = play.expected(play.params)
    for stored, wanted in zip(play.memory, expected, strict=False):
        torch.testing.assert_close(stored, wanted, atol=1e-10, rtol=0)
    torch.testing.assert_close(play.collector.memory, expected[-1], atol=1e-10, rtol=0)
    longest = max(float(memory[:, -SIZE:].norm(dim=1).max()) for memory in play.memory)
    assert longest > 1.5 * SET_SCALE, "several achievements are in it"


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("last", [True, False])
def test_after_a_phase_it_is_as_if_the_new_encoder_had_seen_the_episodes(last: bool) -> None:
    play = Play(last=last)
    before = play.collector.memory.clone()
    torch.manual_seed(7)
    perturb(play.network, 0.1)
    play.collector.refresh()
    expected = play.expected([literal.parameters(play.network)] * ROLLOUTS)[-1]
    torch.testing.assert_close(play.collector.memory, expected, atol=1e-10, rtol=0)
    changed = (play.collector.memory != before).any(1)
    assert changed.tolist() == [True, False, True, True] and not play.collector.memory[1].any()


@pytest.mark.usefixtures("in_float64")
def test_an_episode_older_than_the_buffer_goes_on_from_its_stored_memory() -> None:
    play = Play(last=True, phases=3)
    torch.manual_seed(7)
    perturb(play.network, 0.1)
    stored = play.buffer.memory[0].clone()
    play.collector.refresh()
    wanted = play.expected([*play.params[:-1], literal.parameters(play.network)])[-1]
    torch.testing.assert_close(play.collector.memory, wanted, atol=1e-10, rtol=0)
    assert stored[0].any() and not play.dones[:, 0].any()


def test_the_last_achievement_alone_stays_as_it_was_made() -> None:
    rewards, dones = script()
    network = make_network(MODEL)
    buffer = RolloutBuffer(1, LENGTH, ENVS, IMAGE, SIZE, torch.device("cpu"))
    collector = Collector(network, ScriptedEnv(rewards, dones), buffer, THRESHOLD, cuda_graphs=False)
    collector.start()
    collector.collect(torch.Generator().manual_seed(0))
    before = collector.memory.clone()
    perturb(network, 0.1)
    collector.refresh()
    assert torch.equal(collector.memory, before) and before.any()


def test_unlocks_nothing_and_ends() -> None:
    total, latent, phi = torch.randn(3, 4, 6)
    reward, done = torch.tensor([1.0, 0.1, 1.0, 0.0]), torch.tensor([False, False, True, True])
    result = next_set_memory(total, latent, phi, reward, done, THRESHOLD)
    wanted = torch.zeros(4, 6)
    wanted[0] = total[0] + SET_SCALE * literal.nu(latent, phi)[0]
    wanted[1] = total[1]
    torch.testing.assert_close(result, wanted)


def test_both_memories_side_by_side() -> None:
    memory, latent, phi = torch.randn(4, 12), *torch.randn(2, 4, 6)
    given = latent, phi, torch.tensor([1.0, 0.1, 1.0, 0.0]), torch.tensor([False, False, True, True]), THRESHOLD
    last, every = next_memory(memory[:, :6], *given), next_set_memory(memory[:, 6:], *given)
    assert torch.equal(next_memories(memory, *given, last=True, every=True), torch.cat([last, every], 1))
    assert torch.equal(next_memories(memory[:, :6], *given, last=True, every=False), last)
    assert torch.equal(next_memories(memory[:, 6:], *given, last=False, every=True), every)


def test_the_sum_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    nu = torch.nn.functional.normalize(torch.ones(1, 6), dim=1)
    total = torch.zeros(1, 6)
    for _ in range(22):
        total = add_to_set(total, nu)
    torch.testing.assert_close(total, 22 * SET_SCALE * nu)  # all of Crafter's, were they the same, are just added up
    for _ in range(100):
        total = add_to_set(total, nu)
    assert float(total.norm()) == pytest.approx(LONGEST_SET)
    monkeypatch.setattr(contrastive, "LONGEST_SET", 2.0)
    assert float(add_to_set(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])).norm()) == pytest.approx(2)


@pytest.mark.parametrize(("last", "width"), [(True, 3), (False, 2)])
def test_heads_see_it_and_the_prediction_does_not(last: bool, width: int) -> None:
    model = replace(MODEL, memory=last, set_memory=True)
    network = make_network(model)
    assert isinstance(network, ActorCritic) and network.policy.in_features == width * SIZE
    phi, memory = torch.randn(2, SIZE), torch.randn(2, model.memory_size)
    other = memory.clone()
    other[:, -SIZE:] += 1
    actions = torch.tensor([0, 1])
    for found, changed in zip(network.heads(phi, memory), network.heads(phi, other), strict=True):
        assert (found != changed).all()
    assert torch.equal(network.predict(phi, actions, memory), network.predict(phi, actions, other))
