"""Every run, what it was computed on and how long it took, and the runs of no experiment."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from achieve.analysis.runs import Gathered, Group, Run, group_runs, other_code
from achieve.analysis.statistics import PERCENT, Interval, caution, mean_with_interval
from achieve.run.hardware import one_line
from achieve.scoring.score import MeanStd
from achieve.viz.report.experiments import NO_EPISODE, drawn_as_shorter, interval
from achieve.viz.report.section import Media, Section, compact, draw_runs
from achieve.viz.table import Cell, ColumnOf, Missing, Table, estimate, tabulate

UNKNOWN = Missing("not recorded")
LINES = 6
"""Curves in one picture, at most."""


def runs_section(gathered: Gathered) -> Section:
    """List all runs, whether they count or not, and the command of each."""
    labels = _labels(gathered.runs)
    runs = sorted(gathered.runs, key=lambda run: (run.spec.name, run.preset, labels[run.path], run.seed))
    columns = [
        ("run", "run", str, lambda run: str(run.path)),
        ("group", "group", str, lambda run: labels[run.path]),
        ("environment", "environment", str, lambda run: run.game),
        ("seed", "seed", int, lambda run: run.seed),
        ("steps", "evaluated at step", int, lambda run: run.score.read_at),
        ("episodes", "episodes", int, lambda run: run.score.episodes),
        ("score", "score or success rate %", MeanStd, lambda run: estimate([run.score.score], missing=NO_EPISODE)),
        ("reward", "reward", MeanStd, lambda run: estimate([run.score.reward], missing=NO_EPISODE)),
        ("minutes", "minutes", MeanStd, lambda run: estimate(minutes([run]), 1, UNKNOWN)),
        ("at_once", "runs per device", MeanStd, lambda run: shared_by([run])),
        ("counted", "counted", str, lambda run: f"no: {run.uncounted}" if run.uncounted else "yes"),
    ]
    commands = "\n".join(f"{run.command or 'not recorded'}    # {run.path}" for run in runs)
    title = "The command of each run, as it was given then: presets may have changed since"
    return Section(
        key="runs",
        title="All runs",
        about="A run counts if it is as long as the published ones and has its preset's settings; a seed counts once. "
        "Runs per device: how many shared its device, itself included, on average.",
        tables=[tabulate("runs", "All runs", runs, columns)] if runs else [],
        folded=[(title, commands)] if runs else [],
        missing=None if runs else "No run was found.",
    )


def hardware_section(gathered: Gathered) -> Section:
    """List time and memory by group, length and machine, as complete runs recorded them."""
    labels = _labels(gathered.runs)
    groups: dict[tuple[str, str, str, int, Any], list[Run]] = {}
    for run in sorted(gathered.runs, key=lambda run: (run.spec.name, run.preset, labels[run.path], at_once(run))):
        if run.summary.get("seconds"):
            machine = run.summary.get("machine")
            where = one_line(machine) if machine else ""
            key = (labels[run.path], run.spec.title, where, round(at_once(run)), run.summary.get("steps"))
            groups.setdefault(key, []).append(run)

    def recorded(key: str, digits: int) -> Callable[[Any], Cell]:
        def cell(group: tuple[Any, list[Run]]) -> Cell:
            values = [run.summary.get(key) for run in group[1]]
            return estimate([float(value) for value in values if isinstance(value, int | float)], digits, UNKNOWN)

        return cell

    def words(values: Iterable[Any]) -> Cell:
        return ", ".join(sorted({str(value) for value in values if value})) or UNKNOWN

    def torch(run: Run) -> Any:
        versions = run.summary.get("versions")
        return versions.get("torch") if isinstance(versions, dict) else None

    columns = [
        ("group", "group", str, lambda group: group[0][0]),
        ("environment", "environment", str, lambda group: group[0][1]),
        ("machine", "machine", str, lambda group: group[0][2] or UNKNOWN),
        ("runs", "runs", int, lambda group: len(group[1])),
        ("at_once", "runs per device", MeanStd, lambda group: shared_by(group[1])),
        ("minutes", "minutes per run", MeanStd, lambda group: estimate(minutes(group[1]), 1, UNKNOWN)),
        ("rate", "steps per second", MeanStd, recorded("steps_per_second", 0)),
        ("gpu_gib", "GPU GiB", MeanStd, recorded("gpu_gib", 1)),
        ("host_gib", "host GiB", MeanStd, recorded("host_gib", 1)),
        ("arithmetic", "convolutions", str, lambda group: words(run.summary.get("arithmetic") for run in group[1])),
        ("torch", "PyTorch", str, lambda group: words(map(torch, group[1]))),
    ]
    hours = sum(minutes(gathered.runs)) / 60
    title = "Hardware and time"
    section = Section(
        key="hardware",
        title=title,
        about="Wall-clock time of whole runs, start-up included, and how many runs shared the device.",
    )
    if groups:
        section.tables = [tabulate("hardware", title, groups.items(), columns), *_phases(gathered.runs, labels)]
        section.notes = [f"The complete runs took {hours:.1f} hours of training."]
    else:
        section.missing, section.collapsed = "No complete run recorded its time.", True
    return section


def _phases(runs: Sequence[Run], labels: Mapping[Path, str]) -> list[Table]:
    """Show where the time goes, in seconds per run, in the least-shared runs."""
    groups: dict[tuple[str, str, Any], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.spec.name, run.preset)):
        groups.setdefault((labels[run.path], run.spec.title, run.summary.get("steps")), []).append(run)
    timed = [(key, [run.summary["seconds"] for run in least_shared(some)]) for key, some in groups.items()]
    timed = [(key, seconds) for key, seconds in timed if seconds]

    def column(phase: str) -> ColumnOf[Any]:
        def cell(group: Any) -> Cell:
            return estimate([each[phase] for each in group[1] if phase in each], 1, Missing("-"))

        return phase, f"{phase}, s", MeanStd, cell

    phases = dict.fromkeys(phase for _, some in timed for each in some for phase in each if phase != "total")
    columns = [
        ("group", "group", str, lambda group: group[0][0]),
        ("environment", "environment", str, lambda group: group[0][1]),
        *map(column, phases),
    ]
    return [tabulate("phases", "Where the time goes, in seconds per run", timed, columns)] if phases else []


def others_section(gathered: Gathered) -> Section | None:
    """Show the runs that are not beside published figures, by environment and group, with their learning curves."""
    shown, labels = drawn_as_shorter(gathered), _labels(gathered.runs)
    envs: dict[str, list[Run]] = {}
    for run in gathered.runs:
        elsewhere = run.external or run.path in shown
        if run.uncounted is not None and run.twin is None and len(run.episodes.step) and not elsewhere:
            envs.setdefault(run.spec.title, []).append(run)
    if not envs:
        return None
    section = Section(
        key="others",
        title="Other runs" if any(run.uncounted is None for run in gathered.runs) else "Runs",
        about="Runs that are not comparable with published figures: shorter, unfinished, in another environment, or "
        "with other settings. Runs that differ only in their seeds form a group, evaluated where its shortest run "
        "ends. The table of all runs gives the reason for each.",
    )
    counts: list[tuple[str, int]] = []
    code: list[str] = []
    for title, runs in envs.items():
        name = "other-" + "".join(c if c.isalnum() else "-" for c in title.lower())
        groups = []
        for group in group_runs(runs):
            group = replace(group, label=_own_label(group.runs[0], labels))
            code += other_code(group)
            again = [Group(f"{group.label}, seed {run.seed} again ({run.path})", (run,)) for run in group.repeats]
            groups += [group.read_at(group.end), *again]
        groups.sort(key=lambda group: group.label)
        counts += [(group.label, len(group.runs)) for group in groups]
        section.tables.append(_groups_table(name, title, groups))
        for first in range(0, len(groups), LINES):
            some = {group.label: group.runs for group in groups[first : first + LINES]}
            number = f"-{first // LINES + 1}" if len(groups) > LINES else ""
            media = Media(f"{name}{number}", f"{title}: {'; '.join(some)}.", compact(draw_runs(some)))
            section.pictures.append(media)
    section.notes = [*caution(counts), *code]
    return section


def _own_label(run: Run, labels: Mapping[Path, str]) -> str:
    """Name the group of a run that does not count, so that nobody takes it for one that does.

    It has the label it has among all runs: by itself, PPO in TF32 is just `ppo`. And a name does not tell the game.
    """
    options = ", ".join(sorted(run.config.env.options))
    return f"{labels[run.path]} ({options})" if options and run.config.name else labels[run.path]


def _groups_table(name: str, title: str, groups: Sequence[Group]) -> Table:
    def mean(group: Group) -> Cell:
        scores = [run.score.score for run in group.runs if math.isfinite(run.score.score)]
        return interval(mean_with_interval(scores, PERCENT)) if scores else NO_EPISODE

    def of(group: Group, name: str) -> Cell:
        return estimate([getattr(run.score, name) for run in group.runs], missing=NO_EPISODE)

    columns = [
        ("group", "group", str, lambda group: group.label),
        ("seeds", "seeds", str, lambda group: ", ".join(str(run.seed) for run in group.runs)),
        ("steps", "evaluated at step", int, lambda group: group.runs[0].score.read_at),
        ("score", f"{groups[0].runs[0].spec.measure} %", MeanStd, lambda group: of(group, "score")),
        ("mean", "mean [95 %]", Interval, mean),
        ("reward", "reward", MeanStd, lambda group: of(group, "reward")),
    ]
    return tabulate(name, title, groups, columns)


def _labels(runs: Sequence[Run]) -> dict[Path, str]:
    """Return the group of each run."""
    return {run.path: group.label for group in group_runs(runs) for run in (*group.runs, *group.repeats)}


def minutes(runs: Sequence[Run]) -> list[float]:
    """Return the wall-clock time of the runs that recorded it."""
    seconds = [run.summary.get("seconds", {}) for run in runs]
    return [each["total"] / 60 for each in seconds if "total" in each]


def at_once(run: Run) -> float:
    """Return how many runs shared its device on average, itself included; a run that does not say so was alone."""
    return float(run.summary.get("runs_at_once", 1.0))


def least_shared(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that shared their device with the fewest others: their times say most about the method."""
    timed = [run for run in runs if minutes([run])]
    fewest = min((round(at_once(run)) for run in timed), default=1)
    return [run for run in timed if round(at_once(run)) == fewest]


def shared_by(runs: Sequence[Run]) -> Cell:
    """Return how many runs shared the device, on average."""
    values = [at_once(run) for run in runs if minutes([run])]
    if not values:
        return UNKNOWN
    return MeanStd(sum(values) / len(values), digits=0 if all(value.is_integer() for value in values) else 1)
