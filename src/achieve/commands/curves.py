"""`achieve curves`: learning curves of any runs, with mean and spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from achieve.commands import parse
from achieve.commands.arguments import GroupArguments


@dataclass(frozen=True)
class Arguments(GroupArguments):
    """Draw the learning curves of runs: a line for each group, the mean of its runs with their standard deviation.

    Runs that differ only in their seeds form a group."""

    out: Path = Path("curves.png")
    """Picture to write."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "curves", arguments)
    from achieve.analysis.published import find_published
    from achieve.analysis.runs import read_groups
    from achieve.commands.rates import write_picture
    from achieve.viz.report.section import draw_runs

    groups, notes = read_groups(parsed.runs)
    entries = {group.label: find_published(group.label) for group in groups}
    levels = {label: entry.comparable_score for label, entry in entries.items() if entry and entry.comparable_score}
    write_picture(parsed.out, draw_runs({group.label: group.runs for group in groups}, levels), groups, notes)
