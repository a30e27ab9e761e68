"""`achieve rates`: success rates of any runs as bars on a log axis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve.commands import parse, say


@dataclass(frozen=True)
class Arguments:
    """Draw the success rates of all achievements on a log axis: one bar per preset, the mean of its runs.

    In Crafter, beside those of human players and what is published in words.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`), of one world."""
    out: Path = Path("success-rates.png")
    """Picture to write."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "rates", arguments)
    from achieve.analysis.published import HUMAN_SUCCESS_RATES, SUCCESS_CLAIMS
    from achieve.commands.groups import by_preset
    from achieve.commands.subjects import write_bytes
    from achieve.viz.bars import draw_success_rates
    from achieve.viz.curves import png

    groups = by_preset(parsed.runs)
    first = next(iter(groups.values()))[0]
    crafter = first.world.name == "crafter"
    figure = draw_success_rates(
        {preset: [run.score.success_rates for run in runs] for preset, runs in groups.items()},
        first.score.names,
        {"human players": HUMAN_SUCCESS_RATES} if crafter else {},
        SUCCESS_CLAIMS if crafter and "ad" in groups else (),
    )
    write_bytes(parsed.out, png(figure))
    counts = ", ".join(f"{preset} ({len(runs)})" for preset, runs in groups.items())
    say(f"written: {parsed.out}, with runs of {counts}")
