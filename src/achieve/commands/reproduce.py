"""`achieve reproduce`: every run, table and figure of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from achieve.commands import console, parse, plain_table, say
from achieve.commands.arguments import ManyRunsArguments
from achieve.commands.many_runs import make_runs, parse_seeds, refuse_decided, show_finished, split_flags
from achieve.commands.train import parse_train
from achieve.config import validate
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from achieve.reproduce.experiments import Experiment
    from achieve.reproduce.plan import Plan, RunSpec
    from achieve.run.signals import StopRequest


@dataclass(frozen=True)
class ReproduceArguments(ManyRunsArguments):
    """Train the missing runs of one of the paper's experiments, resume those that were stopped, and report.

    It can be stopped: the same command resumes. `achieve reproduce` alone lists the experiments. What follows `--` is
    passed to every run, as `achieve train` takes it: `achieve reproduce table1 --folder short -- --total-steps 100000`.
    Such runs are not the paper's, so they need a folder of their own.
    """

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="[NAME]")]] = ""
    """Table, figure or analysis to make, or `all`."""
    seeds: str = "0-9"
    """Seeds of every preset, such as 0-4 or 0,2,5-7; published results use ten."""
    report: bool = True
    """When done, write the page about all runs into reproduce/report of the folder."""


def run(arguments: list[str]) -> None:
    own, flags = split_flags(arguments)
    parsed: ReproduceArguments = parse(ReproduceArguments, "reproduce", own)
    from achieve.reproduce.analyses import analyses, make_analysis, write_report
    from achieve.reproduce.experiments import ALL, EXPERIMENTS, chosen_experiments
    from achieve.reproduce.plan import State

    if not parsed.experiment:
        rows = [(name, experiment.about, ", ".join(experiment.presets)) for name, experiment in EXPERIMENTS.items()]
        titles = ("achieve reproduce NAME", "what it makes", "presets")
        console.print(plain_table(titles, [*rows, (ALL, "everything above", "")]))
        return
    experiments = chosen_experiments(parsed.experiment)
    if parsed.seeds.strip().isdecimal():
        raise ConfigError(f"seeds is {parsed.seeds}; give a range, such as 0-9 for ten seeds, or 3-3 for one")
    runs = needed_runs(experiments, parse_seeds(parsed.seeds), flags)

    def then(plan: Plan, stop: StopRequest) -> list[str]:
        todo, notes = ([], []) if stop.requested else analyses(experiments, plan)
        failed = [a.name for a in todo if not stop.requested and not make_analysis(a, parsed.folder, say, stop)]
        for note in notes:
            say(note)
        if not stop.requested and parsed.report and plan.of(State.FINISHED):
            failed += [] if write_report(parsed.folder, say, stop) else ["report"]
        return failed + show_finished(plan)

    make_runs(runs, parsed.folder, then, parsed.jobs, parsed.ray, parsed.dry_run)


def needed_runs(
    experiments: Mapping[str, Experiment], seeds: Sequence[int], flags: Sequence[str] = ()
) -> list[RunSpec]:
    """Return every run the experiments need, each once: the first seed of all presets, then the second, and so on."""
    from achieve.reproduce.plan import RunSpec

    refuse_decided(flags, dict.fromkeys(("--preset", "--config", "--env", "--env.name"), "the experiment decides it"))
    presets = dict.fromkeys(preset for experiment in experiments.values() for preset in experiment.presets)
    configs = {preset: parse_train(["--preset", preset, *flags]).train for preset in presets}
    for config in configs.values():
        validate(config)
    return [
        RunSpec(preset, replace(config, seed=seed), ("--preset", preset, *flags))
        for seed in seeds
        for preset, config in configs.items()
    ]
