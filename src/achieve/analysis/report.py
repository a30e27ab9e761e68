"""The tables `achieve score` and `achieve eval` print, for a terminal and as Markdown."""

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from achieve.analysis.score import RunScore, mean_std

BAR_WIDTH = 20


def figure(values: Sequence[float], digits: int = 2) -> str:
    """`21.79 ± 1.37` over several runs, `21.79` for one, a dash where there is no value."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "-"
    mean, std = mean_std(finite)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if len(finite) > 1 else "")


def score_tables(
    labels: Sequence[str],
    runs: Sequence[RunScore],
    title: str = "Training score",
    notes: Sequence[str] | None = None,
) -> Group:
    """One table of runs with their mean, one of success rates with bars, and notes below them.

    The runs are of one world. The default notes are those of the training protocol.
    """
    lines = [Text(note, "dim") for note in (_protocol_notes(runs) if notes is None else notes)]
    return Group(_runs_table(labels, runs, title), "", _rates_table(runs), *lines)


def score_markdown(labels: Sequence[str], runs: Sequence[RunScore]) -> str:
    """The same figures as Markdown, for a README."""
    lines = [f"| run | steps | episodes | {_measure(runs)} | reward |", "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(labels, runs)]
    lines += ["", "| achievement | success rate % |", "| --- | --- |"]
    lines += [f"| {name} | {rate} |" for name, rate, _ in _rates(runs)]
    return "\n".join(lines) + "\n"


def title_case(name: str) -> str:
    """`collect_coal` -> `Collect coal`."""
    return name.replace("_", " ").capitalize()


def _measure(runs: Sequence[RunScore]) -> str:
    return f"{runs[0].world.measure} %"


def _rows(labels: Sequence[str], runs: Sequence[RunScore]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (label, f"{r.read_at:,}", f"{r.episodes:,}", figure([r.score]), figure([r.reward]))
        for label, r in zip(labels, runs, strict=True)
    ]
    if len(runs) > 1:
        mean = (figure([r.score for r in runs]), figure([r.reward for r in runs]))
        rows.append((f"mean ± std of {len(runs)}", "", "", *mean))
    return rows


def _rates(runs: Sequence[RunScore]) -> list[tuple[str, str, float]]:
    names = dict.fromkeys(name for run in runs for name in run.names)
    rates = []
    for name in names:
        found = [float(r.success_rates[r.names.index(name)]) for r in runs if name in r.names]
        known = [rate for rate in found if np.isfinite(rate)]
        rates.append((title_case(name), figure(found, digits=1), float(np.mean(known)) if known else 0.0))
    return rates


def _runs_table(labels: Sequence[str], runs: Sequence[RunScore], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("run")
    for column in ("steps", "episodes", _measure(runs), "reward"):
        table.add_column(column, justify="right")
    for number, row in enumerate(_rows(labels, runs)):
        if number == len(runs):
            table.add_section()
        table.add_row(*row)
    return table


def _rates_table(runs: Sequence[RunScore]) -> Table:
    table = Table(title="Success rates", title_justify="left", title_style="bold")
    table.add_column("achievement")
    table.add_column("% of episodes", justify="right")
    table.add_column("", width=BAR_WIDTH)
    for name, rate, mean in _rates(runs):
        filled = round(mean / 100 * BAR_WIDTH)
        table.add_row(
            name,
            rate,
            Text("━" * filled, "green") + Text("·" * (BAR_WIDTH - filled), "bright_black"),
        )
    return table


def _protocol_notes(runs: Sequence[RunScore]) -> list[str]:
    windows = sorted({run.reward_window for run in runs})
    world = runs[0].world
    notes = [f"Reward: mean return of the episodes that ended in the last {windows[-1]:,} steps."]
    if world.goal is not None:
        notes = [
            f"{title_case(world.goal)} and reward: success rate and mean return of the episodes that ended in the last "
            f"{windows[-1]:,} steps; the success rates above are those of all episodes."
        ]
    published = world.published_steps
    if published is not None and any(run.read_at < published for run in runs):
        notes.append(f"Read before {published:,} steps, so not comparable with published figures.")
    return notes
