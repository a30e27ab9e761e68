"""Which environment is inside a wrapped one, as far as can be seen from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import RewardWrapper, registry
from gymnasium.vector import VectorRewardWrapper
from gymnasium.wrappers import NormalizeReward, TimeLimit
from gymnasium.wrappers.vector import NormalizeReward as VectorNormalizeReward

_CRAFTER = {"area": (64, 64), "view": (9, 9), "length": 10_000, "reward": True, "rules": None}
_SIZE = (64, 64)
_IDS = {
    "achieve/Crafter-v1": "crafter",
    "achieve/CrafterNoReward-v1": "crafter",
    "achieve/DoorKeyTree-v1": "minigrid",
}

_NO_GAME = (
    "render_mode", "num_envs", "vectorization_mode", "seed", "threads", "infos", "unlock_threshold", "name", "id",
)  # fmt: skip
"""Arguments that do not change the game, and those that no option may be named as."""


class Identity(NamedTuple):
    """An environment's name, its options, and what the agent sees of it."""

    name: str | None
    options: tuple[str, ...] = ()
    """What makes it another game, as `name=value`."""
    settings: Mapping[str, Any] = {}
    """What makes it another view of the same game."""


def identify(env: Any) -> Identity:
    """Return what is known of an environment. Its name is None if it hides what it holds, as processes do."""
    limits: list[int] = []
    for inner in _layers(env):
        module = type(inner).__module__
        if isinstance(inner, TimeLimit):
            limits.append(int(inner._max_episode_steps))
        if module.startswith("achieve.envs.crafter.") and hasattr(inner, "_batch"):
            config = inner._batch.config
            rules = inner._batch.program.identity
            game = {name: getattr(config, name) for name in ("area", "view", "length", "reward")}
            return _crafter(game | {"rules": rules if rules != _plain_rules() else None}, config.size, limits)
        if module == "crafter.env":
            game = {name: getattr(inner, f"_{name}") for name in ("area", "view", "length", "reward")}
            return _crafter(game | {"view": tuple(map(int, game["view"]))}, inner._size, limits)
        if module.startswith("achieve.envs.minigrid.") and hasattr(inner, "tree"):
            layout = getattr(inner, "_layout", inner)
            return Identity("minigrid", _minigrid(inner.tree, layout, min([*limits, layout.max_steps])))
        if module.startswith("achieve.envs.heist."):
            return Identity("heist", tuple(f"{name}={value}" for name, value in inner._levels.items() if value))
        if module == "achieve.envs.gym.vec":
            return Identity(inner._id)
    spec = getattr(env, "spec", None)
    if spec is not None:
        return Identity(_IDS.get(spec.id, spec.id), _registered(spec))
    base = getattr(env, "unwrapped", env)
    hidden = type(base).__module__.startswith("gymnasium.vector.")
    return Identity(None if hidden else f"{type(base).__module__}:{type(base).__qualname__}")


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment and what it wraps: `env`, `_env` or the first of `envs`."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        inside = vars(env) if hasattr(env, "__dict__") else {}
        envs = inside.get("envs") or ()
        env = inside.get("env") or inside.get("_env") or (envs[0] if envs else None)


def changes_rewards(env: Any) -> str | None:
    """Return the name of a wrapper of Gymnasium inside an environment that changes its rewards, None without one."""
    kinds = (RewardWrapper, NormalizeReward, VectorRewardWrapper, VectorNormalizeReward)
    return next((type(inner).__name__ for inner in _layers(env) if isinstance(inner, kinds)), None)


def _registered(spec: Any) -> tuple[str, ...]:
    """Return what makes it another game than the one registered under its id: arguments, and the time limit."""
    usual = _arguments(registry.get(spec.id, spec))
    return tuple(f"{name}={value}" for name, value in _arguments(spec).items() if value != usual.get(name))


def _arguments(spec: Any) -> dict[str, str]:
    """Return the arguments that a registered environment is made with, as JSON."""
    values = {**spec.kwargs, "max_episode_steps": spec.max_episode_steps}
    # Options have an end: a long argument is cut off.
    return {name: json.dumps(values[name], default=_named)[:1000] for name in sorted(values) if name not in _NO_GAME}


def _named(value: Any) -> Any:
    """Return an argument that JSON cannot hold as one that it can; an object's address would be another each time."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else type(value).__name__


def _minigrid(tree: Any, layout: Any, max_steps: int) -> tuple[str, ...]:
    """Return what makes it another game than by default, as the environment's options."""
    from .minigrid.env import check_layout
    from .minigrid.tree import Tree

    options: dict[str, Any] = {}
    if tree != Tree.make():
        chain = tree.parents == (None, *range(tree.rooms - 1))
        options |= {"depth": tree.rooms} if chain else {"tree": list(tree.parents)}
    _, num_rows, steps = check_layout(tree, layout.room_size, None, None)
    usual = {"room_size": 5, "num_rows": num_rows, "max_steps": steps, "keep_keys": True}
    here = {name: getattr(layout, name) for name in usual} | {"max_steps": max_steps}
    options |= {name: value for name, value in here.items() if value != usual[name]}
    return tuple(f"{name}={json.dumps(value)}" for name, value in options.items())


def _crafter(game: Mapping[str, Any], size: Any, limits: Sequence[int]) -> Identity:
    ends = [*limits, *([game["length"]] if game["length"] else [])]  # Crafter without a length has no limit
    game = {**game, "length": min(ends, default=None)}
    changed = {name: value for name, value in game.items() if _plain(value) != _plain(_CRAFTER[name])}
    size = _plain(size)
    return Identity(
        "crafter",
        tuple(f"{name}={json.dumps(_plain(value))}" for name, value in changed.items()),
        {} if size == list(_SIZE) else {"size": size},
    )


def _plain(value: Any) -> Any:
    return [int(part) for part in value] if hasattr(value, "__len__") and not isinstance(value, str) else value


def _plain_rules() -> str:
    from .crafter.compiler import find_rules

    identity: str = find_rules(None).identity
    return identity
