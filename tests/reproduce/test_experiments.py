"""Which runs the experiments need, and that their settings are those `achieve train` would use."""

from __future__ import annotations

from pathlib import Path

import pytest

from achieve.commands import parse
from achieve.commands.train import TrainArguments
from achieve.errors import ConfigError
from achieve.presets import PRESETS
from achieve.reproduce.experiments import (
    ALL,
    EXPERIMENTS,
    Experiment,
    available,
    chosen_experiments,
    needed_runs,
)
from tests.reproduce.parts import TINY, some_runs


def test_every_experiment_of_the_paper_has_a_name_and_presets_that_exist() -> None:
    asked = {"table1", "figure-ppo", "ablation", "small", "probe", "matching", "success-rates"}
    assert asked | {"qrdqn", "heist", "minigrid"} <= set(EXPERIMENTS)
    there, lacking = available(chosen_experiments(ALL))
    assert list(there) == list(EXPERIMENTS) and not lacking


def test_a_preset_this_version_lacks_is_named() -> None:
    presets = {name: config for name, config in PRESETS.items() if name != "ppo-size"}
    there, lacking = available(chosen_experiments(ALL), presets)
    assert lacking == {"figure-ppo": ["ppo-size"]}
    assert "table1" in there


def test_each_run_once_and_the_first_seeds_first() -> None:
    two = {"one": Experiment("", ("ad", "ppo")), "other": Experiment("", ("ppo", "ad-i"))}
    names = [run.name for run in needed_runs(two, 2)]
    assert names == ["ad-s0", "ppo-s0", "ad-i-s0", "ad-s1", "ppo-s1", "ad-i-s1"]


def test_bad_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"unknown experiment 'table2'; there are: table1, .*, all"):
        chosen_experiments("table2")
    for seeds in (0, -1):
        with pytest.raises(ConfigError, match=f"seeds is {seeds}; it must be 1 or more"):
            needed_runs(EXPERIMENTS, seeds)


@pytest.mark.parametrize("flag", ["--seed", "--preset=ad", "--folder", "--env", "--env.name=heist", "--config"])
def test_what_the_plan_decides_cannot_be_given(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag.partition('=')[0]} cannot be given for all runs"):
        some_runs("ad", flags=(flag, "1"))


def test_a_gpu_of_its_own_is_not_for_all_runs() -> None:
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        some_runs("ad", flags=("--device", "cuda:1"))
    with pytest.raises(ConfigError, match="total_steps is 0"):
        some_runs("ad", flags=("--total-steps", "0"))


@pytest.mark.parametrize("flags", [(), tuple(TINY)])
def test_a_runs_command_resolves_to_the_planned_config(flags: tuple[str, ...]) -> None:
    for run in some_runs("ad-i", "minigrid-ppo", seeds=2, flags=flags):
        command, *arguments = run.arguments(Path("there") / run.name)
        assert command == "train"
        parsed: TrainArguments = parse(TrainArguments, "train", arguments, TrainArguments(PRESETS[run.preset]))
        assert parsed.train == run.config
        assert parsed.folder == Path("there") / run.name
        assert parsed.quiet and not parsed.report
