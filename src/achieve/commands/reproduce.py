"""`achieve reproduce`: every run, table and figure of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from achieve.commands import console, parse, say
from achieve.commands.arguments import ManyRunsArguments
from achieve.commands.many_runs import make_runs, parse_seeds, refuse_decided
from achieve.commands.train import parse_train
from achieve.config import validate
from achieve.errors import ConfigError

if TYPE_CHECKING:
    from achieve.reproduce.experiments import Experiment
    from achieve.reproduce.plan import Plan, RunSpec
    from achieve.run.signals import StopRequest


@dataclass(frozen=True)
class ReproduceArguments(ManyRunsArguments):
    """Make the missing runs of one of the paper's experiments, resume those that were stopped, and report.

    It can be stopped: the same command resumes. `achieve reproduce` alone lists the experiments. What follows `--` is
    passed to every run, as `achieve train` takes it: `achieve reproduce table1 --folder short -- --total-steps 100000`.
    Such runs are not the paper's, so they need a folder of their own.
    """

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""
    """Table, figure or analysis to make, or `all`."""
    seeds: str = "0-9"
    """Seeds of every preset, such as 0-4 or 0,2,5-7; published results use ten."""
    report: bool = True
    """When done, write the page about all runs into reproduce/report of the folder."""


def run(arguments: list[str]) -> None:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags = arguments[end + 1 :]
    parsed: ReproduceArguments = parse(ReproduceArguments, "reproduce", arguments[:end])
    if not parsed.experiment:
        console.print(_experiments())
        return
    from achieve.reproduce.analyses import analyses, make_analyses, results_table, write_report
    from achieve.reproduce.experiments import chosen_experiments
    from achieve.reproduce.plan import State

    experiments = chosen_experiments(parsed.experiment)
    if parsed.seeds.strip().isdecimal():
        raise ConfigError(f"seeds is {parsed.seeds}; give a range, such as 0-9 for ten seeds, or 3-3 for one")
    runs = needed_runs(experiments, parse_seeds(parsed.seeds), flags)

    def then(plan: Plan, stop: StopRequest) -> list[str]:
        failed = []
        if not stop.requested:
            todo, notes = analyses(experiments, plan)
            failed = make_analyses(todo, parsed.folder, say, stop)
            for note in notes:
                say(note)
        if not stop.requested and parsed.report and plan.of(State.FINISHED):
            failed += write_report(parsed.folder, say, stop)
        console.print(results_table(plan))
        return failed

    make_runs(runs, parsed.folder, then, parsed.jobs, parsed.ray, parsed.dry_run)


def needed_runs(
    experiments: Mapping[str, Experiment], seeds: Sequence[int], flags: Sequence[str] = ()
) -> list[RunSpec]:
    """Return every run the experiments need, each once: the first seed of all presets, then the second, and so on."""
    from achieve.reproduce.plan import RunSpec

    refuse_decided(flags, experiment=True)
    presets = dict.fromkeys(preset for experiment in experiments.values() for preset in experiment.presets)
    configs = {preset: parse_train(["--preset", preset, *flags]).train for preset in presets}
    for config in configs.values():
        validate(config)
    return [
        RunSpec(preset, replace(config, seed=seed), ("--preset", preset, *flags))
        for seed in seeds
        for preset, config in configs.items()
    ]


def _experiments() -> Table:
    from achieve.reproduce.experiments import ALL, EXPERIMENTS

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("achieve reproduce NAME", "what it makes", "presets"):
        table.add_column(title)
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.about, ", ".join(experiment.presets))
    table.add_row(ALL, "everything above", "")
    return table
