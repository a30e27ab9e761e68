"""Code that files name: weights, configs and checkpoints run none of it unless the user agrees.

A config may name code as ``module:name``: an environment, its options, an encoder, a trainer. Using the config imports
that module. If the config comes from a file, :func:`trusted` refuses modules that the user has not named as well,
unless the user trusts the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from achieve.config import EnvConfig, TrainConfig, with_env
from achieve.envs.registry import ENVIRONMENTS, find_env_spec
from achieve.errors import UntrustedError
from achieve.settings import shown


def imports_named_by(config: TrainConfig, *, learning: bool = False) -> list[str]:
    """Return the code that using a config would import.

    Trainer, auxiliary objectives and callbacks count for ``learning`` alone, since an agent acts without them. Options
    of the environment count if any text in it has a colon, which could name a module.
    """
    env = config.env
    environment = [env.name] if ":" in env.name and env.name not in ENVIRONMENTS else []
    options = [text for value in env.own_settings.values() for text in _texts(value) if ":" in text]
    code = [config.model.encoder]
    if learning:
        code += [config.trainer, *config.distill.objectives, *config.callbacks]
    return environment + options + [name for name in code if ":" in name]


def trusted(
    config: TrainConfig,
    source: str | Path,
    *,
    env: str | EnvConfig | None = None,
    trust: bool = False,
    learning: bool = False,
) -> TrainConfig:
    """Return the config of a file, in the environment the user names; raise UntrustedError for code nobody has named.

    Args:
        config: as in the file.
        source: the file, for the message.
        env: the environment the user names, perhaps that of the file. An :class:`EnvConfig` replaces the file's
            environment with all its settings.
        trust: import whatever the file names.
        learning: whether the config is to be trained with, not only played with.
    """
    if isinstance(env, EnvConfig):
        return replace(config, env=env)
    named_by_user = {env}
    if env is not None:
        config = _moved(config, env)
    named = [name for name in imports_named_by(config, learning=learning) if name not in named_by_user]
    if named and not trust:
        told = [name if name.isprintable() else shown(name) for name in named]
        raise UntrustedError(source, told, env=config.env.name if named == [config.env.name] else None)
    return config


def _moved(config: TrainConfig, env: str) -> TrainConfig:
    """Return the config in another environment. One of the user's own keeps the options and the threshold."""
    own = find_env_spec(env).by_reward and find_env_spec(config.env.name).by_reward
    moved = with_env(config, env)
    return replace(moved, env=replace(config.env, name=env)) if own else moved


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bytes):
        yield shown(value)
