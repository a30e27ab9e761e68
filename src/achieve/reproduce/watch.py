"""A run seen from outside: how far its own log says it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

_TAIL = 65536


class Reading(NamedTuple):
    """The latest figures of a run; None where the log has none yet."""

    step: int
    score: float | None = None
    mean_return: float | None = None
    gpu_gib: float | None = None
    host_gib: float | None = None


def read_progress(folder: Path) -> Reading | None:
    """What the end of a run's `metrics.jsonl` says; None before its first line.

    A half-written last line, or one that is no JSON, is passed over: the run is still writing, or was killed doing so.
    """
    found: dict[str, Any] = {}
    for row in reversed(_last_rows(folder / "metrics.jsonl")):
        for name, value in row.items():
            key = "score" if name.endswith("_success_rate") else name
            found.setdefault(key, value)
    if not isinstance(found.get("step"), int):
        return None
    numbers = {name: _number(found.get(name)) for name in Reading._fields if name != "step"}
    return Reading(found["step"], **numbers)


def score_of(summary: dict[str, Any]) -> float | None:
    """A finished run's measure: its score, or in a world with a goal that achievement's success rate."""
    for name, value in summary.items():
        if name == "score" or name.endswith("_success_rate"):
            return _number(value)
    return None


def score_words(score: float | None) -> str:
    """The measure in a sentence."""
    return "no episode ended in it" if score is None else f"score {score:.2f}"


def _last_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    if size > _TAIL:
        lines = lines[1:]
    rows = []
    for line in lines[:-1]:  # what follows the last newline is nothing, or half a line
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
