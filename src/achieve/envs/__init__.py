"""Environments: `make_vec` by name, and what worlds share.

- ``crafter``: `achieve.envs.crafter`, the game of the ``crafter`` package, compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import FinishedEpisodes, WorldVecEnv
from .worlds import WORLDS, World

__all__ = ["WORLDS", "FinishedEpisodes", "World", "WorldVecEnv", "make_vec", "register"]


def make_vec(
    name: str,
    num_envs: int = 8,
    seed: int | Sequence[int] | None = 0,
    threads: int | None = None,
    *,
    infos: str = "final",
    **kwargs: Any,
) -> WorldVecEnv:
    """A vector environment of the named world; further arguments are the world's own.

    ``infos`` says what `step` reports besides: "none", "final" when an episode ended, or "all" at every step.
    """
    if name not in WORLDS:
        raise ValueError(f"there is no world named {name!r}; known are: {', '.join(WORLDS)}")
    from importlib import import_module

    world = WORLDS[name]
    made: WorldVecEnv = getattr(import_module(world.module), world.cls)(
        num_envs, seed, threads, infos=infos, **kwargs
    )
    return made


def register() -> None:
    """Makes the worlds known to Gymnasium; safe to call again."""
    import gymnasium

    for name, reward in (("achieve/Crafter-v1", True), ("achieve/CrafterNoReward-v1", False)):
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="achieve.envs.crafter.env:CrafterEnv",
                vector_entry_point="achieve.envs.crafter.vec:CrafterVecEnv",
                kwargs={"reward": reward},
            )
