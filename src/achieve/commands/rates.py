"""`achieve rates`: success rates of any runs as bars on a log axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from achieve.commands import parse, say
from achieve.commands.arguments import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from achieve.analysis.runs import Group


def run(arguments: list[str]) -> None:
    parse(_rates, "rates", arguments)


def _rates(runs: Runs, out: Path = Path("success-rates.png")) -> None:
    """Draw the success rates of all achievements on a log axis: a bar for each group, the mean of its runs.

    Runs that differ only in their seeds form a group. In Crafter, the rates of human players and those in the paper's
    text are shown beside them.

    Args:
        out: Picture to write.
    """
    from achieve.analysis.runs import read_groups
    from achieve.viz.bars import draw_success_rates

    groups, notes = read_groups(runs)
    first = groups[0].runs[0]
    rates = {group.label: [run.score.success_rates for run in group.runs] for group in groups}
    figure = draw_success_rates(rates, first.score.names, crafter=first.spec.name == "crafter")
    write_picture(out, figure, groups, notes)


def write_picture(path: Path, figure: Figure, groups: Sequence[Group], notes: Sequence[str]) -> None:
    """Write a picture of groups of runs, and say what is in it."""
    from achieve.run.files import write_file
    from achieve.viz.style import png

    write_file(path, png(figure))
    runs = "; ".join(f"{group.label} ({len(group.runs)})" for group in groups)
    for line in (*notes, f"written: {path}, with runs of {runs}"):
        say(line)
