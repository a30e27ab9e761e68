"""Configs as JSON: those of this version, and as far as they can be read those of others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from achieve.config.checks import validate
from achieve.config.compare import RUNTIME_FIELDS
from achieve.config.tree import EXTERNAL, DistillConfig, TrainConfig
from achieve.envs.registry import find_env_spec
from achieve.errors import ConfigError
from achieve.migration import migrate
from achieve.plugins import OBJECTIVE_NAMES, is_plugin
from achieve.settings import UnfitError, convert

# Fields without effect, by trainer.
_UNUSED = {
    "ppo": ("trainer", "qrdqn", "checkpoint_replay", "replay_device"),
    "qrdqn": ("ppo",),
    EXTERNAL: (
        "ppo", "qrdqn", "model", "distill", "total_steps", "init_from", "init_sha256", "precision", "compile",
        "callbacks", *(name for name in RUNTIME_FIELDS if "." not in name),
    ),
}  # fmt: skip


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the config as JSON has it, without what has no effect on its trainer."""
    tree: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    for name in _UNUSED.get(config.trainer, ()):
        del tree[name]
    tree["env"]["unlock_threshold"] = config.env.threshold
    return tree


def from_dict(data: Mapping[str, Any]) -> TrainConfig:
    """Return the config that :func:`to_dict` wrote; raise :class:`ConfigError` for anything else."""
    try:
        config: TrainConfig = convert(TrainConfig, migrate(data) if isinstance(data, Mapping) else data)
    except UnfitError as error:
        raise ConfigError(str(error)) from None
    if config.env.unlock_threshold == find_env_spec(config.env.name).unlock_threshold:
        config = replace(config, env=replace(config.env, unlock_threshold=None))
    validate(config)
    return config


def from_any_version(data: Mapping[str, Any]) -> tuple[TrainConfig, dict[str, Any]]:
    """Return a saved config as far as this version has its settings, and by dotted name those that it does not have.

    Objectives that it does not have count as such a setting. A run of a later version, or of somebody's own, can then
    at least be scored; it must not be continued.
    """
    known: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    _sort_settings(TrainConfig, migrate(data), "", known, unknown)
    _sort_objectives(known.get("distill"), unknown)
    return from_dict(known if "preset" in known else data), unknown  # which else is hardly a run of any version


def _sort_settings(
    table: Any, data: Mapping[str, Any], prefix: str, known: dict[str, Any], unknown: dict[str, Any]
) -> None:
    tables = {setting.name: setting.default_factory for setting in dataclasses.fields(table)}
    for name, value in data.items():
        if name not in tables:
            unknown[f"{prefix}{name}"] = value
        elif dataclasses.is_dataclass(tables[name]) and isinstance(value, Mapping):
            _sort_settings(tables[name], value, f"{prefix}{name}.", known.setdefault(name, {}), unknown)
        else:
            known[name] = value


def _sort_objectives(distill: Any, unknown: dict[str, Any]) -> None:
    """Replace objectives that this version does not have, if there are any; `unknown` then has the list as it was."""
    named = distill.get("objectives") if isinstance(distill, dict) else None
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        return  # missing, or for `from_dict` to refuse
    ours = [name for name in named if name in OBJECTIVE_NAMES or is_plugin(name)]
    if ours != named:
        unknown["distill.objectives"] = named
        distill["objectives"] = ours or list(DistillConfig.objectives)
