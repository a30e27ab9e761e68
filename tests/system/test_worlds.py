"""`--env` and the presets of other worlds: what is resolved, where the run goes, and by what it is measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from achieve.config import PRESETS, TrainConfig, get_preset, with_world
from achieve.envs import WORLDS, find_world
from achieve.run.errors import ConfigError
from achieve.train import default_folder
from tests.system.conftest import Command


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
def test_world_brings_its_threshold(resolved: Any, flags: tuple[str, ...]) -> None:
    config, folder = resolved("--preset", "quick", *flags)
    assert (config.env.name, config.env.unlock_threshold) == ("minigrid", 0.5)
    assert config.env.num_envs == get_preset("quick").env.num_envs, "the rest is the preset's"
    assert folder == Path("runs/quick-minigrid-s0")


def test_threshold_that_is_given_stays(resolved: Any) -> None:
    config, _ = resolved("--env", "heist", "--env.unlock-threshold", "5")
    assert (config.env.name, config.env.unlock_threshold) == ("heist", 5.0)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("own_world:make_env", "runs/ad-own_world-make_env-s3"),
        ("pkg/Own-v0", "runs/ad-pkg-Own-v0-s3"),
        ("CartPole-v1", "runs/ad-CartPole-v1-s3"),
    ],
)
def test_gymnasium_names(resolved: Any, name: str, folder: str) -> None:
    config, where = resolved("--env", name, "--seed", "3")
    assert (config.env.name, config.env.unlock_threshold) == (name, 0.0)
    assert config.env.arguments == {"unlock_threshold": 0.0}
    assert where == Path(folder)


def test_saved_config_keeps_its_threshold_unless_the_world_changes(resolved: Any, settings: Path) -> None:
    assert resolved("--config", settings, "--env.unlock-threshold", "0.4", "--env", "crafter")[0].env == (
        resolved("--config", settings, "--env.unlock-threshold", "0.4")[0].env
    )
    config, folder = resolved("--config", settings, "--env", "minigrid")
    assert config.env.unlock_threshold == 0.5 and folder == Path("runs/tiny-minigrid-s0")


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_its_worlds_threshold_and_the_short_folder(name: str) -> None:
    config = get_preset(name)
    world = WORLDS[config.env.name]
    assert config.env.unlock_threshold == world.unlock_threshold
    assert config.score_steps == world.published_steps or name == "quick"
    assert default_folder(config) == Path(f"runs/{name}-s0")


@pytest.mark.parametrize(("world", "steps"), [("minigrid", 1_024_000), ("heist", 25_000_000)])
def test_presets_of_a_world_differ_in_the_method_alone(world: str, steps: int) -> None:
    ad, ppo = get_preset(f"{world}-ad"), get_preset(f"{world}-ppo")
    assert ad.env == ppo.env and ad.algo == ppo.algo and ad.env.name == world
    assert ad.model == get_preset("ad").model and ppo.model == get_preset("ppo").model
    assert ad.distill == get_preset("ad").distill and ppo.distill == get_preset("ppo").distill
    assert ad.total_steps == ppo.total_steps == steps


def test_what_worlds_are_measured_by() -> None:
    assert [WORLDS[name].measure for name in ("crafter", "minigrid", "heist")] == ["score", "score", "gem"]
    assert find_world("pkg:make").measure == "score"


def test_unknown_world() -> None:
    with pytest.raises(ConfigError, match="there is no world named 'nethack'; known are: crafter, minigrid, heist"):
        with_world(TrainConfig(), "nethack")
