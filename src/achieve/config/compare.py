"""In which settings two configs differ, and in which of them a resumed run may."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from achieve.config.tree import TrainConfig

# How and where a run is computed, not what: a run may be resumed with other values.
RUNTIME_FIELDS = (
    "device", "torch_threads", "tensorboard", "wandb", "checkpoint_seconds", "checkpoint_replay", "replay_device",
    "snapshots", "env.threads",
)  # fmt: skip

# What may differ when a run is resumed: the above, and its length. `achieve.initial.settle` checks the SHA-256.
FREE_FIELDS = (*RUNTIME_FIELDS, "total_steps", "init_sha256")


def differences(one: Any, other: Any, ignoring: Collection[str] = (), prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two configs differ, by dotted name, with both values.

    ``ignoring`` names settings (`seed`, `env.threads`) and tables (`env`) to leave out.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for setting in dataclasses.fields(one):
        name = prefix + setting.name
        mine, theirs = getattr(one, setting.name), getattr(other, setting.name)
        if name in ignoring or mine == theirs:
            continue
        if dataclasses.is_dataclass(mine):
            found |= differences(mine, theirs, ignoring, f"{name}.")
        else:
            found[name] = (mine, theirs)
    return found


def refusal(saved: TrainConfig, wanted: TrainConfig, free: Collection[str], shown: int = 5) -> str | None:
    """Return `ppo.gamma is 0.95 there, 0.8 here; ...` if a saved run differs from the one wanted, else None."""
    unlike = differences(saved, wanted, free).items()
    found = [f"{name} is {there} there, {here} here" for name, (there, here) in unlike]
    return "; ".join(found[:shown]) + (f"; and {len(found) - shown} more" if found[shown:] else "") or None
