"""Run folders as training leaves them, made by hand so that every figure is known."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from achieve.config import TrainConfig, to_dict
from achieve.presets import PRESETS

NAMES = {
    "crafter": ("collect_wood", "place_table", "collect_diamond"),
    "minigrid": ("open_grey", "take_red"),
    "heist": ("lock", "gem"),
}
MACHINE = {"cpu": "Some CPU", "cores": 4, "memory_gib": 8.0, "gpus": [{"name": "Some GPU", "memory_gib": 80.0}]}


def make_run(
    folder: Path,
    preset: str = "ad",
    seed: int = 0,
    *,
    wood: float = 0.5,
    reward: float = 10.0,
    steps: int | None = None,
    finished: bool = True,
    zipped: bool = False,
    config: TrainConfig | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    """A run of 200 episodes: the first achievement in a share `wood` of them, the second in all, the others in none."""
    config = replace(config or PRESETS[preset], seed=seed)
    steps = config.score_steps if steps is None else steps
    names = NAMES.get(config.env.name, ("something",))
    ends = np.linspace(0, steps, 201).astype(int)
    lengths = np.diff(ends)
    unlocked = np.random.default_rng(seed).permutation(200) < round(200 * wood)
    rows = []
    for end, length, first in zip(ends[1:].tolist(), lengths.tolist(), unlocked.tolist(), strict=True):
        counts = dict.fromkeys(names, 0) | ({names[1]: 1} if names[1:] else {}) | {names[0]: int(first)}
        row = {"step": end, "length": length, "reward": reward}
        rows.append(json.dumps(row | {f"achievement_{name}": count for name, count in counts.items()}) + "\n")
    folder.mkdir(parents=True)
    start = {"command": f"achieve train --preset {preset} --seed {seed}", "machine": MACHINE, "commit": "abc"}
    (folder / "config.json").write_text(json.dumps({"config": to_dict(config), "starts": [start]}))
    if zipped:
        (folder / "episodes.jsonl.gz").write_bytes(gzip.compress("".join(rows).encode()))
    else:
        (folder / "episodes.jsonl").write_text("".join(rows))
    if finished:
        told: dict[str, Any] = {
            "preset": preset,
            "seed": seed,
            "steps": steps,
            "parameters": 1234,
            "seconds": {"start": 6.0, "rollout": 54.0, "total": 60.0},
            "steps_per_second": 100.0,
            "gpu_gib": 2.0,
            "host_gib": 1.0,
            "arithmetic": "fp16",
            "machine": MACHINE,
            "versions": {"torch": "2.11.0"},
        }
        (folder / "summary.json").write_text(json.dumps(told | (summary or {})))
    return folder


def score(*rates: float) -> float:
    """The score of success rates in percent, spelled out."""
    return float(np.exp(np.mean([np.log(1 + rate) for rate in rates])) - 1)
