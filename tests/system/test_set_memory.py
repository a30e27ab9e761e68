"""Runs with a set memory: trained, stopped, resumed, played, filmed and exported like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from achieve import load_agent, train
from achieve.agent import Agent, export_agent
from achieve.app.minds import Mind
from achieve.config import from_dict, to_dict
from achieve.errors import ConfigError
from achieve.presets import get_preset
from achieve.run.checkpoint import load_checkpoint
from achieve.train import PPOTrainer
from tests.system.conftest import Command
from tests.system.runs import assert_same_run, rows
from tests.system.test_vectors import CORRIDOR, corridor
from tests.trust.stopping import SimulatedCrashError, stopping

BOTH: dict[str, Any] = {"model": {"set_memory": True}}
KINDS: dict[str, dict[str, Any]] = {
    "both memories": BOTH,
    "without the last achievement": {"model": {"set_memory": True, "memory": False}},
    "plain PPO": {"model": {"set_memory": True, "memory": False}, "distill": {"enabled": False}},
    "a core": {"model": {"set_memory": True, "core": "gru", "core_size": 8}, "ppo": {"chunk_length": 16}},
}

LONG = ("without the last achievement", "a core")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "run"
    train(corridor(**BOTH), folder, quiet=True)
    return folder


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if kind in LONG else []) for kind in KINDS]
)
def test_a_run_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """Crashes within rollouts, updates and just before a phase, after which the memories are computed anew."""
    config = corridor(**KINDS[kind], checkpoint_seconds=0.0)
    train(config, tmp_path / "whole", quiet=True)
    for stop in (37, 60, 20):
        with pytest.raises(SimulatedCrashError), stopping(stop, crash=True):
            train(config, tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_acts_as_its_trainer_does(kind: str, tmp_path: Path) -> None:
    """Memories, values and probabilities through ends of episodes and the seams of rollouts: bit for bit."""
    config = corridor(**KINDS[kind])
    train(config, tmp_path / "run", quiet=True)
    trainer = PPOTrainer(config)
    saved = load_checkpoint(tmp_path / "run" / "checkpoint")
    assert saved is not None
    trainer.load(saved)
    trainer.collector.start()
    buffer = trainer.buffer
    for _ in range(buffer.rows // buffer.length):
        trainer.collector.collect(trainer.generators.actions)
    trainer.close()
    unlocks = (buffer.rewards > config.env.threshold) & ~buffer.dones
    assert buffer.dones.any() and unlocks.sum() > 5
    agent = load_agent(tmp_path / "run", trust=True)
    reward = done = None
    for row in range(buffer.rows):
        agent.act(buffer.observations[row].numpy(), reward, done)
        assert torch.equal(agent._seen_memory(), buffer.memory[row]), f"step {row}"
        assert torch.equal(agent.values, buffer.values[row]), f"step {row}"
        log_probs = agent.logits.log_softmax(1).gather(1, buffer.actions[row][:, None]).squeeze(1)
        assert torch.equal(log_probs, buffer.log_probs[row]), f"step {row}"
        reward, done = buffer.rewards[row], buffer.dones[row]


def test_memories_are_up_to_date_after_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed = []
    before = PPOTrainer.learn

    def learn(self: PPOTrainer, journal: Any) -> None:
        refresh = self.collector.refresh
        monkeypatch.setattr(self.collector, "refresh", lambda: (refresh(), refreshed.append(self.stage)))
        before(self, journal)

    monkeypatch.setattr(PPOTrainer, "learn", learn)
    train(corridor(**BOTH), tmp_path / "run", quiet=True)
    phases = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "distill"]
    assert refreshed == ["distilling"] * len(phases) and phases


@pytest.mark.parametrize("kind", ["both memories", "plain PPO", "a core"])
def test_the_log_tells_how_much_it_is_used(kind: str, tmp_path: Path) -> None:
    """By the logits with and without it; a number added to all of a step's logits is of no account."""
    config = corridor(**KINDS[kind])
    train(config, tmp_path / "run", quiet=True)
    updates = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "ppo"]
    assert all(row["set_memory_logits"] > 0 and 0 < row["set_memory_length"] < 30 for row in updates)
    trainer = PPOTrainer(config)
    trainer.start()
    trainer.collector.collect(trainer.generators.actions)
    buffer, network = trainer.buffer, trainer.network
    with torch.no_grad():
        network.policy.weight.normal_(generator=torch.Generator().manual_seed(0))
        memory = buffer.memory[: buffer.filled].flatten(0, 1)
        phi = network.encode(buffer.observations[: buffer.filled].flatten(0, 1))
        without = memory.clone()
        without[:, -network.latent_size :] = 0
        state = torch.zeros(len(phi), network.state_size)
        moved = network.step(phi, memory, state)[0] - network.step(phi, without, state)[0] + 7
    trainer.close()
    figures = trainer._set_memory_figures()
    assert figures["set_memory_logits"] == pytest.approx(float(moved.std(1, correction=0).mean()), rel=1e-4)
    assert figures["set_memory_length"] == pytest.approx(float((memory - without).norm(dim=1).mean()), rel=1e-4)


def test_the_app_goes_back_and_on_with_it(run: Path) -> None:
    """A thought keeps the set memory, too: what follows it does not depend on what was tried in between."""
    agent = load_agent(run, trust=True)
    assert isinstance(agent, Agent)
    mind = Mind(agent, seed=0)
    seen = np.random.default_rng(0).uniform(-1, 1, (4, 4)).astype(np.float32)
    mind.think(seen[0], None)
    mind.think(seen[1], 1.0)
    kept = mind.think(seen[2], 1.0)
    after = mind.think(seen[3], 1.0)
    state = agent.state()
    assert state.memory is not None and state.set_memory is not None
    assert state.set_memory.any() and not torch.equal(state.set_memory, state.memory)
    mind.return_to(kept)
    assert mind.think(seen[3], 1.0).probabilities == after.probabilities
    mind.return_to(kept)
    assert mind.think(seen[3], 0.0).probabilities != after.probabilities


def test_evaluated_filmed_and_exported(run: Path, achieve: Command, tmp_path: Path) -> None:
    for command in (
        ("eval", run, "--episodes", 4, "--trust"),
        ("video", run, "--out", tmp_path / "v.gif", "--max-steps", 4, "--trust"),
        ("matching", run, "--expert", run, "--episodes", 4, "--trust", "--out", tmp_path / "m.png"),
    ):
        code, _, err = achieve(*command)
        assert (code, err) == (0, ""), f"{command[0]}: {err}"
    export_agent(run, tmp_path / "a.safetensors")
    exported = load_agent(tmp_path / "a.safetensors", env=CORRIDOR)
    assert exported.config.model.set_memory


def test_it_is_off_unless_asked_for() -> None:
    for name in ("ad", "ppo", "quick"):
        config = get_preset(name)
        assert not config.model.set_memory
        saved = to_dict(config)
        del saved["model"]["set_memory"]  # as before there was such a setting
        assert from_dict(saved) == config


def test_qrdqn_refuses_it() -> None:
    with pytest.raises(ConfigError, match="set_memory is for PPO"):
        corridor(trainer="qrdqn", model={"set_memory": True})
