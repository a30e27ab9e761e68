"""Configs written by earlier versions, in the words of this one.

Every config that comes from a file passes through :func:`migrate` before anything looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from achieve.errors import ConfigError
from achieve.settings import shown

RENAMED = {"algo": "ppo"}
"""Tables and settings of the whole config, by the name they had before."""

FORGOTTEN = ("checkpoint_every",)
"""Settings of the whole config that are no more and decided nothing of what is computed."""

REMOVED: dict[str, dict[str, Any]] = {
    "qrdqn": {
        "n_step": 1, "dueling": False, "frame_stack": 1,
        "prioritized": False, "priority_exponent": 0.5, "priority_beta": 0.4,
    },
}  # fmt: skip
"""Settings that are no more, by table, with the value that means what is done today."""


def migrate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same config under today's names; what is of today already is left as it is.

    Raises:
        ConfigError: for a setting that is no more and was not left at its default.
    """
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
    """The table in which `matching` and `order` said what `objectives` says now."""
    left = {name: value for name, value in distill.items() if name not in ("matching", "order")}
    if distill.get("enabled", True) and distill.get("matching") is False:
        return {**left, "objectives": ["prediction"]}
    if distill.get("order") == "prediction-first":
        return {**left, "objectives": ["prediction", "matching"]}
    return left
