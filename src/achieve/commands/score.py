"""`achieve score`: score, reward and success rates of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from achieve.commands import console, parse, say
from achieve.errors import ConfigError
from achieve.run.folder import read_summary
from achieve.scoring.episodes import load_episodes, title_case
from achieve.scoring.score import BUDGET, CRAFTER, MeanStd, RunScore, score_run

BAR_WIDTH = 20
BESIDE = 4
"""Most groups whose success rates are shown side by side: as many as fit into 80 columns."""

NamedScore = tuple[str, RunScore]
"""A run's name and figures."""


def run(arguments: list[str]) -> None:
    parse(show_scores, "score", arguments)


def show_scores(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")], steps: int | None = None
) -> None:
    """Print score, reward and success rates of runs by the training protocol, with mean ± std over seeds.

    Runs that differ in more than their seeds are never averaged; each environment has a table of its own.

    Args:
        runs: Run folders (or folders of `results/`).
        steps: Evaluate at this many environment steps; by default at the run's `score_steps`.
    """
    from achieve.analysis.runs import group_runs, other_code, read_run, repeated, runs_among

    if not runs:
        raise ConfigError("name at least one run folder")
    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}; it must be 1 or more")
    folders = runs_among(runs)
    known = [read_run(folder, []) for folder in folders if (folder / "config.json").is_file()]
    known = [run if steps is None else run.read_at(steps) for run in known]
    notes = []
    # Figures of different environments, or of different layouts, are not comparable: each has its table.
    tables: dict[str, dict[str, list[NamedScore]]] = {}
    for group in group_runs(known):
        rows = tables.setdefault(group.runs[0].game, {})
        rows[group.label] = [(run.path.name, run.score) for run in group.runs]
        for run in group.repeats:
            rows[f"{group.label} ({run.path})"] = [(f"{run.path.name} (seed {run.seed} again)", run.score)]
            notes.append(repeated(run))
        notes += other_code(group)
    for folder in (folder for folder in folders if not (folder / "config.json").is_file()):
        # A log without its config is taken to be Crafter's, and never averaged with others.
        trained = (read_summary(folder) or {}).get("steps")
        score = score_run(load_episodes(folder), trained, BUDGET if steps is None else steps)
        tables.setdefault(CRAFTER.title, {})[str(folder)] = [(folder.name, score)]
    for title, groups in tables.items():
        console.print(score_tables(groups, "Training score" if len(tables) == 1 else f"Training score, {title}"))
    for run in known:
        if run.config.origin is not None:
            notes.append(f"{run.path.name} {run.config.origin}: not comparable with runs from scratch.")
    for note in notes:
        say(note)


def score_tables(
    groups: Mapping[str, Sequence[NamedScore]], title: str = "Training score", notes: Sequence[str] | None = None
) -> Group:
    """Return a table of runs with a mean for each group, then success rates by group, and notes below them.

    groups: by label, runs that differ only in their seeds; all are of one environment. The default notes are those of
    the training protocol.
    """
    runs = [run for rows in groups.values() for _, run in rows]
    lines = list(_protocol_notes(runs) if notes is None else notes)
    alike: dict[str, Sequence[NamedScore]] = {}
    for label, rows in groups.items():
        steps = sorted({run.read_at for _, run in rows})
        alike |= {label: rows} if len(steps) == 1 else {name: [(name, run)] for name, run in rows}
        if len(steps) > 1:
            at = f"({', '.join(f'{step:,}' for step in steps)}); --steps {steps[0]} evaluates all there."
            lines.append(f"{label}: no mean, as runs are evaluated at different steps {at}")
    table = _table(title, "run", ("steps", "episodes", f"{runs[0].spec.measure} %", "reward"))
    for label, rows in alike.items():
        for name, r in rows:
            table.add_row(escape(name), f"{r.read_at:,}", f"{r.episodes:,}", _figure([r.score]), _figure([r.reward]))
        if len(rows) > 1:
            table.add_section()
            mean = _figure([r.score for _, r in rows]), _figure([r.reward for _, r in rows])
            of = f", {escape(label)}" if len(alike) > 1 else ""
            table.add_row(f"mean ± std of {len(rows)}{of}", "", "", *mean)
            table.add_section()
    labels = list(alike)
    parts = [{label: alike[label] for label in labels[n : n + BESIDE]} for n in range(0, len(labels), BESIDE)]
    rates = [_rates_table(part, bars=len(labels) == 1) for part in parts]
    return Group(table, "", *rates, *(Text(line, "dim") for line in lines))


def _rates_table(groups: Mapping[str, Sequence[NamedScore]], bars: bool) -> Table:
    """Return success rates: of one group with bars, of several side by side."""
    table = _table("Success rates, % of episodes", "achievement", ("%",) if bars else map(escape, groups), min_width=12)
    if bars:
        table.add_column("", width=BAR_WIDTH)
    for name in dict.fromkeys(name for rows in groups.values() for _, run in rows for name in run.names):
        by_group = [
            [float(run.success_rates[run.names.index(name)]) for _, run in rows if name in run.names]
            for rows in groups.values()
        ]
        cells: list[str | Text] = [_figure(rates, digits=1) for rates in by_group]
        if bars:
            mean = MeanStd.of(by_group[0])
            filled = round(mean.mean / 100 * BAR_WIDTH) if mean else 0
            cells.append(Text("━" * filled, "green") + Text("·" * (BAR_WIDTH - filled), "bright_black"))
        table.add_row(title_case(name), *cells)
    return table


def _table(title: str, first: str, numbers: Iterable[str], min_width: int | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", overflow="fold", no_wrap=min_width is None, min_width=min_width)
    return table


def _protocol_notes(runs: Sequence[RunScore]) -> list[str]:
    spec, window = runs[0].spec, max(run.reward_window for run in runs)
    notes = [f"Reward: mean return of the episodes that ended in the last {window:,} steps."]
    if spec.goal is not None:
        notes = [
            f"{title_case(spec.goal)} and reward: success rate and mean return of the episodes that ended in the last "
            f"{window:,} steps; the success rates above are over all episodes."
        ]
    if spec.published_steps is not None and any(run.read_at < spec.published_steps for run in runs):
        notes.append(f"Evaluated before {spec.published_steps:,} steps, so not comparable with published results.")
    return notes


def _figure(values: Iterable[float], digits: int = 2) -> str:
    return str(MeanStd.of(values, digits) or "-")
