"""Run folders: what is in them, and what two of them must have in common to be the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from achieve.run.checkpoint import load_checkpoint

FILES = {
    "config.json",
    "episodes.jsonl",
    "metrics.jsonl",
    "checkpoint",
    "weights.safetensors",
    "summary.json",
}
# What depends on when, where and how fast, not on what was computed.
CLOCK = ("seconds", "steps_per_second", "runs_at_once", "host_gib", "gpu_gib", "machine", "versions", "commit")


def checkpoint_file(folder: Path) -> Path:
    return folder / "checkpoint" / "checkpoint.safetensors"


def half_written(folder: Path) -> Path:
    """What exists while a checkpoint is being written."""
    return folder / "checkpoint" / ".checkpoint.safetensors.tmp"


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_clock(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics or a summary without what the clock decides."""
    return {
        name: value
        for name, value in row.items()
        if name not in CLOCK and not name.startswith("seconds_") and not name.endswith("_per_second")
    }


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes by name, without the lock and the record of starts."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
    if "config.json" in found:
        found["config.json"] = json.dumps(json.loads(found["config.json"])["config"]).encode()
    return found


def assert_same_run(run: Path, other: Path) -> None:
    """Bit for bit: weights, episodes, metrics and summary apart from the clock's share, the last checkpoint."""
    assert (run / "episodes.jsonl").read_bytes() == (other / "episodes.jsonl").read_bytes()
    assert (run / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()
    metrics, others = (
        [without_clock(row) for row in rows(path / "metrics.jsonl")] for path in (run, other)
    )
    assert metrics == others
    summary, theirs = (without_clock(read(path / "summary.json")) for path in (run, other))
    assert summary == theirs
    assert_same_checkpoint(run, other)


def assert_same_checkpoint(run: Path, other: Path) -> None:
    saved, theirs = (load_checkpoint(path / "checkpoint") for path in (run, other))
    assert saved is not None and theirs is not None
    assert saved.tensors.keys() == theirs.tensors.keys()
    for name, tensor in saved.tensors.items():
        assert torch.equal(tensor, theirs.tensors[name]), name
    # The metrics' length follows from the digits of its seconds, and the files of rows from when it was saved.
    clock = ("seconds", "latest", "under_way", "metrics", "files", "kept_files")
    states = [
        {name: value for name, value in one.state.items() if name not in clock}
        for one in (saved, theirs)
    ]
    assert states[0] == states[1]
