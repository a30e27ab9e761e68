"""A recurrent core in rollouts and updates, against a twin that walks through episodes one step at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from achieve.algo.collect import Collector
from achieve.algo.learner import PPOLearner
from achieve.config import ModelConfig, PPOConfig
from achieve.data.buffer import RolloutBuffer
from tests.algo.recording import snapshot
from tests.algo.test_collect import script
from tests.helpers.envs import ScriptedEnv
from tests.helpers.setup import IMAGE, MODEL, literal_agent, make_buffer, make_network, perturb
from tests.oracles import network as literal
from tests.oracles import ppo
from tests.oracles.adam import Adam
from tests.oracles.distill import Agent

GRU = replace(MODEL, core="gru", core_size=7)
LSTM = replace(
    MODEL, core="lstm", core_size=7, core_place="alone", core_heads="policy", value_hidden=4, memory=False,
    normalize_value=False,
)  # fmt: skip


class Play:
    """Rollouts of scripted episodes; the weights change after each, as in training."""

    length, rollouts, envs = 6, 4, 3

    def __init__(self, model: ModelConfig, *, rollouts_per_phase: int = 4, change: float = 0.1) -> None:
        rewards, self.dones = script()
        self.network = make_network(model)
        size = model.hidden_size if model.memory else 0
        self.buffer = RolloutBuffer(
            rollouts_per_phase, self.length, self.envs, IMAGE, size, torch.device("cpu"),
            state_size=self.network.state_size,
        )  # fmt: skip
        for name in ("memory", "states", "log_probs", "values"):
            setattr(self.buffer, name, getattr(self.buffer, name).to(torch.get_default_dtype()))
        self.collector = Collector(self.network, ScriptedEnv(rewards, self.dones), self.buffer, 0.15, cuda_graphs=False)
        self.agents: list[Agent] = []
        self.rows: list[dict[str, Tensor]] = []
        generator = torch.Generator().manual_seed(0)
        self.collector.start()
        for rollout in range(self.rollouts):
            if self.buffer.full:
                self.buffer.clear()
            self.agents.append(literal_agent(self.network))
            self.collector.collect(generator)
            part = slice(self.buffer.filled - self.length, self.buffer.filled + 1)
            names = ("observations", "memory", "states", "actions", "log_probs", "values")
            self.rows.append({name: getattr(self.buffer, name)[part].clone() for name in names})
            if rollout + 1 < self.rollouts:
                torch.manual_seed(100 + rollout)
                perturb(self.network, change)

    def walk(self, agents: list[Agent]) -> list[dict[str, Tensor]]:
        """States, log-probabilities and values of whole episodes, each step with the agent of its rollout."""
        state = torch.zeros(self.envs, self.network.state_size, dtype=torch.float64)
        found = []
        for rollout, (agent, rows) in enumerate(zip(agents, self.rows, strict=True)):
            table: dict[str, list[Tensor]] = {"states": [], "log_probs": [], "values": []}
            for t in range(self.length + 1):
                tick = rollout * self.length + t
                if t and self.dones[tick - 1].any():
                    state = state * torch.from_numpy(~self.dones[tick - 1])[:, None]
                memory = rows["memory"][t] if rows["memory"].shape[2] else None
                with torch.no_grad():
                    latent = literal.phi(agent.params, rows["observations"][t])
                    output, after = literal.core(agent.params, latent, state)
                    logits, values = literal.heads(agent.params, latent, memory, output)
                chosen = ppo.log_softmax(logits).gather(1, rows["actions"][t][:, None])[:, 0]
                for name, value in (
                    ("states", state), ("log_probs", chosen), ("values", agent.normalizer.denormalize(values)),
                ):  # fmt: skip
                    table[name].append(value)
                if t < self.length:
                    state = after  # the next rollout takes the last observation in once more
            found.append({name: torch.stack(rows) for name, rows in table.items()})
        return found


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("rollouts_per_phase", [1, 2, 4])
@pytest.mark.parametrize("model", [GRU, LSTM], ids=["gru", "lstm"])
def test_states_log_probabilities_and_values_along_whole_episodes(model: ModelConfig, rollouts_per_phase: int) -> None:
    play = Play(model, rollouts_per_phase=rollouts_per_phase)
    for rows, expected in zip(play.rows, play.walk(play.agents), strict=True):
        for name, values in expected.items():
            torch.testing.assert_close(rows[name], values, atol=1e-10, rtol=0, msg=name)
    assert not play.rows[0]["states"][0].any() and play.rows[0]["states"][1].any(), "empty at the start of an episode"
    assert not play.rows[1]["states"][0, 1].any(), "also where it is the first of a rollout"
    assert play.rows[1]["states"][0, 0].any(), "and carried over where it is not"
    torch.testing.assert_close(play.rows[0]["states"][-1], play.rows[1]["states"][0], atol=0, rtol=0)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("model", [GRU, LSTM], ids=["gru", "lstm"])
@pytest.mark.parametrize("last_end", [None, 23])
def test_states_are_computed_anew_with_other_weights(model: ModelConfig, last_end: int | None) -> None:
    """As if the weights there are now had played the episodes in progress from their beginnings."""
    play = Play(model)
    if last_end is not None:
        play.dones[last_end, 1] = play.buffer.dones[last_end, 1] = True
    before = play.collector.state.clone()
    torch.manual_seed(7)
    perturb(play.network, 0.1)
    play.collector.refresh_states()
    expected = play.walk([literal_agent(play.network)] * play.rollouts)[-1]["states"][-1]
    torch.testing.assert_close(play.collector.state, expected, atol=1e-10, rtol=0)
    assert (play.collector.state != before).any(1).all()
    assert (last_end is None) == bool(play.collector.state[1].any())


@pytest.mark.usefixtures("in_float64")
def test_an_episode_older_than_the_buffer_goes_on_from_its_stored_state() -> None:
    play = Play(GRU, rollouts_per_phase=1, change=0.0)
    assert not play.dones[:, 0].any(), "the first environment's only episode began three rollouts ago"
    before = play.collector.state.clone()
    play.collector.refresh_states()
    torch.testing.assert_close(play.collector.state, before, atol=1e-10, rtol=0)


LENGTH, ENVS, ROLLOUTS = 12, 2, 2
CONFIG = PPOConfig(rollout_length=LENGTH, num_minibatches=2, num_epochs=2, chunk_length=4)
CASES = {
    "GRU": (CONFIG, GRU),
    "LSTM for the policy, advantages of a minibatch, another epsilon": (
        replace(CONFIG, advantage_norm="minibatch", adam_eps=1e-5, ent_coef=0.0),
        LSTM,
    ),
    "burn-in": (replace(CONFIG, burn_in=3), GRU),
    "a burn-in longer than most of what is there": (replace(CONFIG, burn_in=11), GRU),
    "one chunk per environment": (replace(CONFIG, chunk_length=12), GRU),
    "single steps": (replace(CONFIG, chunk_length=1), GRU),
    "one environment's rollout in a minibatch each": (replace(CONFIG, chunk_length=6, num_minibatches=4), GRU),
}


class Phase:
    """An update on the newest rollout, with the minibatches it drew."""

    def __init__(self, config: PPOConfig, model: ModelConfig) -> None:
        self.config = config
        self.network = make_network(model)
        rng = np.random.default_rng(0)
        shape = (LENGTH * ROLLOUTS, ENVS)
        self.buffer = make_buffer(
            rng.choice([0.0, 0.1, -0.1, 1.0], shape).astype(np.float32),
            rng.random(shape) < 0.15,
            memory=model.hidden_size if model.memory else 0,
            rollouts=ROLLOUTS,
            state_size=self.network.state_size,
        )
        self.first = LENGTH
        self.agent = literal_agent(self.network)
        self.batches: list[Tensor] = []
        learner = PPOLearner(self.network, self.buffer, config, cuda_graphs=False)
        inner = learner._minibatch

        def spy(index: Tensor) -> None:
            self.batches.append(index.clone().view(config.chunk_length, -1))
            inner(index)

        learner._minibatch = spy  # type: ignore[method-assign]
        self.start = snapshot(self.network)
        learner.update(np.random.default_rng(0))

    def begins(self, row: int, env: int) -> bool:
        return row == self.first or bool(self.buffer.dones[row - 1, env])

    def outputs(self, chunk: list[int]) -> tuple[Tensor, Tensor, int]:
        """Logits and values of a chunk, step by step, and how often it began again."""
        buffer, params = self.buffer, self.agent.params
        stored = buffer.flat("states")
        found, restarts = [], 0
        for t, place in enumerate(chunk):
            row, env = divmod(place, ENVS)
            if self.begins(row, env):
                state = stored[place : place + 1]
                restarts += bool(t)
            elif t == 0:
                state = self.burnt_in(row, env)
            latent = literal.phi(params, buffer.flat("observations")[place : place + 1])
            output, state = literal.core(params, latent, state)
            memory = buffer.flat("memory")[place : place + 1] if buffer.memory.shape[2] else None
            found.append(literal.heads(params, latent, memory, output))
        logits, values = zip(*found, strict=True)
        return torch.cat(logits), torch.cat(values), restarts

    def burnt_in(self, row: int, env: int) -> Tensor:
        """The state before a step, from as many steps before it as the config wants and the rollout has."""
        now = max(row - self.config.burn_in, self.first)
        state = self.buffer.states[now, env][None]
        with torch.no_grad():
            for earlier in range(now, row):
                if self.begins(earlier, env):
                    state = self.buffer.states[earlier, env][None]
                latent = literal.phi(self.agent.params, self.buffer.observations[earlier, env][None])
                _, state = literal.core(self.agent.params, latent, state)
        return state

    def targets(self) -> tuple[Tensor, Tensor]:
        now = slice(self.first, self.first + LENGTH)
        advantages, returns = ppo.gae(
            self.buffer.rewards[now],
            self.buffer.values[self.first : self.first + LENGTH + 1],
            self.buffer.dones[now],
            self.config.gamma,
            self.config.gae_lambda,
        )
        if self.config.advantage_norm == "rollout":
            advantages = ppo.normalized(advantages)
        return torch.from_numpy(advantages).flatten(), torch.from_numpy(returns).flatten()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("case", CASES)
def test_the_weights_after_a_phase(case: str) -> None:
    """Chunks unrolled one step at a time: the same losses, gradients and steps of Adam, in float64."""
    config, model = CASES[case]
    phase = Phase(config, model)
    agent, buffer = phase.agent, phase.buffer
    advantages, returns = phase.targets()
    optimizer = Adam(config.learning_rate, config.max_grad_norm, config.adam_eps)
    restarts = 0
    for batch in phase.batches:
        here = batch - phase.first * ENVS
        agent.normalizer.update(returns[here])
        gained = advantages[here]
        if config.advantage_norm == "minibatch":
            gained = torch.from_numpy(ppo.normalized(gained.numpy()))
        loss = torch.zeros((), dtype=torch.float64)
        for column in range(batch.shape[1]):
            logits, values, again = phase.outputs(batch[:, column].tolist())
            restarts += again
            for t, place in enumerate(batch[:, column]):
                log_probs = ppo.log_softmax(logits[t])
                ratio = (log_probs[buffer.flat("actions")[place]] - buffer.flat("log_probs")[place]).exp()
                advantage = gained[t, column]
                clipped = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
                error = values[t] - agent.normalizer.normalize(returns[here[t, column]])
                entropy = -(log_probs.exp() * log_probs).sum()
                loss = loss - torch.min(ratio * advantage, clipped * advantage)
                loss = loss + config.vf_coef * error**2 - config.ent_coef * entropy
        optimizer.step(agent.params, agent.gradients(loss / batch.numel()))
    assert restarts > 0 or config.chunk_length == 1, "some chunks pass the beginning of an episode or of the rollout"
    for name, end in snapshot(phase.network).items():
        if not name.startswith(("film", "predictor")):
            assert (end - phase.start[name]).norm() > 1e-5, f"{name} has not moved"
        torch.testing.assert_close(end, agent.params[name].detach(), atol=1e-9, rtol=0, msg=name)


def test_an_epoch_has_every_step_of_the_newest_rollout_once() -> None:
    phase = Phase(CONFIG, GRU)
    assert [batch.shape for batch in phase.batches] == [(4, 3)] * 4
    for epoch in (phase.batches[:2], phase.batches[2:]):
        steps = torch.cat([batch.flatten() for batch in epoch])
        assert sorted(steps.tolist()) == list(range(LENGTH * ENVS, 2 * LENGTH * ENVS))
