"""QR-DQN must solve a small environment: looking at pictures, and a reward four right actions away."""

from __future__ import annotations

from pathlib import Path

import pytest

from achieve.agent import load_agent
from achieve.analysis.evaluate import evaluate, evaluate_random
from achieve.config import DistillConfig, EnvConfig, ModelConfig, QRDQNConfig, TrainConfig
from achieve.envs import ENVIRONMENTS, EnvSpec
from achieve.train import train
from tests.algo.chain import DOORS

CONFIG = TrainConfig(
    preset="chain",
    trainer="qrdqn",
    total_steps=2400,
    score_steps=2400,
    device="cpu",
    env=EnvConfig(name="chain", num_envs=4, threads=1),
    model=ModelConfig(
        encoder="strided", channels=(4, 4, 4), dense_size=16, hidden_size=16, memory=False, normalize_value=False
    ),
    qrdqn=QRDQNConfig(
        gamma=0.9, batch_size=32, target_update=200, learning_rate=3e-3, num_quantiles=8, replay_size=3000,
        learning_starts=400, epsilon_end=0.05, epsilon_steps=1200,
    ),
    distill=DistillConfig(enabled=False),
)  # fmt: skip


def test_solves_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "chain", EnvSpec("chain", "", "tests.algo.chain", "ChainEnv", 0.5))
    train(CONFIG, tmp_path / "run", quiet=True)
    chance = evaluate_random(CONFIG, 64)
    assert chance.reward.mean() < 0.3
    agent = load_agent(tmp_path / "run")
    played = evaluate(agent, 32, greedy=True)
    assert played.reward.min() == 1.0 and played.length.max() == DOORS, "by the shortest way"
