"""`achieve score`: score, reward and success rates of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve import config as configs
from achieve.commands import console, parse, say
from achieve.envs import find_world
from achieve.errors import ConfigError
from achieve.run.files import read_json


@dataclass(frozen=True)
class ScoreArguments:
    """Score, reward and success rates of runs, by the training protocol, with mean and deviation over them."""

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
    from achieve.analysis.episodes import load_episodes
    from achieve.analysis.report import score_tables
    from achieve.analysis.score import BUDGET, CRAFTER, RunScore, score_run
    from achieve.run.folder import read_summary

    # Figures of different worlds are not comparable: each has its table, and its mean over runs. A layout of its own
    # makes a world of its own.
    tables: dict[tuple[str, tuple[str, ...]], list[tuple[str, RunScore]]] = {}
    for run in runs:
        saved = _saved_config(run / "config.json") if (run / "config.json").is_file() else None
        world = find_world(saved.env.name) if saved else CRAFTER
        budget = steps if steps is not None else saved.score_steps if saved else BUDGET
        if budget < 1:
            raise ConfigError(f"steps is {budget}; it must be 1 or more")
        # A finished run went on after its last episode; an unfinished one is read at the last one's end.
        taken = (read_summary(run) or {}).get("steps")
        score = score_run(load_episodes(run), taken, budget, world)
        options = tuple(sorted(saved.env.options)) if saved else ()
        tables.setdefault((world.name, options), []).append((run.name, score))
    for (_, options), rows in tables.items():
        labels, scores = zip(*rows, strict=True)
        layout = f" ({', '.join(options)})" if options else ""
        title = "Training score" if len(tables) == 1 else f"Training score, {scores[0].world.title}{layout}"
        console.print(score_tables(labels, scores, title))
    _say_origins(runs)


def _say_origins(runs: Sequence[Path]) -> None:
    """Figures of runs that did not start from scratch are not to be taken for those of others."""
    for run in runs:
        saved = _saved_config(run / "config.json") if (run / "config.json").is_file() else None
        if saved is not None and saved.origin is not None:
            say(f"{run.name} {saved.origin}: its figures are not those of a run from scratch.")


def _saved_config(path: Path) -> configs.TrainConfig:
    from achieve.run.folder import read_config

    saved = read_config(path) if path.is_dir() else read_json(path)
    return configs.from_dict(saved.get("config", saved))
