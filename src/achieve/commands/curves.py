"""`achieve curves`: learning curves of any runs, with mean and spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve.commands import parse, say


@dataclass(frozen=True)
class Arguments:
    """Draw the learning curves of runs: one line per preset, the mean of its runs with their deviation."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`), of one world."""
    out: Path = Path("curves.png")
    """Picture to write."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "curves", arguments)
    from achieve.analysis.published import find_published
    from achieve.commands.groups import by_preset
    from achieve.commands.subjects import write_bytes
    from achieve.viz.curves import png
    from achieve.viz.report.figures import curves

    groups = by_preset(parsed.runs)
    known = {preset: find_published(preset) for preset in groups}
    levels = {preset: row.score for preset, row in known.items() if row is not None and row.score is not None}
    write_bytes(parsed.out, png(curves(groups, levels)))
    counts = ", ".join(f"{preset} ({len(runs)})" for preset, runs in groups.items())
    say(f"written: {parsed.out}, with runs of {counts}")
