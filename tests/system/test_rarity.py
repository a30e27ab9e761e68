"""Runs whose rare unlocks count more: stopped, resumed, and refused where nothing can be rare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.config import from_dict, to_dict
from achieve.errors import ConfigError
from achieve.presets import get_preset
from achieve.run.checkpoint import load_checkpoint
from tests.system.conftest import Command
from tests.system.runs import assert_same_run, rows
from tests.system.test_vectors import corridor
from tests.trust.stopping import SimulatedCrashError, stopping

RARE: dict[str, Any] = {"rarity_power": 0.5, "rarity_rate": 1.0, "rarity_from": 512}


def config(**changes: Any) -> Any:
    """Short episodes, so that there are kinds after two phases; all of them count as rare."""
    changes["distill"] = {**RARE, **changes.get("distill", {})}
    return corridor(2048, checkpoint_seconds=0.0, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption. Not to be written to."""
    folder = tmp_path_factory.mktemp("rarity") / "whole"
    train(config(), folder, quiet=True)
    return folder


def test_a_run_resumes_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    """Crashes within rollouts, updates and just before phases; weights and examples are part of what is saved."""
    for stop in (90, 130, 75, 8):
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
    assert len(phases) == 2 and phases[-1]["kinds"] >= 2 and phases[-1]["examples"] >= 3 * phases[-1]["kinds"]


def test_logged_rewards_are_the_true_ones(whole: Path) -> None:
    for row in rows(whole / "episodes.jsonl"):
        unlocked = sum(value > 0 for name, value in row.items() if name.startswith("achievement_"))
        assert row["reward"] == unlocked


def test_what_is_saved_without_it_is_what_it_always_was(whole: Path, tmp_path: Path) -> None:
    train(corridor(), tmp_path / "plain", quiet=True)
    saved, plain = (load_checkpoint(path / "checkpoint") for path in (whole, tmp_path / "plain"))
    assert saved is not None and plain is not None
    more = {name for name in saved.tensors.keys() - plain.tensors.keys()}
    assert more and all(name.startswith("kinds/") or name == "buffer/reward_weights" for name in more)
    metrics = rows(tmp_path / "plain" / "metrics.jsonl")
    assert not any({"unlock_weight", "kinds"} & row.keys() for row in metrics)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"distill": {"enabled": False, "rarity_power": 0.5}}, "distill.rarity_power needs distillation"),
        ({"distill": {"rarity_power": 2.0}}, "distill.rarity_power is 2.0; it must lie between 0 and 1"),
        ({"distill": {"rarity_power": 0.5, "rarity_limit": 0.5}}, "distill.rarity_limit is 0.5; it must be 1 or more"),
        ({"distill": {"rarity_power": 0.5, "rarity_rate": 0.0}}, "distill.rarity_rate is 0.0; it must be above 0"),
        ({"distill": {"rarity_power": 0.0, "rarity_limit": 3.0}}, "rarity_limit has no effect without weights"),
    ],
)
def test_settings_that_do_not_work_together(settings: dict[str, Any], sentence: str) -> None:
    values = to_dict(get_preset("ad"))
    if not settings["distill"].get("enabled", True):
        values["model"]["memory"] = False
    values["distill"] |= settings["distill"]
    with pytest.raises(ConfigError) as refused:
        from_dict(values)
    assert sentence in str(refused.value)


def test_qrdqn_has_no_such_weights(achieve: Command) -> None:
    code, _, err = achieve("train", "--preset", "qrdqn-ad", "--distill.rarity-power", "0.5")
    assert code == 2 and "distill.rarity_power has no effect on QR-DQN; use a preset of PPO, such as ad" in err


def test_a_config_from_before_is_the_same_as_ever() -> None:
    values = to_dict(get_preset("ad"))
    for name in [name for name in values["distill"] if name.startswith("rarity")]:
        del values["distill"][name]
    assert from_dict(values) == get_preset("ad")
