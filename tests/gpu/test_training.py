"""A tiny run on the GPU from end to end, stopped and continued."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from achieve.algo.distill import Distiller
from achieve.config import (
    DistillConfig,
    EnvConfig,
    ModelConfig,
    PPOConfig,
    TrainConfig,
)
from achieve.run.weights import load_weights
from achieve.train import train

pytestmark = pytest.mark.gpu

STEPS = 6 * 8 * 128
CONFIG = TrainConfig(
    preset="tiny",
    total_steps=STEPS,
    score_steps=STEPS,
    device="cuda",
    env=EnvConfig(num_envs=8),
    model=ModelConfig(channels=(16, 32, 32), dense_size=64, hidden_size=64),
    ppo=PPOConfig(rollout_length=128, num_minibatches=4),
    distill=DistillConfig(rollouts_per_phase=3, num_epochs=2),
)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(folder: Path, summary: dict[str, Any]) -> None:
    assert summary["steps"] == STEPS
    tensors, _ = load_weights(folder / "weights.safetensors")
    assert all(torch.isfinite(t).all() for t in tensors.values())
    metrics = rows(folder / "metrics.jsonl")
    assert [r["step"] for r in metrics if r["kind"] == "ppo"] == list(
        range(STEPS // 6, STEPS + 1, STEPS // 6)
    )
    phases = [r for r in metrics if r["kind"] == "distill"]
    assert len(phases) == 2
    assert all(r["prediction_updates"] > 0 for r in phases)
    episodes = rows(folder / "episodes.jsonl")
    steps = [r["step"] for r in episodes]
    assert episodes and steps == sorted(steps)


@pytest.mark.parametrize(
    ("precision", "compiled", "arithmetic"),
    [
        ("auto", True, "fp16, fused"),
        ("bf16", True, "bf16, fused"),
        ("fp32", False, "fp32"),
        ("tf32", True, "tf32"),
    ],
)
def test_arithmetics(tmp_path: Path, precision: str, compiled: bool, arithmetic: str) -> None:
    config = replace(CONFIG, precision=precision, compile=compiled)  # type: ignore[arg-type]
    summary = train(config, tmp_path / "run", quiet=True)
    check(tmp_path / "run", summary)
    assert summary["arithmetic"] == arithmetic


@pytest.mark.parametrize("compiled", [True, False])
def test_options_of_ppo(tmp_path: Path, compiled: bool) -> None:
    """Settings that change along the run, several horizons, epochs that end early."""
    ppo = replace(
        CONFIG.ppo, gamma_end=0.985, gae_lambda_end=0.8, horizon_from=0, horizon_to=STEPS, ent_coef_end=0.003,
        learning_rate_end=1e-4, anneal_from=0, anneal_to=STEPS, target_kl=0.02, num_epochs=6,
        value_gammas=(0.9, 0.95, 0.98, 0.995),
    )  # fmt: skip
    summary = train(replace(CONFIG, ppo=ppo, compile=compiled), tmp_path / "run", quiet=True)
    check(tmp_path / "run", summary)
    metrics = rows(tmp_path / "run" / "metrics.jsonl")
    updates = [row for row in metrics if row["kind"] == "ppo"]
    assert updates[-1]["gamma"] == 0.985 and updates[-1]["learning_rate"] == 1e-4
    assert all(1 <= row["epochs"] <= 6 and row["horizon_loss"] < 10 for row in updates)
    assert all(row["prediction_horizon_reg"] > 0 for row in metrics if row["kind"] == "distill")


@pytest.mark.parametrize("core", ["none", "gru"])
def test_set_memory(tmp_path: Path, core: Literal["none", "gru"]) -> None:
    """With a core, a step of a rollout is not the acting kernels' but ends in one."""
    model = replace(CONFIG.model, set_memory=True, core=core, **({} if core == "none" else {"core_size": 32}))
    summary = train(replace(CONFIG, model=model), tmp_path / "run", quiet=True)
    check(tmp_path / "run", summary)
    assert summary["arithmetic"] == "fp16, fused"


def test_ppo_alone(tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        model=replace(CONFIG.model, memory=False),
        distill=DistillConfig(enabled=False),
    )
    summary = train(config, tmp_path / "run", quiet=True)
    assert summary["steps"] == STEPS


@pytest.mark.parametrize("compiled", [True, False])
def test_rare_unlocks_count_more_and_are_imitated(tmp_path: Path, compiled: bool) -> None:
    distill = replace(
        CONFIG.distill, rarity_power=0.5, rarity_rate=1.0, rarity_from=0, imitation_rate=1.0, imitation_steps=2048,
        objectives=("matching", "prediction", "imitation"),
    )  # fmt: skip
    summary = train(replace(CONFIG, distill=distill, compile=compiled), tmp_path / "run", quiet=True)
    check(tmp_path / "run", summary)
    metrics = rows(tmp_path / "run" / "metrics.jsonl")
    phases = [row for row in metrics if row["kind"] == "distill"]
    assert phases[-1]["kinds"] >= 2 and phases[-1]["kept_episodes"] > 0 and phases[-1]["imitation_updates"] > 0
    assert any(row.get("unlock_weight", 0) > 1 for row in metrics)


@pytest.mark.parametrize("compiled", [True, False])
def test_all_options_together(tmp_path: Path, compiled: bool) -> None:
    ppo = replace(
        CONFIG.ppo, gamma_end=0.985, gae_lambda_end=0.8, horizon_from=0, horizon_to=STEPS, learning_rate_end=1e-4,
        anneal_from=0, anneal_to=STEPS, target_kl=0.05, value_gammas=(0.9, 0.95, 0.98, 0.995), reflection="samples",
        frontier_entropy=4.0,
    )  # fmt: skip
    distill = replace(
        CONFIG.distill, rarity_power=0.5, rarity_rate=1.0, rarity_from=0, imitation_rate=1.0, imitation_steps=2048,
        objectives=("matching", "prediction", "imitation"),
    )  # fmt: skip
    model = replace(CONFIG.model, set_memory=True)
    config = replace(CONFIG, model=model, ppo=ppo, distill=distill, compile=compiled)
    check(tmp_path / "run", train(config, tmp_path / "run", quiet=True))
    metrics = rows(tmp_path / "run" / "metrics.jsonl")
    assert all(row["reflected"] == 0.5 and row["horizon_loss"] < 10 for row in metrics if row["kind"] == "ppo")
    assert any(row["beyond"] > 0 and row["entropy_beyond"] > 0 for row in metrics if row["kind"] == "ppo")
    last = [row for row in metrics if row["kind"] == "distill"][-1]
    assert last["imitation_updates"] > 0 and last["imitation_horizon_reg"] > 0


def test_stopped_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second phase: the run goes on from its start, and nothing is doubled."""
    phases = 0
    run = Distiller.run

    def interrupted(self: Distiller, *args: Any) -> Any:
        nonlocal phases
        phases += 1
        if phases == 2:
            raise KeyboardInterrupt
        return run(self, *args)

    folder = tmp_path / "run"
    monkeypatch.setattr(Distiller, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, folder, quiet=True)
    assert not (folder / "summary.json").exists()
    before = [r for r in rows(folder / "episodes.jsonl") if r["step"] <= STEPS // 2]
    summary = train(CONFIG, folder, quiet=True)
    assert phases == 3, "the first phase is not repeated"
    check(folder, summary)
    after = [r for r in rows(folder / "episodes.jsonl") if r["step"] <= STEPS // 2]
    assert before and after == before
