"""Configs of earlier versions, translated to this one.

Every config that comes from a file passes through :func:`migrate` before anything looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from achieve.errors import ConfigError
from achieve.settings import shown

RENAMED = {"algo": "ppo", "learner": "trainer"}
"""Tables and settings of the config by their former names."""

FORGOTTEN = ("checkpoint_every",)
"""Removed settings that had no effect on what is computed."""

REMOVED: dict[str, dict[str, Any]] = {
    "qrdqn": {
        "n_step": 1, "dueling": False, "frame_stack": 1,
        "prioritized": False, "priority_exponent": 0.5, "priority_beta": 0.4,
    },
}  # fmt: skip
"""Removed settings by table, with the value that corresponds to what is done today."""


def migrate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config in the form of this version; raise ConfigError for a removed setting with another value."""
    renamed = {RENAMED.get(name, name): value for name, value in config.items() if name not in FORGOTTEN}
    for table, settings in REMOVED.items():
        values = renamed.get(table)
        if not isinstance(values, Mapping):
            continue
        for name, default in settings.items():
            if values.get(name, default) != default:
                raise ConfigError(
                    f"{table}.{name} is {shown(values[name])}, and this version has no such setting any more; run it "
                    f"with the version that wrote it, or leave the setting out to have what was {default!r} before"
                )
        renamed[table] = {name: value for name, value in values.items() if name not in settings}
    if isinstance(renamed.get("distill"), Mapping):
        renamed["distill"] = _with_objectives(renamed["distill"])
    return renamed


def _with_objectives(distill: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with `objectives` instead of the former `matching` and `order`."""
    left = {name: value for name, value in distill.items() if name not in ("matching", "order")}
    if distill.get("enabled", True) and distill.get("matching") is False:
        return {**left, "objectives": ["prediction"]}
    if distill.get("order") == "prediction-first":
        return {**left, "objectives": ["prediction", "matching"]}
    return left
