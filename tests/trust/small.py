"""Runs of every kind that take tenths of a second, trained in this process, and what two of them must have alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from achieve.config import TrainConfig, from_dict
from achieve.run.weights import load_weights
from tests.system.runs import read, rows, without_clock

ENVIRONMENT = "tiny"
_MODEL = {"encoder": "strided", "channels": [2, 4, 4], "dense_size": 8, "hidden_size": 8}
_BASE: dict[str, Any] = {
    "preset": "small", "device": "cpu", "torch_threads": 1,
    "env": {"name": ENVIRONMENT, "num_envs": 4, "threads": 1},
}  # fmt: skip
_PPO = {"rollout_length": 12, "num_epochs": 2, "num_minibatches": 2}
_VALUES = {
    "target_update": 48, "replay_size": 144, "learning_starts": 40, "num_quantiles": 3, "batch_size": 4,
    "epsilon_steps": 100,
}  # fmt: skip
_NO_DISTILL = {"enabled": False, "matching": False}

KINDS: dict[str, dict[str, Any]] = {
    "ppo": {**_BASE, "total_steps": 144, "model": {**_MODEL, "memory": False}, "ppo": _PPO, "distill": _NO_DISTILL},
    "ad": {
        **_BASE, "total_steps": 192, "model": _MODEL, "ppo": _PPO,
        "distill": {"rollouts_per_phase": 3, "num_epochs": 1, "batch_size": 8},
    },
    "ad-rare": {
        **_BASE, "total_steps": 192, "model": _MODEL,
        "ppo": {**_PPO, "rarity_power": 0.5, "imitation_coef": 0.05, "imitation_batch": 4, "imitation_capacity": 16},
        "distill": {
            "rollouts_per_phase": 3, "num_epochs": 1, "batch_size": 8, "sources_per_update": 3, "shared_targets": True,
        },
    },
    "ad-gru": {
        **_BASE, "total_steps": 192, "model": {**_MODEL, "core": "gru", "core_size": 6},
        "ppo": {**_PPO, "chunk_length": 4, "burn_in": 2},
        "distill": {"rollouts_per_phase": 3, "num_epochs": 1, "batch_size": 8},
    },
    "qrdqn": {
        **_BASE, "trainer": "qrdqn", "total_steps": 192, "qrdqn": _VALUES, "distill": _NO_DISTILL,
        "model": {**_MODEL, "memory": False, "normalize_value": False},
    },
    "qrdqn-ad": {
        **_BASE, "trainer": "qrdqn", "total_steps": 192, "qrdqn": _VALUES,
        "distill": {"num_epochs": 1, "batch_size": 8}, "model": {**_MODEL, "normalize_value": False},
    },
}  # fmt: skip


def small_config(kind: str, **changes: Any) -> TrainConfig:
    """The config of a kind; settings of a table are given as a dictionary and change only what they name."""
    settings = KINDS[kind]
    merged = {
        name: {**settings.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return from_dict({**settings, "score_steps": settings["total_steps"], **merged})


def assert_same_outcome(run: Path, other: Path) -> None:
    """Bit for bit: weights, episodes, and metrics and summary apart from the clock's share."""
    assert (run / "episodes.jsonl").read_bytes() == (other / "episodes.jsonl").read_bytes()
    weights, theirs = (load_weights(path / "weights.safetensors")[0] for path in (run, other))
    assert weights.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in weights.items())
    metrics, others = ([without_clock(row) for row in rows(path / "metrics.jsonl")] for path in (run, other))
    assert metrics == others
    summaries = [without_clock(read(path / "summary.json")) for path in (run, other)]
    for summary in summaries:
        del summary["weights_sha256"]  # of a file that also holds how often the run was saved
    assert summaries[0] == summaries[1]
