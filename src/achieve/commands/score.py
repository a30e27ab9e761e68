"""`achieve score`: score, reward and success rates of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from achieve.commands import console, parse, say
from achieve.errors import ConfigError
from achieve.scoring.episodes import load_episodes, title_case
from achieve.scoring.score import BUDGET, CRAFTER, MeanStd, RunScore, score_run

BAR_WIDTH = 20
BESIDE = 4
"""Most groups whose success rates are shown side by side: as many as fit into 80 columns."""

NamedScore = tuple[str, RunScore]
"""A run's name and figures."""


@dataclass(frozen=True)
class ScoreArguments:
    """Print score, reward and success rates of runs by the training protocol, with mean ± std over seeds.

    Runs that differ in more than their seeds are never averaged.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`)."""
    steps: int | None = None
    """Evaluate at this many environment steps; by default at the run's `score_steps`."""


def run(arguments: list[str]) -> None:
    parsed: ScoreArguments = parse(ScoreArguments, "score", arguments)
    if not parsed.runs:
        raise ConfigError("name at least one run folder")
    show_scores(parsed.runs, parsed.steps)


def show_scores(runs: Sequence[Path], steps: int | None = None) -> None:
    """Print the scores of runs, one table for each environment."""
    from achieve.analysis.runs import group_runs, read_run, repeated

    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}; it must be 1 or more")
    known = [read_run(folder, []) for folder in runs if (folder / "config.json").is_file()]
    known = [run if steps is None else run.read_at(steps) for run in known]
    names = {run.path: run.path.name for run in known}
    notes = []
    # Figures of different environments, or of different layouts, are not comparable: each has its table.
    tables: dict[str, dict[str, list[NamedScore]]] = {}
    for group in group_runs(known):
        env = group.runs[0].config.env
        layout = f" ({', '.join(sorted(env.options))})" if env.options else ""
        rows = tables.setdefault(f"{group.runs[0].spec.title}{layout}", {})
        rows[group.label] = [(names[run.path], run.score) for run in group.runs]
        for run in group.repeats:
            rows[f"{group.label} ({run.path})"] = [(f"{names[run.path]} (seed {run.seed} again)", run.score)]
            notes.append(repeated(run))
    for folder in runs:
        if folder not in names:
            tables.setdefault(CRAFTER.title, {})[str(folder)] = [(folder.name, _log_alone(folder, steps))]
    for title, groups in tables.items():
        console.print(score_tables(groups, "Training score" if len(tables) == 1 else f"Training score, {title}"))
    for run in known:
        if run.config.origin is not None:
            notes.append(f"{run.path.name} {run.config.origin}: its figures are not those of a run from scratch.")
    for note in notes:
        say(note)


def _log_alone(folder: Path, steps: int | None) -> RunScore:
    """Score a log without its config, taken to be Crafter's; it is never averaged with others."""
    from achieve.run.folder import read_summary

    trained = (read_summary(folder) or {}).get("steps")
    return score_run(load_episodes(folder), trained, BUDGET if steps is None else steps)


def score_tables(
    groups: Mapping[str, Sequence[NamedScore]],
    title: str = "Training score",
    notes: Sequence[str] | None = None,
) -> Group:
    """Return a table of runs with a mean for each group, then success rates by group, and notes below them.

    groups: by label, runs that differ only in their seeds; all are of one environment. The default notes are those of
    the training protocol.
    """
    runs = [run for rows in groups.values() for _, run in rows]
    lines = [Text(note, "dim") for note in (_protocol_notes(runs) if notes is None else notes)]
    lines += [Text(note, "dim") for label, rows in groups.items() if (note := _unlike(label, rows))]
    return Group(_runs_table(groups, title), "", *_rates_tables(groups), *lines)


def _unlike(label: str, rows: Sequence[NamedScore]) -> str | None:
    """Say why a group of several runs has no mean; None where it has one."""
    steps = sorted({run.read_at for _, run in rows})
    if len(steps) < 2:
        return None
    at = ", ".join(f"{step:,}" for step in steps)
    return f"{label}: no mean, as runs are evaluated at different steps ({at}); --steps {steps[0]} evaluates all there."


def _runs_table(groups: Mapping[str, Sequence[NamedScore]], title: str) -> Table:
    runs = [run for rows in groups.values() for _, run in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("run", overflow="fold")
    for column in ("steps", "episodes", f"{runs[0].spec.measure} %", "reward"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, rows in groups.items():
        for name, r in rows:
            table.add_row(escape(name), f"{r.read_at:,}", f"{r.episodes:,}", _figure([r.score]), _figure([r.reward]))
        if len(rows) > 1 and not _unlike(label, rows):
            mean = (_figure([r.score for _, r in rows]), _figure([r.reward for _, r in rows]))
            of = f", {escape(label)}" if len(groups) > 1 else ""
            table.add_section()
            table.add_row(f"mean ± std of {len(rows)}{of}", "", "", *mean)
        table.add_section()
    return table


def _rates_tables(groups: Mapping[str, Sequence[NamedScore]]) -> list[Table]:
    """Return rates with bars; of several groups, a few side by side without bars."""
    alike = {label: rows for label, rows in groups.items() if not _unlike(label, rows)}
    alike |= {name: [(name, run)] for label, rows in groups.items() if label not in alike for name, run in rows}
    labels = list(alike)
    return [
        _rates_table({label: alike[label] for label in labels[first : first + BESIDE]}, bars=len(labels) == 1)
        for first in range(0, len(labels), BESIDE)
    ]


def _rates_table(groups: Mapping[str, Sequence[NamedScore]], bars: bool) -> Table:
    table = Table(title="Success rates, % of episodes", title_justify="left", title_style="bold")
    table.add_column("achievement", no_wrap=True)
    for label in groups:
        table.add_column("%" if bars else escape(label), justify="right", overflow="fold", min_width=12)
    if bars:
        table.add_column("", width=BAR_WIDTH)
    for name in dict.fromkeys(name for rows in groups.values() for _, run in rows for name in run.names):
        by_group = [
            [float(run.success_rates[run.names.index(name)]) for _, run in rows if name in run.names]
            for rows in groups.values()
        ]
        cells: list[str | Text] = [_figure(rates, digits=1) for rates in by_group]
        if bars:
            known = [rate for rate in by_group[0] if np.isfinite(rate)]
            filled = round(float(np.mean(known)) / 100 * BAR_WIDTH) if known else 0
            cells.append(Text("━" * filled, "green") + Text("·" * (BAR_WIDTH - filled), "bright_black"))
        table.add_row(title_case(name), *cells)
    return table


def _protocol_notes(runs: Sequence[RunScore]) -> list[str]:
    windows = sorted({run.reward_window for run in runs})
    spec = runs[0].spec
    notes = [f"Reward: mean return of the episodes that ended in the last {windows[-1]:,} steps."]
    if spec.goal is not None:
        notes = [
            f"{title_case(spec.goal)} and reward: success rate and mean return of the episodes that ended in the last "
            f"{windows[-1]:,} steps; the success rates above are over all episodes."
        ]
    published = spec.published_steps
    if published is not None and any(run.read_at < published for run in runs):
        notes.append(f"Evaluated before {published:,} steps, so not comparable with published results.")
    return notes


def _figure(values: Sequence[float], digits: int = 2) -> str:
    return str(MeanStd.of(values, digits) or "-")
