"""Runs whose rare unlocks count more and are imitated: stopped, resumed, and refused where nothing can be rare."""

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

# All kinds count as rare, and more is kept than there is room for.
RARE: dict[str, Any] = {"rarity_power": 0.5, "rarity_rate": 1.0, "imitation_coef": 0.05, "imitation_capacity": 48}


def config(**changes: Any) -> Any:
    """A run with short episodes, so that there are kinds after two phases."""
    return corridor(4096, checkpoint_seconds=0.0, ppo=RARE, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption. Not to be written to."""
    folder = tmp_path_factory.mktemp("rare") / "whole"
    train(config(), folder, quiet=True)
    return folder


def test_a_run_resumes_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    """Crashes within rollouts, updates and just before phases; kinds, weights and kept unlocks are saved too."""
    for stop in (90, 130, 95, 121, 8):
        with pytest.raises(SimulatedCrashError), stopping(stop, crash=True):
            train(config(), tmp_path / "parts", quiet=True)
    train(config(), tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "parts", whole)


def test_what_is_logged(whole: Path) -> None:
    metrics = rows(whole / "metrics.jsonl")
    ppo = [row for row in metrics if row["kind"] == "ppo"]
    phases = [row for row in metrics if row["kind"] == "distill"]
    assert phases[-1]["kinds"] >= 2 and phases[-1]["examples"] >= 3 * phases[-1]["kinds"]
    first = phases[0]["step"]
    assert all(row["unlock_weight"] == 1 for row in ppo if row["step"] <= first and "unlock_weight" in row)
    assert any(row.get("unlock_weight", 0) > 1 for row in ppo if row["step"] > first)
    assert ppo[-1]["kept_unlocks"] == RARE["imitation_capacity"]
    imitating = [row for row in ppo if "imitation_log_prob" in row]
    assert imitating and all(row["kept_unlocks"] == 48 and row["imitation_log_prob"] < 0 for row in imitating)


def test_logged_rewards_are_the_true_ones(whole: Path) -> None:
    for row in rows(whole / "episodes.jsonl"):
        unlocked = sum(value > 0 for name, value in row.items() if name.startswith("achievement_"))
        assert row["reward"] == unlocked


def test_what_is_saved_without_it_is_what_it_always_was(whole: Path, tmp_path: Path) -> None:
    train(corridor(), tmp_path / "plain", quiet=True)
    saved, plain = (load_checkpoint(path / "checkpoint") for path in (whole, tmp_path / "plain"))
    assert saved is not None and plain is not None
    more = saved.tensors.keys() - plain.tensors.keys()
    others = {"buffer/reward_weights", "learner/imitation_meters"}
    assert more > others and all(name.startswith("rare/") for name in more - others)
    assert saved.state.keys() == plain.state.keys()
    metrics = rows(tmp_path / "plain" / "metrics.jsonl")
    assert not any({"unlock_weight", "imitation_log_prob", "kept_unlocks", "kinds"} & row.keys() for row in metrics)


def test_with_a_recurrent_core_rare_unlocks_may_count_more(tmp_path: Path) -> None:
    ppo = {"rarity_power": 0.5, "rarity_rate": 1.0, "chunk_length": 16}
    train(corridor(2048, ppo=ppo, model={"core": "lstm", "core_size": 8}), tmp_path / "run", quiet=True)
    phases = [row for row in rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "distill"]
    assert phases[-1]["kinds"] >= 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"distill": {"enabled": False}, "ppo": {"rarity_power": 0.5}}, "ppo.rarity_power needs distillation"),
        ({"distill": {"enabled": False}, "ppo": {"imitation_coef": 0.1}}, "ppo.imitation_coef needs distillation"),
        ({"ppo": {"rarity_power": 2.0}}, "ppo.rarity_power is 2.0; it must lie between 0 and 1"),
        ({"ppo": {"rarity_power": 0.5, "rarity_limit": 0.5}}, "ppo.rarity_limit is 0.5; it must be 1 or more"),
        ({"ppo": {"rarity_power": 0.5, "rarity_rate": 0.0}}, "ppo.rarity_rate is 0.0; it must be above 0"),
        ({"ppo": {"rarity_limit": 3.0}}, "ppo.rarity_limit has no effect without ppo.rarity_power"),
        ({"ppo": {"imitation_reach": 2}}, "ppo.imitation_reach has no effect without ppo.imitation_coef"),
        ({"ppo": {"imitation_coef": 0.1}, "model": {"core": "gru"}}, "does not work with a recurrent core"),
    ],
)
def test_settings_that_do_not_work_together(settings: dict[str, Any], sentence: str) -> None:
    values = to_dict(get_preset("ad"))
    if not settings.get("distill", {}).get("enabled", True):
        values["model"]["memory"] = False
    for table, changes in settings.items():
        values[table] |= changes
    with pytest.raises(ConfigError) as refused:
        from_dict(values)
    assert sentence in str(refused.value)


def test_a_trainer_of_the_users_own_is_checked_too() -> None:
    values = to_dict(get_preset("ad"))
    values["trainer"] = "examples.own_trainer:KLPenaltyTrainer"
    values["ppo"]["imitation_coef"] = 0.05
    assert from_dict(values).ppo.imitation_coef == 0.05
    values["model"]["core"] = "gru"
    with pytest.raises(ConfigError, match="does not work with a recurrent core"):
        from_dict(values)


def test_qrdqn_has_neither(achieve: Command) -> None:
    code, _, err = achieve("train", "--preset", "qrdqn-ad", "--ppo.rarity-power", "0.5")
    assert code == 2 and "ppo.rarity_power has no effect on QR-DQN" in err


def test_too_much_to_keep_is_refused_before_the_run(tmp_path: Path) -> None:
    settings = {"imitation_coef": 0.05, "imitation_capacity": 10**12}
    with pytest.raises(ConfigError, match=r"reduce ppo\.imitation-capacity"):
        train(corridor(ppo=settings), tmp_path / "run", quiet=True)


def test_a_config_from_before_is_the_same_as_ever() -> None:
    values = to_dict(get_preset("ad"))
    for name in [name for name in values["ppo"] if name.startswith(("rarity", "imitation"))]:
        del values["ppo"][name]
    assert from_dict(values) == get_preset("ad")
