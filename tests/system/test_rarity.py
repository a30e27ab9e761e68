"""Runs whose rare unlocks count more and are imitated: stopped, resumed, and refused where nothing can be rare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.config import from_dict, to_dict
from achieve.errors import CheckpointError, ConfigError
from achieve.presets import get_preset
from achieve.run.checkpoint import Checkpoint, load_checkpoint
from achieve.run.segments import RowFiles
from achieve.train import PPOTrainer
from tests.system.conftest import Command
from tests.system.runs import assert_same_run, rows
from tests.system.test_vectors import corridor
from tests.trust.stopping import SimulatedCrashError, stopping

# All kinds count as rare, and what is kept fills its room more than once.
RARE: dict[str, Any] = {
    "rarity_power": 0.5, "rarity_rate": 1.0, "rarity_from": 512,
    "objectives": ["matching", "prediction", "imitation"],
    "imitation_rate": 1.0, "imitation_steps": 300, "imitation_updates": 2,
}  # fmt: skip


def config(**changes: Any) -> Any:
    """A run with short episodes, so that there are kinds after two phases."""
    return corridor(3072, checkpoint_seconds=0.0, distill=RARE, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption. Not to be written to."""
    folder = tmp_path_factory.mktemp("rarity") / "whole"
    train(config(), folder, quiet=True)
    return folder


def test_a_run_resumes_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    """Crashes within rollouts, updates and just before phases; weights, examples and kept episodes are saved too."""
    for stop in (90, 130, 95, 8):
        with pytest.raises(SimulatedCrashError), stopping(stop, crash=True):
            train(config(), tmp_path / "parts", quiet=True)
    train(config(), tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", whole)


def test_weights_begin_when_asked_for_and_are_logged(whole: Path) -> None:
    metrics = rows(whole / "metrics.jsonl")
    ppo = [row for row in metrics if row["kind"] == "ppo" and "unlock_weight" in row]
    # The first rollout that counts begins at step 512, and a row is written at its end.
    assert all(row["unlock_weight"] == 1 for row in ppo if row["step"] <= 512)
    later = [row for row in ppo if row["step"] > 1024]
    assert later and any(row["unlock_weight"] > 1 and row["rare_unlocks"] > 0 for row in later)
    phases = [row for row in metrics if row["kind"] == "distill"]
    assert len(phases) == 3 and phases[-1]["kinds"] >= 2 and phases[-1]["examples"] >= 3 * phases[-1]["kinds"]


def test_rare_episodes_are_kept_and_imitated(whole: Path) -> None:
    phases = [row for row in rows(whole / "metrics.jsonl") if row["kind"] == "distill"]
    assert phases[0]["imitation_updates"] == 0 == phases[0]["imitated_steps"] and phases[0]["kept_episodes"] > 0
    assert phases[-1]["imitation_updates"] == 2 and phases[-1]["imitated_steps"] > 0
    assert {"imitation_gain", "imitation_share", "imitation_log_prob"} <= phases[-1].keys()
    saved = load_checkpoint(whole / "checkpoint")
    assert saved is not None
    assert saved.state["kept"]["next"] > RARE["imitation_steps"] >= sum(saved.state["kept"]["lengths"])
    names = {f"rows-{first}-{last}.safetensors" for first, last in saved.state["kept_files"]}
    assert {path.name for path in (whole / "checkpoint" / "kept").iterdir()} == names


def test_with_a_recurrent_core(tmp_path: Path) -> None:
    changes = {"model": {"core": "lstm", "core_size": 8}, "ppo": {"chunk_length": 16}}
    train(config(**changes), tmp_path / "run", quiet=True)
    phases = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "distill"]
    assert phases[-1]["imitation_updates"] == 2 and phases[-1]["imitated_steps"] > 0


def test_a_checkpoint_whose_kept_episodes_cannot_be(whole: Path, tmp_path: Path) -> None:
    for what, change in (
        ("kept has", {"kept": {"next": 2, "lengths": [4]}}),
        ("its files", {"kept_files": [[0, 1]]}),
        ("kept.lengths", {"kept": {"next": 9, "lengths": [0]}}),
    ):
        saved = load_checkpoint(whole / "checkpoint")
        assert saved is not None
        trainer = PPOTrainer(config())
        with pytest.raises(CheckpointError, match=what):
            trainer.load(Checkpoint(saved.tensors, {**saved.state, **change}), RowFiles(whole / "checkpoint"))
        trainer.close()


def test_logged_rewards_are_the_true_ones(whole: Path) -> None:
    for row in rows(whole / "episodes.jsonl"):
        unlocked = sum(value > 0 for name, value in row.items() if name.startswith("achievement_"))
        assert row["reward"] == unlocked


def test_what_is_saved_without_it_is_what_it_always_was(whole: Path, tmp_path: Path) -> None:
    train(corridor(), tmp_path / "plain", quiet=True)
    saved, plain = (load_checkpoint(path / "checkpoint") for path in (whole, tmp_path / "plain"))
    assert saved is not None and plain is not None
    more = {name for name in saved.tensors.keys() - plain.tensors.keys()}
    assert more and all(name.startswith(("kinds/", "imitation/")) or name == "buffer/reward_weights" for name in more)
    assert saved.state.keys() - plain.state.keys() == {"kept", "kept_files"}
    metrics = rows(tmp_path / "plain" / "metrics.jsonl")
    assert not any({"unlock_weight", "kinds"} & row.keys() for row in metrics)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"distill": {"enabled": False, "rarity_power": 0.5}}, "distill.rarity_power needs distillation"),
        ({"distill": {"rarity_power": 2.0}}, "distill.rarity_power is 2.0; it must lie between 0 and 1"),
        ({"distill": {"rarity_power": 0.5, "rarity_limit": 0.5}}, "distill.rarity_limit is 0.5; it must be 1 or more"),
        ({"distill": {"rarity_power": 0.5, "rarity_rate": 0.0}}, "distill.rarity_rate is 0.0; it must be above 0"),
        ({"distill": {"imitation_coef": 0.2}}, "imitation_coef has no effect without the objective `imitation`"),
        ({"distill": {"rarity_power": 0.0, "rarity_limit": 3.0}}, "rarity_limit has no effect without weights"),
    ],
)
def test_settings_that_do_not_work_together(settings: dict[str, Any], sentence: str) -> None:
    values = to_dict(get_preset("ad"))
    if not settings["distill"].get("enabled", True):
        values["model"]["memory"] = False
    for table, changes in settings.items():
        values[table] |= changes
    with pytest.raises(ConfigError) as refused:
        from_dict(values)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--distill.rarity-power", "0.5"], "distill.rarity_power"),
        (["--distill.objectives", "matching", "imitation"], "the objective `imitation`"),
    ],
)
def test_qrdqn_has_neither(flags: list[str], what: str, achieve: Command) -> None:
    code, _, err = achieve("train", "--preset", "qrdqn-ad", *flags)
    assert code == 2 and f"{what} has no effect on QR-DQN; use a preset of PPO, such as ad" in err


def test_a_config_from_before_is_the_same_as_ever() -> None:
    values = to_dict(get_preset("ad"))
    for name in [name for name in values["distill"] if name.startswith(("rarity", "imitation"))]:
        del values["distill"][name]
    assert from_dict(values) == get_preset("ad")
