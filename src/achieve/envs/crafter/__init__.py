"""Crafter: the game of the ``crafter`` package, bit for bit, compiled.

`CrafterEnv` is a Gymnasium environment, `CrafterVecEnv` many of them, `Env` has the interface of ``crafter.Env``, `mod`
modifies the game. A step goes from `vec` through `thread_pool` and `advance` (compiled from there on) to `game`. The
rules are in `player`, `creatures`, `balance` and `worldgen`; the image is drawn in `render`; `state` says what a world
consists of, `batch` allocates it, and `compiler` compiles it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..arrays import StateError
    from .compiler import mod
    from .env import CrafterEnv
    from .legacy import Env
    from .vec import CrafterVecEnv

__all__ = ["CrafterEnv", "CrafterVecEnv", "Env", "StateError", "mod"]

_HOMES = {"CrafterEnv": "env", "CrafterVecEnv": "vec", "Env": "legacy", "StateError": "snapshot", "mod": "compiler"}


def __getattr__(name: str) -> Any:
    # Imported on first use: the compiler behind these takes a second to load.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
