"""`achieve curves`: learning curves of any runs, with mean and spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve.commands import parse, say


@dataclass(frozen=True)
class Arguments:
    """Draw the learning curves of runs: a line for each group, the mean of its runs with their deviation.

    Runs that differ in nothing but their seeds are a group."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`), of one world."""
    out: Path = Path("curves.png")
    """Picture to write."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "curves", arguments)
    from achieve.analysis.published import find_published
    from achieve.analysis.runs import read_groups
    from achieve.commands.subjects import write_bytes
    from achieve.viz.curves import png
    from achieve.viz.report.figures import curves

    groups, notes = read_groups(parsed.runs)
    known = {group.label: find_published(group.label) for group in groups}
    levels = {label: row.score for label, row in known.items() if row is not None and row.score is not None}
    write_bytes(parsed.out, png(curves({group.label: group.runs for group in groups}, levels)))
    for note in notes:
        say(note)
    say(f"written: {parsed.out}, with runs of {'; '.join(f'{group.label} ({len(group.runs)})' for group in groups)}")
