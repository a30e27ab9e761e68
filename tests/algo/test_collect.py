"""Rollouts: what is stored, and the memory along whole episodes, against a walk through time."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from achieve.algo import ppo
from achieve.algo.collect import NONE_YET, Collector
from achieve.data.buffer import RolloutBuffer
from achieve.nn.model import ActorCritic
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import ACTIONS, IMAGE, MODEL, literal_agent, make_network, perturb
from tests.oracles import episodes
from tests.oracles import network as literal
from tests.oracles.distill import Agent

LENGTH, ENVS, ROLLOUTS = 6, 3, 4


def script() -> tuple[np.ndarray, np.ndarray]:
    """Unlocks and ends at every awkward place: a rollout's first and last step, both at once, two in a row."""
    rewards = np.zeros((LENGTH * ROLLOUTS, ENVS))
    dones = np.zeros((LENGTH * ROLLOUTS, ENVS), dtype=bool)
    rewards[[0, 5, 6, 12, 17, 23], 0] = (
        1.0  # last step of rollouts 0, 2 and 3, first of 1 and 2; no end at all
    )
    rewards[[2, 3, 11, 14], 1] = [0.9, 1.0, 1.0, 0.2]
    rewards[[4, 8, 9], 1] = [0.1, 0.1, -0.3]
    dones[[5, 11, 15], 1] = True  # ends on a rollout's last step; unlock and end at once
    rewards[[1, 7], 2] = 1.0
    dones[[0, 2, 3, 20], 2] = True
    return rewards, dones


class Play:
    """Collects rollouts with an update of the weights after each, and keeps the weights each was collected with."""

    def __init__(self, *, memory: bool = True, phases: int = 1) -> None:
        self.rewards, self.dones = script()
        self.scripted = ScriptedEnv(self.rewards, self.dones)
        self.network = make_network(replace(MODEL, memory=memory))
        size = MODEL.hidden_size if memory else 0
        self.buffer = RolloutBuffer(
            ROLLOUTS // phases, LENGTH, ENVS, IMAGE, size, torch.device("cpu")
        )
        self.collector = Collector(self.network, self.scripted, self.buffer, 0.15, cuda_graphs=False)
        self.agents: list[Agent] = []
        self.rows: list[dict[str, torch.Tensor]] = []
        self.collector.start()
        generator = torch.Generator().manual_seed(0)
        for rollout in range(ROLLOUTS):
            self.agents.append(literal_agent(self.network))
            self.collector.collect(generator)
            first = self.buffer.filled - LENGTH
            part = slice(first, first + LENGTH + 1)
            names = ("observations", "memory", "actions", "log_probs", "values")
            self.rows.append({n: getattr(self.buffer, n)[part].clone() for n in names})
            torch.manual_seed(100 + rollout)
            perturb(self.network, 0.1)
            self.network.normalizer.update(torch.randn(10) + rollout)
            if self.buffer.full:
                self.buffer.clear()

    def expected_memory(self) -> list[torch.Tensor]:
        """Per rollout [T + 1, N, D], from latents computed with the weights in force then."""
        carried = torch.zeros(ENVS, MODEL.hidden_size, dtype=torch.float64)
        result = []
        for rollout, (agent, rows) in enumerate(zip(self.agents, self.rows, strict=True)):
            with torch.no_grad():
                latents = [literal.phi(agent.params, images) for images in rows["observations"]]
            now = slice(rollout * LENGTH, (rollout + 1) * LENGTH)
            columns = []
            for env in range(ENVS):
                mine = torch.stack([latent[env] for latent in latents])
                columns.append(
                    torch.stack(
                        episodes.memories(
                            mine[:-1],
                            mine[1:],
                            self.rewards[now, env].tolist(),
                            self.dones[now, env].tolist(),
                            carried[env],
                        )
                    )
                )
            result.append(torch.stack(columns, 1))
            carried = result[-1][-1]
        return result


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda n: f"{n} phases")
def play(request: pytest.FixtureRequest) -> Play:
    return Play(phases=request.param)


