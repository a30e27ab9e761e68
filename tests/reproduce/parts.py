"""Runs, folders and settings for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.commands.reproduce import needed_runs
from achieve.config import to_dict
from achieve.reproduce.executor import Order
from achieve.reproduce.experiments import Experiment
from achieve.reproduce.plan import RunSpec
from achieve.reproduce.process import Outcome
from achieve.run.logs import JsonlWriter

# The sizes of tests/system/tiny.py as flags: what follows `--` in `achieve reproduce`.
TINY = [
    *("--device", "cpu", "--torch-threads", "1", "--total-steps", "3072", "--score-steps", "3072"),
    *("--env.num-envs", "4", "--env.threads", "1"),
    *("--model.encoder", "strided", "--model.channels", "4", "8", "8"),
    *("--model.dense-size", "16", "--model.hidden-size", "32"),
    *("--ppo.rollout-length", "64", "--ppo.num-epochs", "1", "--ppo.num-minibatches", "2"),
    *("--distill.rollouts-per-phase", "4", "--distill.num-epochs", "1"),
]


def some_runs(*presets: str, seeds: int = 1, flags: tuple[str, ...] = ()) -> list[RunSpec]:
    return needed_runs({"some": Experiment("", presets)}, range(seeds), flags)


def write_run(
    folder: Path, run: RunSpec, *, summary: dict[str, Any] | None = None, step: int | None = None, **changes: Any
) -> Path:
    """A run's folder as a finished (`summary`) or stopped (`step`) run leaves it; `changes` are to its config."""
    path = folder / run.name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"config": {**to_dict(run.config), **changes}, "starts": []}))
    if step is not None:
        with JsonlWriter(path / "metrics.jsonl") as metrics:
            metrics.write({"kind": "ppo", "step": step, "score": 1.25, "mean_return": 0.5})
    if summary is not None:
        (path / "summary.json").write_text(json.dumps({"steps": run.config.planned_steps, **summary}))
    return path


def without_processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have runs made in this process, as starting one costs seconds; returns the names of those made, as they are."""
    made: list[str] = []

    def train_here(order: Order) -> Outcome:
        train(order.run.config, order.folder, quiet=True)
        made.append(order.run.name)
        return Outcome(0, [])

    monkeypatch.setattr("achieve.reproduce.executor.train", train_here)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
