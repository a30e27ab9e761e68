"""Every run there is, what it was computed on and how long it took, and the runs of no experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from achieve.analysis.runs import Gathered, Group, Run, group_runs
from achieve.analysis.statistics import PERCENT, caution, mean_with_interval
from achieve.run.hardware import one_line
from achieve.viz.report.experiments import drawn_as_shorter, interval
from achieve.viz.report.figures import compact, curves
from achieve.viz.report.section import Picture, Section
from achieve.viz.report.table import Cell, Column, Interval, MeanStd, Missing, Table, estimate

UNKNOWN = Missing("not recorded")
LINES = 6
"""Curves in one picture, at most."""


def runs_section(gathered: Gathered) -> Section:
    """All runs with all their seeds, whether they count or not, and the command of each."""
    columns = [
        Column("run", "run"),
        Column("group", "group"),
        Column("world", "world"),
        Column("seed", "seed", int),
        Column("steps", "read at step", int),
        Column("episodes", "episodes", int),
        Column("score", "score or success %", MeanStd),
        Column("reward", "reward", MeanStd),
        Column("minutes", "minutes", MeanStd),
        Column("at_once", "at once", MeanStd),
        Column("counted", "counted"),
    ]
    labels = _labels(gathered.runs)
    runs = sorted(gathered.runs, key=lambda run: (run.world.name, run.preset, labels[run.path], run.seed))
    none = Missing("no episode")
    rows: list[list[Cell]] = [
        [
            str(run.path),
            labels[run.path],
            run.world.title,
            run.seed,
            run.score.read_at,
            run.score.episodes,
            estimate([run.score.score], missing=none),
            estimate([run.score.reward], missing=none),
            estimate(minutes([run]), digits=1, missing=UNKNOWN),
            company([run]),
            f"no: {run.uncounted}" if run.uncounted else "yes",
        ]
        for run in runs
    ]
    commands = "\n".join(f"{run.command or 'not recorded'}    # {run.path}" for run in runs)
    return Section(
        key="runs",
        title="All runs",
        about="A run counts if it goes as far as the published ones, with its preset's settings; a seed counts once. "
        "At once: the runs that shared its device, itself included, on average.",
        tables=[Table("runs", "All runs", columns, rows)] if rows else [],
        folded=[("The command of each run", commands)] if rows else [],
        missing=None if rows else "No run was found.",
    )


def hardware_section(gathered: Gathered) -> Section:
    """Time and memory by group, length and machine, from what complete runs recorded."""
    labels = _labels(gathered.runs)
    groups: dict[tuple[str, str, str, int, Any], list[Run]] = {}
    for run in sorted(gathered.runs, key=lambda run: (run.world.name, run.preset, labels[run.path], at_once(run))):
        if run.summary.get("seconds"):
            machine = run.summary.get("machine")
            where = one_line(machine) if machine else ""
            key = (labels[run.path], run.world.title, where, round(at_once(run)), run.summary.get("steps"))
            groups.setdefault(key, []).append(run)
    columns = [
        Column("group", "group"),
        Column("world", "world"),
        Column("machine", "machine"),
        Column("runs", "runs", int),
        Column("at_once", "at once", MeanStd),
        Column("minutes", "minutes a run", MeanStd),
        Column("rate", "steps per second", MeanStd),
        Column("gpu_gib", "GPU GiB", MeanStd),
        Column("host_gib", "host GiB", MeanStd),
        Column("arithmetic", "convolutions"),
        Column("torch", "PyTorch"),
    ]
    rows: list[list[Cell]] = [
        [
            label,
            world,
            machine or UNKNOWN,
            len(runs),
            company(runs),
            estimate(minutes(runs), digits=1, missing=UNKNOWN),
            estimate(_recorded(runs, "steps_per_second"), digits=0, missing=UNKNOWN),
            estimate(_recorded(runs, "gpu_gib"), digits=1, missing=UNKNOWN),
            estimate(_recorded(runs, "host_gib"), digits=1, missing=UNKNOWN),
            _words(run.summary.get("arithmetic") for run in runs),
            _words(run.summary.get("versions", {}).get("torch") for run in runs),
        ]
        for (label, world, machine, _, _), runs in groups.items()
    ]
    hours = sum(minutes(gathered.runs)) / 60
    phases = _phases(gathered.runs)
    return Section(
        key="hardware",
        title="Hardware and time",
        about="Wall time of whole runs with start-up, as each recorded it, and how many runs shared the device.",
        tables=[Table("hardware", "Hardware and time", columns, rows), *([phases] if phases else [])] if rows else [],
        notes=[f"{hours:.1f} hours of training stand behind the complete runs."] if rows else [],
        missing=None if rows else "No complete run recorded its time.",
        collapsed=not rows,
    )


def others_section(gathered: Gathered) -> Section | None:
    """The runs that are not beside published figures, by world and group: their figures and learning curves."""
    shown = drawn_as_shorter(gathered)
    worlds: dict[str, list[Run]] = {}
    for run in gathered.runs:
        if run.uncounted is not None and run.twin is None and len(run.episodes.step) and run.path not in shown:
            worlds.setdefault(run.world.title, []).append(run)
    if not worlds:
        return None
    tables: list[Table] = []
    pictures: list[Picture] = []
    counts: list[tuple[str, int]] = []
    for title, runs in worlds.items():
        name = "other-" + "".join(c if c.isalnum() else "-" for c in title.lower())
        groups = sorted(_told_apart(group_runs(runs)), key=lambda group: group.label)
        counts += [(group.label, len(group.runs)) for group in groups]
        tables.append(_groups_table(name, title, groups))
        for first in range(0, len(groups), LINES):
            some = {group.label: group.runs for group in groups[first : first + LINES]}
            number = f"-{first // LINES + 1}" if len(groups) > LINES else ""
            pictures.append(Picture(f"{name}{number}", f"{title}: {'; '.join(some)}.", compact(curves(some))))
    told = caution(counts)
    return Section(
        key="others",
        title="Other runs" if any(run.uncounted is None for run in gathered.runs) else "Runs",
        about="Runs that are not comparable with published figures: shorter, unfinished, in another world, or with "
        "settings of their own. Runs that differ in nothing but their seeds are a group, read where its shortest run "
        "ends. The table of all runs says of each why it is here.",
        tables=tables,
        pictures=pictures,
        notes=[told] if told else [],
    )


def _told_apart(groups: Sequence[Group]) -> Iterator[Group]:
    """The groups, and each further run of a seed by itself."""
    for group in groups:
        yield group.read_at(group.end)
        yield from (Group(f"{group.label}, seed {run.seed} again ({run.path})", (run,)) for run in group.repeats)


def _groups_table(name: str, title: str, groups: Sequence[Group]) -> Table:
    none = Missing("no episode")
    rows: list[list[Cell]] = []
    for group in groups:
        scores = [run.score.score for run in group.runs if math.isfinite(run.score.score)]
        rows.append(
            [
                group.label,
                ", ".join(str(run.seed) for run in group.runs),
                group.runs[0].score.read_at,
                estimate(scores, missing=none),
                interval(mean_with_interval(scores, PERCENT)) if scores else none,
                estimate([run.score.reward for run in group.runs], missing=none),
            ]
        )
    columns = [
        Column("group", "group"),
        Column("seeds", "seeds"),
        Column("steps", "read at step", int),
        Column("score", f"{groups[0].runs[0].world.measure} %", MeanStd),
        Column("mean", "mean [95 %]", Interval),
        Column("reward", "reward", MeanStd),
    ]
    return Table(name, title, columns, rows)


def _labels(runs: Sequence[Run]) -> dict[Path, str]:
    """The group of each run."""
    return {run.path: group.label for group in group_runs(runs) for run in (*group.runs, *group.repeats)}


def minutes(runs: Sequence[Run]) -> list[float]:
    totals = [_table(run.summary.get("seconds")).get("total") for run in runs]
    return [total / 60 for total in totals if isinstance(total, int | float)]


def at_once(run: Run) -> float:
    """The runs that shared its device on average, itself included; a run that does not say so was alone."""
    value = run.summary.get("runs_at_once", 1.0)
    return float(value) if isinstance(value, int | float) else 1.0


def least_shared(runs: Sequence[Run]) -> list[Run]:
    """Those with the fewest others beside them: their times say most about the method."""
    timed = [run for run in runs if minutes([run])]
    fewest = min((round(at_once(run)) for run in timed), default=1)
    return [run for run in timed if round(at_once(run)) == fewest]


def company(runs: Sequence[Run]) -> Cell:
    """How many runs shared the device at once, on average."""
    values = [at_once(run) for run in runs if minutes([run])]
    if not values:
        return UNKNOWN
    return MeanStd(sum(values) / len(values), digits=0 if all(value.is_integer() for value in values) else 1)


def _recorded(runs: Sequence[Run], key: str) -> list[float]:
    values = [run.summary.get(key) for run in runs]
    return [float(value) for value in values if isinstance(value, int | float)]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(values: Any) -> Cell:
    found = sorted({str(value) for value in values if value})
    return ", ".join(found) or UNKNOWN


def _phases(runs: Sequence[Run]) -> Table | None:
    """Where the time went, in seconds a run, in the runs with the fewest others beside them."""
    labels = _labels(runs)
    timed: dict[tuple[str, str, Any], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.world.name, run.preset)):
        timed.setdefault((labels[run.path], run.world.title, run.summary.get("steps")), []).append(run)
    groups = {key: [_table(run.summary["seconds"]) for run in least_shared(some)] for key, some in timed.items()}
    groups = {key: some for key, some in groups.items() if some}
    names = list(dict.fromkeys(name for some in groups.values() for seconds in some for name in seconds))
    names = [name for name in names if name != "total"]
    if not names:
        return None
    rows: list[list[Cell]] = [
        [*group[:2], *(estimate([s[name] for s in some if name in s], 1, Missing("-")) for name in names)]
        for group, some in groups.items()
    ]
    parts = [Column(name, f"{name}, s", MeanStd) for name in names]
    columns = [Column("group", "group"), Column("world", "world"), *parts]
    return Table("phases", "Where the time goes, in seconds a run", columns, rows)
