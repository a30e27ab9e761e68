"""`achieve compare`: groups of runs against each other, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.table import Table

from achieve.commands import console, parse, say

if TYPE_CHECKING:
    from achieve.analysis.runs import Group
    from achieve.analysis.statistics import Improvement, Summary


@dataclass(frozen=True)
class Arguments:
    """Compare groups of runs: mean ± std as published, interquartile mean, probability of improvement.

    Runs that differ in nothing but their seeds are a group. Intervals are 95 % intervals of Student's t over seeds.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`), of one world."""
    out: Path | None = None
    """Also write the figures there, as JSON."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "compare", arguments)
    from achieve.analysis.runs import read_groups
    from achieve.analysis.statistics import ANYWHERE, PERCENT, caution, compare, summarize
    from achieve.run.files import write_json

    groups, notes = read_groups(parsed.runs)
    told: dict[str, object] = {"kind": "compare", "notes": notes}
    for name, title in (("score", f"{groups[0].runs[0].world.measure} %"), ("reward", "reward")):
        values = {group.label: _finite(group, name) for group in groups}
        measured = {label: found for label, found in values.items() if found}
        if not measured:
            continue
        within = PERCENT if name == "score" else ANYWHERE
        summaries = {label: summarize(list(found.values()), within) for label, found in measured.items()}
        versus = compare({label: list(found.values()) for label, found in measured.items()})
        _show(title.capitalize(), summaries, versus, measured)
        told[name] = {label: {**summary.as_dict(), "by_seed": measured[label]} for label, summary in summaries.items()}
        told[f"{name}_improvement"] = [
            {"of": a, "over": b, "probability": found.value, "interval": found.interval, "pairs": found.pairs}
            for (a, b), found in versus.items()
        ]
    for note in (caution((group.label, len(group.runs)) for group in groups), *notes):
        if note:
            console.print(note, markup=False)
    if parsed.out is not None:
        write_json(parsed.out, told)
        say(f"written: {parsed.out}")


def _show(
    title: str,
    summaries: Mapping[str, Summary],
    versus: Mapping[tuple[str, str], Improvement],
    values: Mapping[str, Mapping[str, float]],
) -> None:
    """One table of the groups and one of every pair: narrow enough for 80 columns, whatever the number of groups."""
    rows = []
    for label, summary in summaries.items():
        spread = f" ± {summary.std:.2f}" if summary.runs > 1 else ""
        mean, _, interval = str(summary.mean).partition(" ")
        rows.append((label, str(summary.runs), mean + spread, interval or "one seed", f"{summary.iqm.value:.2f}"))
    _table(title, ("group", "seeds", "mean ± std", "95 % of the mean", "IQM"), rows)
    if versus:
        pairs = [
            (f"{a}\nover {b}", found.won, str(found) if found.interval else "one seed")
            for (a, b), found in versus.items()
        ]
        _table("Probability of improvement", ("a run of one over one of the other", "won", "probability [95 %]"), pairs)
    for label, found in values.items():
        every = ", ".join(f"s{seed} {value:.2f}" for seed, value in found.items())
        console.print(f"{label}: {every}", style="dim", markup=False)
    console.print()


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


def _finite(group: Group, name: str) -> dict[str, float]:
    """Each run's figure by its seed."""
    found = {str(run.seed): float(getattr(run.score, name)) for run in group.runs}
    return {seed: value for seed, value in found.items() if math.isfinite(value)}  # too short a run has none
