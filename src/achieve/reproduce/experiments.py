"""Which runs each table and figure of the paper needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from achieve.config import TrainConfig, validate
from achieve.errors import ConfigError
from achieve.presets import PRESETS

PUBLISHED_SEEDS = 10


@dataclass(frozen=True)
class Experiment:
    """One table, figure or analysis of the paper."""

    about: str
    presets: tuple[str, ...]
    analysis: str | None = None
    """The command that makes it from finished runs, where it is more than their scores and curves."""


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment("table 1: scores and rewards on Crafter", ("ad", "ppo")),
    "figure-ppo": Experiment(
        "the steps from common practice to the strong PPO", ("ppo-default", "ppo-size", "ppo-size-layer", "ppo")
    ),
    "ablation": Experiment("intra-trajectory prediction, cross-trajectory matching, memory", ("ad-i", "ad-ic", "ad")),
    "small": Experiment("the method in a network of 1M parameters", ("ad-small",)),
    "success-rates": Experiment("success rates of the 22 achievements", ("ad", "ppo")),
    "probe": Experiment("appendix A: is the next achievement in the latents?", ("ad", "ppo"), "probe"),
    "matching": Experiment("appendix B: achievements matched across episodes", ("ad", "ppo"), "matching"),
    "hierarchy": Experiment("not in the paper: the graph of achievements, without labels", ("ad",), "hierarchy"),
    "qrdqn": Experiment("appendix D: a value-based learner, with and without distillation", ("qrdqn", "qrdqn-ad")),
    "heist": Experiment("appendix E: Procgen Heist, 25M steps", ("heist-ad", "heist-ppo")),
    "minigrid": Experiment("appendix E: the MiniGrid door-key world", ("minigrid-ad", "minigrid-ppo")),
}
ALL = "all"

# What the plan decides for each run, and so cannot be given for all of them.
_DECIDED = {
    "--preset": "the experiment decides it",
    "--seed": "use --seeds",
    "--config": "the experiment decides it",
    "--folder": "give it before the --",
    "--env": "the experiment decides it",
    "--env.name": "the experiment decides it",
    "--report": "reproduce writes one report for all runs",
    "--no-report": "runs are started so already",
    "--quiet": "runs are started so already",
}


@dataclass(frozen=True)
class Run:
    """One training run of an experiment."""

    preset: str
    seed: int
    config: TrainConfig
    flags: tuple[str, ...] = ()
    """Flags given to every run, already part of `config`."""

    @property
    def name(self) -> str:
        return f"{self.preset}-s{self.seed}"

    @property
    def steps(self) -> int:
        """Environment steps of the whole run."""
        return self.config.total_steps

    def arguments(self, folder: Path) -> list[str]:
        """The command line of `achieve` that makes or continues this run in `folder`."""
        chosen = ["--preset", self.preset, "--seed", str(self.seed), "--folder", str(folder)]
        return ["train", *chosen, "--no-report", "--quiet", *self.flags]


def chosen_experiments(name: str) -> dict[str, Experiment]:
    """The experiment of that name, or all of them; or a sentence that lists those there are."""
    if name == ALL:
        return dict(EXPERIMENTS)
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; there are: {', '.join([*EXPERIMENTS, ALL])}")
    return {name: EXPERIMENTS[name]}


def available(
    experiments: Mapping[str, Experiment], presets: Mapping[str, TrainConfig] = PRESETS
) -> tuple[dict[str, Experiment], dict[str, list[str]]]:
    """The experiments whose presets this version has, and for each of the others the presets it lacks."""
    lacking = {
        name: [preset for preset in experiment.presets if preset not in presets]
        for name, experiment in experiments.items()
    }
    there = {name: experiment for name, experiment in experiments.items() if not lacking[name]}
    return there, {name: missing for name, missing in lacking.items() if missing}


def needed_runs(
    experiments: Mapping[str, Experiment],
    seeds: int,
    flags: Sequence[str] = (),
    presets: Mapping[str, TrainConfig] = PRESETS,
) -> list[Run]:
    """Every run the experiments need, each once: the first seed of all presets, then the second, and so on."""
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}; it must be 1 or more")
    names = dict.fromkeys(preset for experiment in experiments.values() for preset in experiment.presets)
    configs = {name: with_flags(presets[name], flags) for name in names}
    return [
        Run(name, seed, replace(config, seed=seed), tuple(flags))
        for seed in range(seeds)
        for name, config in configs.items()
    ]


def with_flags(config: TrainConfig, flags: Sequence[str]) -> TrainConfig:
    """The config as `achieve train` would resolve it with these flags."""
    if not flags:
        return config
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in _DECIDED:
            raise ConfigError(f"{name} cannot be given for all runs: {_DECIDED[name]}")
    from achieve.commands import parse

    changed: TrainConfig = parse(TrainConfig, "reproduce ... --", list(flags), config)
    if changed.device.startswith("cuda:"):
        raise ConfigError(f"--device {changed.device} cannot be given for all runs: set CUDA_VISIBLE_DEVICES instead")
    validate(changed)
    return changed
