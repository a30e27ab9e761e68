"""Configs of earlier versions are read as if written today."""

import json
from pathlib import Path

import pytest

from achieve.config import from_dict, to_dict
from achieve.errors import ConfigError
from achieve.migration import REMOVED, migrate
from achieve.presets import PRESETS

RESULTS = sorted(Path("results").glob("*-s*/config.json"))


def test_the_table_of_ppo_had_another_name() -> None:
    old = {"seed": 1, "algo": {"gamma": 0.9}}
    assert migrate(old) == {"seed": 1, "ppo": {"gamma": 0.9}}
    assert from_dict(old).ppo.gamma == 0.9


def test_the_trainer_had_another_name() -> None:
    old = {"learner": "qrdqn", "model": {"normalize_value": False}}
    assert from_dict(old).trainer == "qrdqn"
    assert to_dict(from_dict(old))["trainer"] == "qrdqn"


def test_settings_of_qrdqn_that_are_no_more() -> None:
    defaults = REMOVED["qrdqn"]
    old = {"learner": "qrdqn", "model": {"normalize_value": False}, "qrdqn": {"kappa": 0.2, **defaults}}
    assert migrate(old)["qrdqn"] == {"kappa": 0.2}
    assert from_dict(old).qrdqn.kappa == 0.2
    for name in defaults:
        other = {**old, "qrdqn": {name: 3}}
        with pytest.raises(ConfigError, match=f"qrdqn.{name} is 3, and this version has no such setting any more"):
            from_dict(other)


def test_how_often_a_run_was_saved_is_forgotten() -> None:
    """It was counted in rollouts once, and decides nothing of what is computed."""
    assert migrate({"checkpoint_every": 3, "seed": 1}) == {"seed": 1}
    assert from_dict({"checkpoint_every": 3}) == from_dict({})


def test_what_is_of_today_stays_as_it_is() -> None:
    today = to_dict(from_dict({}))
    assert migrate(today) == today


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_every_result_is_read(path: Path) -> None:
    saved = json.loads(path.read_text())["config"]
    config = from_dict(saved)
    assert (config.preset, config.seed) == (saved["preset"], saved["seed"])
    # Of an agent of another library, only the environment is in our terms.
    table = {"qrdqn": "qrdqn", "external": "env"}.get(config.trainer, "ppo")
    assert to_dict(config)[table].items() >= migrate(saved)[table].items()


@pytest.mark.parametrize(
    ("old", "objectives"),
    [
        ({"matching": True, "order": "matching-first"}, ("matching", "prediction")),
        ({"matching": True, "order": "prediction-first"}, ("prediction", "matching")),
        ({"matching": False, "order": "matching-first"}, ("prediction",)),
    ],
)
def test_objectives_were_two_settings(old: dict, objectives: tuple[str, ...]) -> None:
    assert from_dict({"distill": old}).distill.objectives == objectives


def test_without_distillation_the_objectives_are_the_presets() -> None:
    old = {"preset": "ppo", "model": {"memory": False}, "distill": {"enabled": False, "matching": False}}
    assert from_dict(old).distill == PRESETS["ppo"].distill