def test_memory_along_episodes_and_rollouts(play: Play) -> None:
    for rollout, expected in enumerate(play.expected_memory()):
        stored = play.rows[rollout]["memory"].double()
        torch.testing.assert_close(stored, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(play.collector.memory.double(), expected[-1], atol=1e-5, rtol=1e-5)


def test_memory_at_the_places_that_matter(play: Play) -> None:
    memory = [rows["memory"] for rows in play.rows]
    assert not memory[0][0].any(), "empty at the start"
    assert memory[0][2, 2].any(), "an unlock is remembered from the next step on"
    assert not memory[0][3:, 2].any(), "and does not outlive its episode"
    assert memory[0][6, 0].any(), "an unlock at the last step is there for the bootstrap"
    assert torch.equal(memory[0][6], memory[1][0]), (
        "and carries over as it was, whatever the new weights say"
    )
    assert not memory[1][6, 1].any(), "an end clears the memory even at an unlock"
    assert memory[0][3, 1].any() and memory[0][4, 1].any()
    assert not torch.equal(memory[0][3, 1], memory[0][4, 1]), "the later of two unlocks counts"
    assert torch.equal(memory[0][4, 1], memory[0][5, 1]), "regained health is no unlock"


def test_values_and_probabilities_use_the_memory_of_their_step(play: Play) -> None:
    for agent, rows in zip(play.agents, play.rows, strict=True):
        for t in range(LENGTH + 1):
            with torch.no_grad():
                latent = literal.phi(agent.params, rows["observations"][t])
                logits, values = literal.heads(agent.params, latent, rows["memory"][t])
                values = agent.normalizer.denormalize(values)
            torch.testing.assert_close(rows["values"][t].double(), values, atol=1e-4, rtol=1e-4)
            expected = ppo.log_probability(logits, rows["actions"][t])
            torch.testing.assert_close(
                rows["log_probs"][t].double(), expected, atol=1e-4, rtol=1e-4
            )


def test_the_environment_gets_the_stored_actions(play: Play) -> None:
    stored = torch.cat([rows["actions"][:-1] for rows in play.rows]).numpy()
    np.testing.assert_array_equal(np.stack(play.scripted.actions), stored)


def test_observations_line_up_between_rollouts(play: Play) -> None:
    for first, second in zip(play.rows, play.rows[1:], strict=False):
        assert torch.equal(first["observations"][-1], second["observations"][0])


def test_rewards_and_ends_are_kept() -> None:
    play = Play()
    np.testing.assert_array_equal(play.buffer.rewards, play.rewards.astype(np.float32))
    np.testing.assert_array_equal(play.buffer.dones, play.dones)  # time limits cut like any end


def test_whether_a_phase_starts_afresh_follows_from_the_last_row() -> None:
    play = Play(phases=2)
    _, dones = script()
    assert play.buffer.fresh.tolist() == dones[-1].tolist()
    halfway = Play(phases=4)
    assert halfway.buffer.filled == 0
    first = RolloutBuffer(1, LENGTH, ENVS, IMAGE, 0, torch.device("cpu"))
    assert first.fresh.all(), "a run's first episodes are whole"
    first.dones[-1] = [True, False, True]
    first.filled = LENGTH
    first.clear()
    assert first.fresh.tolist() == [True, False, True]


def test_without_memory_nothing_is_stored() -> None:
    play = Play(memory=False)
    assert play.buffer.memory.shape[2] == 0
    agent, rows = play.agents[0], play.rows[0]
    with torch.no_grad():
        _, values = literal.heads(
            agent.params, literal.phi(agent.params, rows["observations"][2]), None
        )
    expected = agent.normalizer.denormalize(values)
    torch.testing.assert_close(rows["values"][2].double(), expected, atol=1e-4, rtol=1e-4)


def test_actions_are_sampled_from_the_policy() -> None:
    """Frequencies over many environments in one state: a multinomial draw, not the argmax."""
    envs = 4000
    rewards, dones = np.zeros((1, envs)), np.zeros((1, envs), dtype=bool)

    class Still(ScriptedEnv):
        def reset(self, *, out: np.ndarray) -> None:
            out[:] = 100

    network = make_network(replace(MODEL, memory=False, encoder="strided"))
    buffer = RolloutBuffer(1, 1, envs, IMAGE, 0, torch.device("cpu"))
    collector = Collector(network, Still(rewards, dones), buffer, 0.15, cuda_graphs=False)
    collector.start()
    collector.collect(torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits, _ = network.heads(network.encode(collector_image()), None)
    expected = logits.softmax(1)[0]
    counts = torch.bincount(buffer.actions[0], minlength=ACTIONS).double()
    deviation = (envs * expected * (1 - expected)).sqrt()
    assert ((counts - envs * expected).abs() < 5 * deviation).all()
    assert (counts > 0).all()


def collector_image() -> torch.Tensor:
    return torch.full((1, *IMAGE), 100, dtype=torch.uint8)


def test_collecting_follows_from_the_generator() -> None:
    first, second = Play(), Play()
    for mine, theirs in zip(first.rows, second.rows, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_stop_is_noticed_between_steps() -> None:
    rewards, dones = script()
    network: ActorCritic = make_network()
    buffer = RolloutBuffer(1, LENGTH, ENVS, IMAGE, MODEL.hidden_size, torch.device("cpu"))
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    scripted = ScriptedEnv(rewards, dones)
    collector = Collector(network, scripted, buffer, 0.15, cuda_graphs=False, safe_point=check)
    collector.start()
    with pytest.raises(KeyboardInterrupt):
        collector.collect(torch.Generator())
    assert len(scripted.actions) == 2


def waiting_collector() -> Collector:
    buffer = RolloutBuffer(1, LENGTH, ENVS, IMAGE, MODEL.hidden_size, torch.device("cpu"))
    collector = Collector(make_network(MODEL), ScriptedEnv(*script()), buffer, 0.15, cuda_graphs=False)
    collector._arriving.fill(NONE_YET)
    return collector


def test_a_step_waits_for_the_action_of_every_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = SimpleNamespace(query=lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: busy)
    collector = waiting_collector()
    waiting = threading.Thread(target=collector._await_actions)
    waiting.start()
    for env in reversed(range(ENVS)):
        waiting.join(0.05)
        assert waiting.is_alive()
        collector._arriving[env] = 2
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_device_that_is_done_without_an_action_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(query=lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: done)
    collector = waiting_collector()
    collector._await_actions()
    assert (collector._arriving == NONE_YET).all()  # which the environments refuse
