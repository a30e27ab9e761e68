"""Environments changed by options that the config records: trained, stopped, continued, evaluated, shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.config import EnvConfig, TrainConfig, from_dict, to_dict
from achieve.envs.crafter.vec import CrafterVecEnv
from achieve.errors import RunFolderError
from achieve.scoring.episodes import load_episodes
from tests.system.conftest import Command
from tests.system.runs import assert_same_run, checkpoint_file, read
from tests.system.tiny import tiny_config

RULES = "rules=tests.envs.rules:RULES"


def train_and_stop(config: TrainConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, environment: type[Any]) -> None:
    """Trains until after the first checkpoint, as if the process were killed there."""
    plain, taken = environment.step, 0

    def step(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > 300 and checkpoint_file(folder).exists():
            raise KeyboardInterrupt
        return plain(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(environment, "step", step)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder, quiet=True)
    assert not (folder / "summary.json").exists()


def test_changed_rules_are_an_option_of_crafter(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(env={"options": [RULES]})
    train(config, tmp_path / "whole", quiet=True)
    train_and_stop(config, tmp_path / "cut", monkeypatch, CrafterVecEnv)
    with pytest.raises(RunFolderError, match="options"):
        train(tiny_config(env={"options": [RULES.replace("RULES", "OTHERS")]}), tmp_path / "cut", quiet=True)
    train(config, tmp_path / "cut", quiet=True)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    saved = read(tmp_path / "whole" / "config.json")["config"]["env"]
    assert saved["options"] == [RULES] and saved["unlock_threshold"] == 0.15
    assert "score" in read(tmp_path / "whole" / "summary.json")
    code, out, err = achieve("eval", tmp_path / "whole", "--episodes", 1, "--trust")
    assert (code, err) == (0, "") and "collect wood" in out.lower()
    code, out, err = achieve("video", tmp_path / "whole", "--out", tmp_path / "v.gif", "--max-steps", 4, "--trust")
    assert (code, err) == (0, "") and "v.gif: 5 frames" in out


def test_a_run_whose_rules_were_edited_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tests.envs.rules as module

    config = tiny_config(env={"options": [RULES]})
    train_and_stop(config, tmp_path / "run", monkeypatch, CrafterVecEnv)
    before = checkpoint_file(tmp_path / "run").read_bytes()
    monkeypatch.setattr(module, "RULES", module.OTHERS)
    with pytest.raises(RunFolderError, match=r"do not fit this run .*rules 'ripe at once"):
        train(config, tmp_path / "run", quiet=True)
    assert checkpoint_file(tmp_path / "run").read_bytes() == before


def test_images_by_option_are_trained_on_continued_evaluated_and_shown(
    achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from achieve.envs.gym.vec import GymVecEnv

    options = ["image_key=image", "grayscale=true", "resize=16", "frame_stack=3", "max_achievements=1"]
    name = "tests.envs.gym.test_preprocessing:Bundle"
    config = tiny_config(env={"name": name, "options": options, "unlock_threshold": 0.5})
    train_and_stop(config, tmp_path / "run", monkeypatch, GymVecEnv)
    train(config, tmp_path / "run", quiet=True)
    assert read(tmp_path / "run" / "config.json")["config"]["env"]["options"] == options
    assert load_episodes(tmp_path / "run").names == ("achievement_1",)
    code, out, err = achieve("eval", tmp_path / "run", "--episodes", 2, "--trust")
    assert (code, err) == (0, "") and out.count("Achievement 1") == 1 and "Achievement 2" not in out
    code, out, err = achieve("video", tmp_path / "run", "--out", tmp_path / "v.gif", "--max-steps", 4, "--trust")
    assert (code, err) == (0, "") and "v.gif: 5 frames" in out


def test_the_threshold_is_the_environments_own_unless_it_is_given() -> None:
    for name, own in (("crafter", 0.15), ("minigrid", 0.5), ("heist", 1.0), ("module:make", 0.0)):
        assert EnvConfig(name=name).threshold == own
        config = TrainConfig(env=EnvConfig(name=name))
        assert to_dict(config)["env"]["unlock_threshold"] == own and from_dict(to_dict(config)) == config
    assert EnvConfig(name="heist", unlock_threshold=3.0).threshold == 3.0
    given = TrainConfig(env=EnvConfig(unlock_threshold=0.3))
    assert from_dict(to_dict(given)) == given
