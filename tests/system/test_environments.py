"""`--env` and the presets of other environments: what is resolved, where the run goes, and by what it is measured."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from achieve.config import TrainConfig, from_dict, to_dict, with_env
from achieve.envs import ENVIRONMENTS, find_env_spec, make_vec
from achieve.errors import ConfigError
from achieve.presets import PRESETS, get_preset
from achieve.train import default_folder
from tests.conftest import Optional
from tests.system.conftest import Command
from tests.system.processes import ROOT
from tests.system.runs import read, rows


@pytest.fixture
def resolved(achieve: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `achieve train FLAGS` up to the training itself; the config and the folder it would have."""

    class Stop(Exception):
        pass

    def run(*flags: object) -> tuple[TrainConfig, Path]:
        caught: list[tuple[TrainConfig, Path]] = []

        def stop(config: TrainConfig, folder: Path, **_: Any) -> None:
            caught.append((config, folder))
            raise Stop

        monkeypatch.setattr(sys.modules["achieve.train"], "train", stop)
        with pytest.raises(Stop):
            achieve("train", *flags)
        return caught[0]

    return run


@pytest.mark.parametrize("flags", [("--env", "minigrid"), ("--env=minigrid",), ("--env.name", "minigrid")])
def test_environment_brings_its_threshold(resolved: Any, flags: tuple[str, ...]) -> None:
    config, folder = resolved("--preset", "quick", *flags)
    assert (config.env.name, config.env.threshold) == ("minigrid", 0.5)
    assert config.env.num_envs == get_preset("quick").env.num_envs, "the rest is the preset's"
    assert folder == Path("runs/quick-minigrid-s0")


def test_threshold_that_is_given_stays(resolved: Any) -> None:
    config, _ = resolved("--env", "heist", "--env.unlock-threshold", "5")
    assert (config.env.name, config.env.threshold) == ("heist", 5.0)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("own_env:make_env", "runs/ad-own_env-make_env-s3"),
        ("pkg/Own-v0", "runs/ad-pkg-Own-v0-s3"),
        ("CartPole-v1", "runs/ad-CartPole-v1-s3"),
    ],
)
def test_gymnasium_names(resolved: Any, name: str, folder: str) -> None:
    config, where = resolved("--env", name, "--seed", "3")
    assert (config.env.name, config.env.threshold) == (name, 0.0)
    assert config.env.arguments == {"unlock_threshold": 0.0}
    assert where == Path(folder)


def test_saved_config_keeps_its_threshold_unless_the_environment_changes(resolved: Any, settings: Path) -> None:
    assert resolved("--config", settings, "--env.unlock-threshold", "0.4", "--env", "crafter")[0].env == (
        resolved("--config", settings, "--env.unlock-threshold", "0.4")[0].env
    )
    config, folder = resolved("--config", settings, "--env", "minigrid")
    assert config.env.threshold == 0.5 and folder == Path("runs/tiny-minigrid-s0")


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_its_environments_threshold_and_the_short_folder(name: str) -> None:
    config = get_preset(name)
    spec = ENVIRONMENTS[config.env.name]
    assert config.env.threshold == spec.unlock_threshold
    assert config.score_steps == spec.published_steps or name in ("quick", "quick-max")
    assert default_folder(config) == Path(f"runs/{name}-s0")


@pytest.mark.parametrize(("environment", "steps"), [("minigrid", 1_024_000), ("heist", 25_000_000)])
def test_presets_of_an_environment_differ_in_the_method_alone(environment: str, steps: int) -> None:
    ad, ppo = get_preset(f"{environment}-ad"), get_preset(f"{environment}-ppo")
    assert ad.env == ppo.env and ad.ppo == ppo.ppo and ad.env.name == environment
    assert ad.model == get_preset("ad").model and ppo.model == get_preset("ppo").model
    assert ppo.distill == get_preset("ppo").distill
    # What is Heist's own in distillation has its reasons in docs/environments.md.
    own = {
        "value_reg": "frozen", "episodes_per_update": 32, "batch_size": 1024, "learning_rate": 1e-4,
        "num_epochs": 4, "sources_per_update": 32, "shared_targets": True,
    }  # fmt: skip
    published = get_preset("ad").distill
    assert ad.distill == (replace(published, **own) if environment == "heist" else published)
    assert ad.total_steps == ppo.total_steps == steps


