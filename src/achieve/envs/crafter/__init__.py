"""Crafter: the game of the ``crafter`` package, bit for bit, compiled.

`CrafterEnv` is a Gymnasium environment, `CrafterVecEnv` many of them, `mod` modifies the game. `Env`, `Recorder` and
`constants` have the interface of the original: ``import achieve.envs.crafter as crafter`` replaces ``import crafter``.

A step goes from `vec` through `thread_pool` and `advance` (compiled from there on) to `game`. The rules are in
`player`, `creatures`, `balance` and `worldgen`; the image is drawn in `render`; `state` says what a world consists of,
`batch` allocates it, and `compiler` compiles it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crafter import constants
    from crafter.recorder import Recorder

    from ..arrays import StateError
    from .compiler import mod
    from .env import CrafterEnv
    from .legacy import Env
    from .vec import CrafterVecEnv

__all__ = ["CrafterEnv", "CrafterVecEnv", "Env", "Recorder", "StateError", "constants", "mod"]

_HOMES = {
    "CrafterEnv": ".env",
    "CrafterVecEnv": ".vec",
    "Env": ".legacy",
    "Recorder": "crafter.recorder",
    "StateError": ".snapshot",
    "constants": "crafter.constants",
    "mod": ".compiler",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the compiler behind these takes a second to load.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOMES[name], __name__)
    return home if name == "constants" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
