"""Small environments to be solved: QR-DQN by looking at pictures, and PPO by remembering what it saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from achieve.agent import load_agent
from achieve.analysis.evaluate import evaluate, evaluate_random
from achieve.config import DistillConfig, EnvConfig, ModelConfig, PPOConfig, QRDQNConfig, TrainConfig
from achieve.envs import ENVIRONMENTS, EnvSpec
from achieve.train import train
from examples.memory_env import DELAY
from tests.algo.chain import DOORS
from tests.algo.remembering import Briefly
from tests.helpers.shapes import shapes_unchecked_here  # noqa: F401

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


def remember(core: str, env: str, delay: int, steps: int, folder: Path) -> float:
    """Train to answer which colour was shown so many steps ago; returns the share of right answers afterwards."""
    recurrent = core != "none"
    config = TrainConfig(
        preset="memory",
        total_steps=steps,
        score_steps=steps,
        device="cpu",
        env=EnvConfig(name=env, num_envs=16, threads=1),
        model=ModelConfig(
            encoder="mlp", dense_size=16, hidden_size=16, memory=False, core=core,  # type: ignore[arg-type]
            **({"core_size": 16} if recurrent else {}),
        ),
        ppo=PPOConfig(
            rollout_length=4 * (delay + 1), num_minibatches=4, num_epochs=4, gamma=0.99, gae_lambda=0.95,
            learning_rate=5e-3, **({"chunk_length": delay + 1} if recurrent else {}),
        ),
        distill=DistillConfig(enabled=False),
    )  # fmt: skip
    train(config, folder, quiet=True)
    return float(evaluate(load_agent(folder, trust=True), 96, greedy=True).reward.mean())


BRIEFLY = "tests.algo.remembering:Briefly"


def test_remembers_for_a_while(tmp_path: Path) -> None:
    assert remember("gru", BRIEFLY, Briefly.delay, 20_000, tmp_path / "gru") > 0.95
    assert remember("none", BRIEFLY, Briefly.delay, 6_000, tmp_path / "none") < 0.6, "without a core, it can only guess"


@pytest.mark.long
def test_an_lstm_remembers_too(tmp_path: Path) -> None:
    """Not for as long: the forget gate that PyTorch begins with lets go of half in every step."""
    assert remember("lstm", BRIEFLY, Briefly.delay, 30_000, tmp_path / "lstm") > 0.95


@pytest.mark.long
@pytest.mark.parametrize("core", ["gru", "none"])
def test_remembers_for_thirty_steps(core: str, tmp_path: Path) -> None:
    right = remember(core, "examples.memory_env:RememberColour", DELAY, 120_000, tmp_path / "run")
    assert right > 0.95 if core == "gru" else right < 0.6
