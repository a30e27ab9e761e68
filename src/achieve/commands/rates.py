"""`achieve rates`: success rates of any runs as bars on a log axis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve.commands import parse, say


@dataclass(frozen=True)
class Arguments:
    """Draw the success rates of all achievements on a log axis: a bar for each group, the mean of its runs.

    Runs that differ in nothing but their seeds are a group. In Crafter, beside those of human players and what is
    published in words.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`), of one world."""
    out: Path = Path("success-rates.png")
    """Picture to write."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "rates", arguments)
    from achieve.analysis.published import HUMAN_SUCCESS_RATES, SUCCESS_CLAIMS
    from achieve.analysis.runs import read_groups
    from achieve.commands.subjects import write_bytes
    from achieve.viz.bars import draw_success_rates
    from achieve.viz.curves import png

    groups, notes = read_groups(parsed.runs)
    first = groups[0].runs[0]
    crafter = first.world.name == "crafter"
    figure = draw_success_rates(
        {group.label: [run.score.success_rates for run in group.runs] for group in groups},
        first.score.names,
        {"human players": HUMAN_SUCCESS_RATES} if crafter else {},
        SUCCESS_CLAIMS if crafter and any(group.label == "ad" for group in groups) else (),
    )
    write_bytes(parsed.out, png(figure))
    for note in notes:
        say(note)
    say(f"written: {parsed.out}, with runs of {'; '.join(f'{group.label} ({len(group.runs)})' for group in groups)}")
