"""`achieve score`: score, reward and success rates of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve import config as configs
from achieve.commands import console, parse, say
from achieve.errors import ConfigError
from achieve.run.files import read_json
from achieve.scoring.score import BUDGET, CRAFTER, RunScore, score_run


@dataclass(frozen=True)
class ScoreArguments:
    """Score, reward and success rates of runs, by the training protocol, with mean and deviation over seeds.

    Runs that differ in more than their seeds are never averaged.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders (or folders of `results/`)."""
    steps: int | None = None
    """Read the figures at this many environment steps; by default at the run's `score_steps`."""


def run(arguments: list[str]) -> None:
    parsed: ScoreArguments = parse(ScoreArguments, "score", arguments)
    if not parsed.runs:
        raise ConfigError("name at least one run folder")
    _show_scores(parsed.runs, parsed.steps)


def _show_scores(runs: Sequence[Path], steps: int | None) -> None:
    from achieve.analysis.report import Row, score_tables
    from achieve.analysis.runs import group_runs, read_run, repeated

    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}; it must be 1 or more")
    known = [read_run(folder, []) for folder in runs if (folder / "config.json").is_file()]
    known = [run if steps is None else run.read_at(steps) for run in known]
    names = {run.path: run.path.name for run in known}
    notes = []
    # Figures of different worlds are not comparable: each has its table. A layout of its own makes a world of its own.
    tables: dict[str, dict[str, list[Row]]] = {}
    for group in group_runs(known):
        env = group.runs[0].config.env
        layout = f" ({', '.join(sorted(env.options))})" if env.options else ""
        rows = tables.setdefault(f"{group.runs[0].world.title}{layout}", {})
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
    """The figures of a log without its config, taken for one of Crafter; nobody knows what it may be averaged with."""
    from achieve.run.folder import read_summary
    from achieve.scoring.episodes import load_episodes

    taken = (read_summary(folder) or {}).get("steps")
    return score_run(load_episodes(folder), taken, BUDGET if steps is None else steps)


def _saved_config(path: Path) -> configs.TrainConfig:
    from achieve.run.folder import read_config

    saved = read_config(path) if path.is_dir() else read_json(path)
    return configs.from_dict(saved.get("config", saved))
