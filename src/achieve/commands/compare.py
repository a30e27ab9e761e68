"""`achieve compare`: groups of runs against each other, with confidence intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from achieve.commands import console, parse, say
from achieve.commands.arguments import Runs

if TYPE_CHECKING:
    from achieve.analysis.runs import Group


def run(arguments: list[str]) -> None:
    parse(_compare, "compare", arguments)


def _compare(runs: Runs, out: Path | None = None) -> None:
    """Compare groups of runs: mean ± std as published, interquartile mean, probability of improvement.

    Runs that differ only in their seeds form a group. Intervals are 95 % intervals of Student's t over seeds.

    Args:
        out: Also write the figures there, as JSON.
    """
    from achieve.analysis.runs import read_groups
    from achieve.analysis.statistics import ANYWHERE, PERCENT, Interval, caution, compare, summarize
    from achieve.run.files import write_json
    from achieve.scoring.score import MeanStd
    from achieve.viz.table import ONE_SEED, Cell, tabulate, to_rich

    groups, notes = read_groups(runs)
    record: dict[str, object] = {"kind": "compare", "notes": notes}
    for name, title in (("score", f"{groups[0].runs[0].spec.measure} %"), ("reward", "reward")):
        by_seed = {group.label: values for group in groups if (values := _by_seed(group, name))}
        if not by_seed:
            continue
        within = PERCENT if name == "score" else ANYWHERE
        summaries = {label: summarize(list(values.values()), within) for label, values in by_seed.items()}
        improvements = compare({label: list(values.values()) for label, values in by_seed.items()})

        def interval(estimated: Interval) -> Cell:
            return str(estimated).partition(" ")[2] or ONE_SEED

        # Narrow enough for 80 columns, whatever the number of groups.
        columns = [
            ("group", "group", str, lambda item: item[0]),
            ("seeds", "seeds", int, lambda item: len(item[1].values)),
            ("mean", "mean ± std", MeanStd, lambda item: MeanStd.of(item[1].values)),
            ("interval", "95 % of the mean", Interval, lambda item: interval(item[1].mean)),
            ("iqm", "IQM", MeanStd, lambda item: MeanStd(item[1].iqm.value)),
        ]
        console.print(to_rich(tabulate(name, title.capitalize(), summaries.items(), columns)))
        pairs = [
            ("pair", "a run of one over a run of the other", str, lambda item: "\nover ".join(item[0])),
            ("won", "won", int, lambda item: item[1].won),
            ("probability", "probability [95 %]", Interval, lambda item: item[1] if item[1].limits else ONE_SEED),
        ]
        if improvements:
            console.print(to_rich(tabulate(name, "Probability of improvement", improvements.items(), pairs)))
        for label, values in by_seed.items():
            each = ", ".join(f"s{seed} {value:.2f}" for seed, value in values.items())
            console.print(f"{label}: {each}", style="dim", markup=False)
        console.print()
        record[name] = {label: {**summary.as_dict(), "by_seed": by_seed[label]} for label, summary in summaries.items()}
        record[f"{name}_improvement"] = [
            {"of": a, "over": b, "probability": won.value, "interval": won.limits, "pairs": won.pairs}
            for (a, b), won in improvements.items()
        ]
    for note in (*caution((group.label, len(group.runs)) for group in groups), *notes):
        console.print(note, markup=False)
    if out is not None:
        write_json(out, record)
        say(f"written: {out}")


def _by_seed(group: Group, name: str) -> dict[str, float]:
    """Return each run's figure by its seed; too short a run has none."""
    values = {str(run.seed): float(getattr(run.score, name)) for run in group.runs}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}
