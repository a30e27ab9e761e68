"""A run seen from outside: how far its own log says it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from achieve.settings import parse_json

_TAIL = 65536


class Reading(NamedTuple):
    """The latest step of a run, and its score so far; None before its first episode has ended."""

    step: int
    score: float | None = None


def read_progress(folder: Path) -> Reading | None:
    """Return what the end of a run's `metrics.jsonl` says; None before its first line.

    A half-written last line, or one that is not JSON, is skipped: the run is still writing, or was killed doing so.
    """
    rows = _last_rows(folder / "metrics.jsonl")
    steps = [row["step"] for row in rows if isinstance(row.get("step"), int)]
    scores = [score for row in rows if (score := score_of(row)) is not None]
    return Reading(steps[-1], scores[-1] if scores else None) if steps else None


def score_of(row: dict[str, Any]) -> float | None:
    """Return the measure in a summary or a line of metrics: the score, or the success rate of the goal."""
    for name, value in row.items():
        if name == "score" or name.endswith("_success_rate"):
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
            return float(value) if number else None
    return None


def _last_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines[:-1]:  # what follows the last newline is nothing, or half a line
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
