"""Which runs the experiments need, and that their settings are those `achieve train` would use."""

from __future__ import annotations

from pathlib import Path

import pytest

from achieve.commands.reproduce import needed_runs
from achieve.commands.train import parse_train
from achieve.errors import ConfigError
from achieve.presets import PRESETS
from achieve.reproduce.experiments import ALL, EXPERIMENTS, Experiment, chosen_experiments
from tests.reproduce.parts import TINY, some_runs


def test_every_experiment_of_the_paper_has_a_name_and_presets_that_exist() -> None:
    asked = {"table1", "figure-ppo", "ablation", "small", "probe", "matching", "success-rates"}
    assert asked | {"qrdqn", "heist", "minigrid"} <= set(chosen_experiments(ALL))
    assert {preset for experiment in EXPERIMENTS.values() for preset in experiment.presets} <= set(PRESETS)


def test_each_run_once_and_the_first_seeds_first() -> None:
    two = {"one": Experiment("", ("ad", "ppo")), "other": Experiment("", ("ppo", "ad-i"))}
    names = [run.name for run in needed_runs(two, [0, 3])]
    assert names == ["ad-s0", "ppo-s0", "ad-i-s0", "ad-s3", "ppo-s3", "ad-i-s3"]


def test_an_unknown_experiment_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"unknown experiment 'table2'; there are: table1, .*, all"):
        chosen_experiments("table2")


@pytest.mark.parametrize(
    "flag", ["--seed", "--preset=ad", "--folder", "--env", "--env.name=heist", "--config", "--name"]
)
def test_what_the_plan_decides_cannot_be_given(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag.partition('=')[0]} cannot be given for all runs"):
        some_runs("ad", flags=(flag, "1"))


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="total_steps is 0"):
        some_runs("ad", flags=("--total-steps", "0"))


@pytest.mark.parametrize("flags", [(), tuple(TINY)])
def test_a_runs_command_resolves_to_the_planned_config(flags: tuple[str, ...]) -> None:
    for run in some_runs("ad-i", "minigrid-ppo", seeds=2, flags=flags):
        command, *arguments = run.arguments(Path("there") / run.name)
        assert command == "train"
        parsed = parse_train(arguments)
        assert parsed.train == run.config
        assert parsed.folder == Path("there") / run.name
        assert parsed.quiet and not parsed.report
