"""Every run there is, what it was computed on and how long it took, and the runs of no experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from achieve.run.hardware import one_line
from achieve.viz.report.experiments import drawn_as_shorter
from achieve.viz.report.figures import compact, curves
from achieve.viz.report.gather import Gathered, Run
from achieve.viz.report.section import Picture, Section
from achieve.viz.report.table import Cell, Column, MeanStd, Missing, Table, estimate

UNKNOWN = Missing("not recorded")
LINES = 6
"""Curves in one picture, at most."""


def runs_section(gathered: Gathered) -> Section:
    """All runs with all their seeds, whether they count or not, and the command of each."""
    columns = [
        Column("run", "run"),
        Column("preset", "preset"),
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
    runs = sorted(gathered.runs, key=lambda run: (run.world.name, run.preset, run.seed))
    none = Missing("no episode")
    rows: list[list[Cell]] = [
        [
            str(run.path),
            run.preset,
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
    """Time and memory by preset and machine, from what complete runs recorded."""
    groups: dict[tuple[str, str, str, int], list[Run]] = {}
    for run in sorted(gathered.runs, key=lambda run: (run.world.name, run.preset, at_once(run))):
        if run.summary.get("seconds"):
            machine = run.summary.get("machine")
            where = one_line(machine) if machine else ""
            groups.setdefault((run.preset, run.world.title, where, round(at_once(run))), []).append(run)
    columns = [
        Column("preset", "preset"),
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
            preset,
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
        for (preset, world, machine, _), runs in groups.items()
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
    )


def others_section(gathered: Gathered) -> Section | None:
    """Learning curves of the runs that do not count, by world, so that they can be looked at all the same."""
    shown = drawn_as_shorter(gathered)
    worlds: dict[str, dict[str, list[Run]]] = {}
    for run in gathered.runs:
        if run.uncounted is not None and run.twin is None and len(run.episodes.step) and run.path not in shown:
            groups = worlds.setdefault(run.world.title, {})
            groups[run.path.name if run.path.name not in groups else str(run.path)] = [run]
    if not worlds:
        return None
    pictures = []
    for title, groups in worlds.items():
        labels = sorted(groups)
        for first in range(0, len(labels), LINES):
            some = {label: groups[label] for label in labels[first : first + LINES]}
            number = f"-{first // LINES + 1}" if len(labels) > LINES else ""
            name = "".join(c if c.isalnum() else "-" for c in title.lower())
            pictures.append(Picture(f"other-{name}{number}", f"{title}: {', '.join(some)}.", compact(curves(some))))
    return Section(
        key="others",
        title="Other runs",
        about="Runs that are not comparable with published figures: shorter, unfinished, in another world, or with "
        "settings of their own. The table of all runs says which and why.",
        pictures=pictures,
    )


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
    timed: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.world.name, run.preset)):
        timed.setdefault((run.preset, run.world.title), []).append(run)
    groups = {key: [_table(run.summary["seconds"]) for run in least_shared(some)] for key, some in timed.items()}
    groups = {key: some for key, some in groups.items() if some}
    names = list(dict.fromkeys(name for some in groups.values() for seconds in some for name in seconds))
    names = [name for name in names if name != "total"]
    if not names:
        return None
    rows: list[list[Cell]] = [
        [*group, *(estimate([s[name] for s in some if name in s], 1, Missing("-")) for name in names)]
        for group, some in groups.items()
    ]
    parts = [Column(name, f"{name}, s", MeanStd) for name in names]
    columns = [Column("preset", "preset"), Column("world", "world"), *parts]
    return Table("phases", "Where the time goes, in seconds a run", columns, rows)
