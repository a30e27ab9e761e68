"""The tables `achieve score` and `achieve eval` print."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from achieve.scoring.score import RunScore, mean_std

BAR_WIDTH = 20
BESIDE = 4
"""Groups whose success rates stand beside each other, at most: so many fit into 80 columns."""


def figure(values: Sequence[float], digits: int = 2) -> str:
    """`21.79 ± 1.37` over several runs, `21.79` for one, a dash where there is no value."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "-"
    mean, std = mean_std(finite)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if len(finite) > 1 else "")


Row = tuple[str, RunScore]
"""A run's label and figures."""


def score_tables(
    groups: Mapping[str, Sequence[Row]],
    title: str = "Training score",
    notes: Sequence[str] | None = None,
) -> Group:
    """One table of runs with a mean for each group, then success rates by group, and notes below them.

    groups: by label, runs that are alike; all are of one world. The default notes are those of the training protocol.
    """
    runs = [run for rows in groups.values() for _, run in rows]
    lines = [Text(note, "dim") for note in (_protocol_notes(runs) if notes is None else notes)]
    lines += [Text(note, "dim") for label, rows in groups.items() if (note := _unlike(label, rows))]
    return Group(_runs_table(groups, title), "", *_rates_tables(groups), *lines)


def title_case(name: str) -> str:
    """`collect_coal` -> `Collect coal`."""
    return name.replace("_", " ").capitalize()


def _measure(runs: Sequence[RunScore]) -> str:
    return f"{runs[0].world.measure} %"


def _unlike(label: str, rows: Sequence[Row]) -> str | None:
    """Why a group has no mean though it has several runs; None where it has one."""
    steps = sorted({run.read_at for _, run in rows})
    if len(steps) < 2:
        return None
    at = ", ".join(f"{step:,}" for step in steps)
    return f"{label}: read at different steps ({at}), so without a mean; --steps {steps[0]} reads all of them there."


def _runs_table(groups: Mapping[str, Sequence[Row]], title: str) -> Table:
    runs = [run for rows in groups.values() for _, run in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("run", overflow="fold")
    for column in ("steps", "episodes", _measure(runs), "reward"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, rows in groups.items():
        for name, r in rows:
            table.add_row(escape(name), f"{r.read_at:,}", f"{r.episodes:,}", figure([r.score]), figure([r.reward]))
        if len(rows) > 1 and not _unlike(label, rows):
            mean = (figure([r.score for _, r in rows]), figure([r.reward for _, r in rows]))
            of = f", {escape(label)}" if len(groups) > 1 else ""
            table.add_section()
            table.add_row(f"mean ± std of {len(rows)}{of}", "", "", *mean)
        table.add_section()
    return table


def _rates_tables(groups: Mapping[str, Sequence[Row]]) -> list[Table]:
    """Rates with bars; of several groups, a few beside each other without bars."""
    alike = {label: rows for label, rows in groups.items() if not _unlike(label, rows)}
    alike |= {name: [(name, run)] for label, rows in groups.items() if label not in alike for name, run in rows}
    labels = list(alike)
    return [
        _rates_table({label: alike[label] for label in labels[first : first + BESIDE]}, bars=len(labels) == 1)
        for first in range(0, len(labels), BESIDE)
    ]


def _rates_table(groups: Mapping[str, Sequence[Row]], bars: bool) -> Table:
    table = Table(title="Success rates, % of episodes", title_justify="left", title_style="bold")
    table.add_column("achievement", no_wrap=True)
    for label in groups:
        table.add_column("%" if bars else escape(label), justify="right", overflow="fold", min_width=12)
    if bars:
        table.add_column("", width=BAR_WIDTH)
    for name in dict.fromkeys(name for rows in groups.values() for _, run in rows for name in run.names):
        found = [
            [float(run.success_rates[run.names.index(name)]) for _, run in rows if name in run.names]
            for rows in groups.values()
        ]
        cells: list[str | Text] = [figure(rates, digits=1) for rates in found]
        if bars:
            known = [rate for rate in found[0] if np.isfinite(rate)]
            filled = round(float(np.mean(known)) / 100 * BAR_WIDTH) if known else 0
            cells.append(Text("━" * filled, "green") + Text("·" * (BAR_WIDTH - filled), "bright_black"))
        table.add_row(title_case(name), *cells)
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