def test_options_are_read_kept_and_left_behind(resolved: Any) -> None:
    flags = ("--env", "minigrid", "--env.options", "depth=3", "tree=[null, 0]", "mood=grim")
    config, _ = resolved(*flags)
    assert config.env.arguments == {"depth": 3, "tree": [None, 0], "mood": "grim"}
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    python = ("tree=(None, 0)", "keep_keys=False", "mood=None", "name_of=open(1)")
    found = resolved("--env", "minigrid", "--env.options", *python)[0].env.arguments
    assert found == {"tree": (None, 0), "keep_keys": False, "mood": None, "name_of": "open(1)"}
    assert with_env(config, "heist").env.arguments == {}, "they were the other environment's"
    assert resolved("--env", "a:b", "--env.options", "max_achievements=3")[0].env.arguments == {
        "unlock_threshold": 0.0,
        "max_achievements": 3,
    }


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--env.options", "depth"], "env.options has 'depth'; give name=value, such as depth=3"),
        (["--env.options", "3=depth"], "env.options has '3=depth'; give name=value"),
        (["--env.options", "depht=3"], "the environment minigrid has no option 'depht'; did you mean depth?"),
        (["--env.options", "colour=3"], "the environment minigrid has no option 'colour'; it has: depth, branching"),
        (["--env.options", "seed=3"], "env.options has 'seed=3', which is no option; a flag of its own"),
        (["--env.options", "depth=0"], "depth"),
    ],
)
def test_options_that_cannot_work(
    achieve: Command, settings: Path, tmp_path: Path, optional: Optional, flags: list[str], sentence: str
) -> None:
    optional.module("minigrid")
    code, _, err = achieve("train", "--config", settings, "--env", "minigrid", "--folder", tmp_path / "run", *flags)
    assert code == 2 and sentence in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


def test_options_reach_the_environment(achieve: Command, settings: Path, tmp_path: Path, optional: Optional) -> None:
    optional.module("minigrid")
    folder = tmp_path / "run"
    command = ("train", "--config", settings, "--env", "minigrid", "--folder", folder, "--no-report", "--quiet")
    small = ("--env.options", "depth=2", "room_size=4", "max_steps=20", "--total-steps", 256)
    assert achieve(*command, *small)[0] == 0
    assert len(read(folder / "summary.json")["success_rates"]) == 4, "two doors, a key, the goal"
    assert {row["length"] for row in rows(folder / "episodes.jsonl")} == {20}
    code, out, err = achieve("video", folder, "--out", tmp_path / "v.gif")
    assert (code, err) == (0, "") and "v.gif: 21 frames" in out


def test_example_of_an_own_env(achieve: Command, settings: Path, tmp_path: Path) -> None:
    """The command that examples/own_env.py names, with a smaller agent and fewer steps."""
    command = re.search(r"achieve (train .+)", (ROOT / "examples" / "own_env.py").read_text())
    assert command is not None
    words = command.group(1).split()
    environment = words[words.index("--env") + 1]
    folder = tmp_path / "run"
    flags = ("--folder", folder, "--no-report", "--quiet", "--total-steps", 2048)
    code, out, err = achieve("train", "--config", settings, "--env", environment, *flags)
    assert (code, err) == (0, "")
    assert set(read(folder / "summary.json")["success_rates"]) == {"take_key", "open_door", "reach_goal"}
    assert all(name in out for name in ("Take key", "Open door", "Reach goal"))


def test_what_environments_are_measured_by() -> None:
    assert [ENVIRONMENTS[name].measure for name in ("crafter", "minigrid", "heist")] == ["score", "score", "gem"]
    assert find_env_spec("pkg:make").measure == "score"


def test_an_environment_in_place_of_a_name() -> None:
    with pytest.raises(TypeError, match="make_vec makes environments by name, such as 'crafter' or 'my_module:MyEnv'"):
        make_vec(gymnasium.Env)  # type: ignore[arg-type]


def test_unknown_environment() -> None:
    with pytest.raises(ConfigError, match="there is no environment named 'nethack'; known are: crafter, minigrid"):
        with_env(TrainConfig(), "nethack")
