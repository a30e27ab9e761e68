"""`achieve curves`: learning curves of any runs, with mean and spread."""

from __future__ import annotations

from pathlib import Path

from achieve.commands import parse
from achieve.commands.arguments import Runs


def run(arguments: list[str]) -> None:
    parse(_curves, "curves", arguments)


def _curves(runs: Runs, out: Path = Path("curves.png")) -> None:
    """Draw the learning curves of runs: a line for each group, the mean of its runs with their standard deviation.

    Runs that differ only in their seeds form a group.

    Args:
        out: Picture to write.
    """
    from achieve.analysis.published import find_published
    from achieve.analysis.runs import read_groups
    from achieve.commands.rates import write_picture
    from achieve.viz.report.section import draw_runs

    groups, notes = read_groups(runs)
    entries = {group.label: find_published(group.label) for group in groups if not group.runs[0].external}
    levels = {label: entry.comparable_score for label, entry in entries.items() if entry and entry.comparable_score}
    write_picture(out, draw_runs({group.label: group.runs for group in groups}, levels), groups, notes)
