"""A run small enough to train in seconds: Crafter with a very small network, two phases of distillation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from achieve.config import TrainConfig, from_dict

NAME = "tiny"
NUM_ENVS = 4
ROLLOUT = 64
ROLLOUTS_PER_PHASE = 4
PHASES = 2
STEPS = NUM_ENVS * ROLLOUT * ROLLOUTS_PER_PHASE * PHASES

SETTINGS: dict[str, Any] = {
    "preset": NAME,
    "total_steps": STEPS,
    "score_steps": STEPS,
    "device": "cpu",
    "torch_threads": 1,
    "checkpoint_seconds": 1e9,  # saved before each phase and at the end, whatever the clock says
    "env": {"num_envs": NUM_ENVS, "threads": 1},
    "model": {"encoder": "strided", "channels": [4, 8, 8], "dense_size": 16, "hidden_size": 32},
    "ppo": {"rollout_length": ROLLOUT, "num_epochs": 1, "num_minibatches": 2},
    "distill": {
        "rollouts_per_phase": ROLLOUTS_PER_PHASE,
        "num_epochs": 1,
        # Below the length of most episodes, so that they are split as the long ones of a real run are.
        "batch_size": 128,
    },
}


def tiny_config(**changes: Any) -> TrainConfig:
    """The tiny run's config; settings of a group are given as a dictionary and change only what they name."""
    merged = {
        name: {**SETTINGS.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return from_dict({**SETTINGS, **merged})


def write_settings(path: Path, **changes: Any) -> Path:
    """The same as a file for `--config`."""
    from achieve.config import to_dict

    path.write_text(json.dumps(to_dict(tiny_config(**changes))))
    return path
