"""`achieve compare`: presets against each other, with intervals."""

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
    from achieve.viz.report.gather import Run


@dataclass(frozen=True)
class Arguments:
    """Compare runs by preset: mean ± std as published, interquartile mean, probability of improvement.

    Intervals are 95 % percentile intervals of a stratified bootstrap over runs.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`), of one world."""
    resamples: int = 10_000
    """Bootstrap resamples."""
    out: Path | None = None
    """Also write the figures there, as JSON."""


def run(arguments: list[str]) -> None:
    parsed: Arguments = parse(Arguments, "compare", arguments)
    from achieve.analysis.statistics import compare, summarize
    from achieve.commands.groups import by_preset
    from achieve.errors import ConfigError
    from achieve.run.files import write_json

    if parsed.resamples < 1:
        raise ConfigError(f"resamples is {parsed.resamples}; it must be 1 or more")
    groups = by_preset(parsed.runs)
    first = next(iter(groups.values()))[0]
    told: dict[str, object] = {"kind": "compare", "resamples": parsed.resamples}
    for name, title in (("score", f"{first.world.measure} %"), ("reward", "reward")):
        values = {preset: _finite(runs, name) for preset, runs in groups.items()}
        measured = {preset: found for preset, found in values.items() if found}
        if not measured:
            continue
        summaries = {p: summarize(list(f.values()), resamples=parsed.resamples) for p, f in measured.items()}
        versus = compare({p: list(f.values()) for p, f in measured.items()}, resamples=parsed.resamples)
        table = Table(title=title.capitalize(), title_justify="left", title_style="bold")
        for column in ("preset", "runs", "mean ± std", "interquartile mean", *(f"beats {p}" for p in measured)):
            table.add_column(column, justify="left" if column == "preset" else "right", no_wrap=True)
        for preset, summary in summaries.items():
            won = [str(versus[preset, other]) if other != preset else "" for other in measured]
            spread = f"{summary.mean:.2f} ± {summary.std:.2f}" if summary.runs > 1 else f"{summary.mean:.2f}"
            table.add_row(preset, str(summary.runs), spread, str(summary.iqm), *won)
        console.print(table)
        for preset, found in measured.items():
            every = ", ".join(f"s{seed} {value:.2f}" for seed, value in found.items())
            console.print(f"{preset}: {every}", style="dim")
        told[name] = {
            preset: {**summary.as_dict(), "by_seed": measured[preset]} for preset, summary in summaries.items()
        }
        told[f"{name}_improvement"] = [
            {"of": a, "over": b, "probability": estimate.value, "interval": estimate.interval}
            for (a, b), estimate in versus.items()
        ]
    console.print("In brackets: 95 % intervals. Beats: how likely a run of this preset is better.", style="dim")
    if parsed.out is not None:
        write_json(parsed.out, told)
        say(f"written: {parsed.out}")


def _finite(runs: Sequence[Run], name: str) -> Mapping[str, float]:
    """Each run's figure by its seed; the same seed twice is told apart by its folder."""
    found: dict[str, float] = {}
    for run in runs:
        value = float(getattr(run.score, name))
        if math.isfinite(value):  # a run too short for this figure has none
            key = str(run.seed)
            found[key if key not in found else f"{key} ({run.path.name})"] = value
    return found
