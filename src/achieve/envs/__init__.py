"""Environments: `make_vec` makes them by name, `base` is what they share.

- ``crafter``: `achieve.envs.crafter`, the game of the ``crafter`` package, compiled.
- ``minigrid``: `achieve.envs.minigrid`, a tree of locked doors and keys on MiniGrid.
- ``heist``: `achieve.envs.heist`, Procgen Heist in hard mode.
- ``module:function`` or a registered id: `achieve.envs.gym`, Gymnasium environments with discrete actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from achieve.errors import did_you_mean

from .base import AchievementVecEnv, FinishedEpisodes
from .registry import ENVIRONMENTS, EnvSpec, find_env_spec, is_known, unknown

__all__ = [
    "ENVIRONMENTS",
    "AchievementVecEnv",
    "EnvSpec",
    "FinishedEpisodes",
    "check_options",
    "find_env_spec",
    "make_vec",
    "register",
]


def make_vec(
    name: str,
    num_envs: int = 8,
    seed: int | Sequence[int] | None = 0,
    threads: int | None = None,
    *,
    infos: str = "final",
    **kwargs: Any,
) -> AchievementVecEnv:
    """Make a vector environment by name.

    Args:
        name: one of `ENVIRONMENTS`, ``module:function``, or an id registered with Gymnasium.
        seed: a number, from which each environment's seed is derived; a sequence with a seed for each; or None for
            fresh ones.
        threads: how many threads (or, for Gymnasium's environments, processes) share the work; None chooses by the
            number of environments.
        infos: "final" reports ``final_obs`` and ``final_info`` when an episode ends, "all" also every environment's
            info at every step, "none" nothing.
        kwargs: the environment's own arguments.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"make_vec makes environments by name, such as 'crafter' or 'my_module:MyEnv', so that it can make many; "
            f"it was given {name!r}"
        )
    if not is_known(name):
        raise ValueError(unknown(name))
    spec, cls = find_env_spec(name), check_options(name, kwargs)
    made: AchievementVecEnv = cls(num_envs, seed, threads, infos=infos, **spec.arguments, **kwargs)
    return made


def check_options(name: str, options: Iterable[str]) -> Any:
    """Refuse options that an environment does not have; returns the class of its vector environment."""
    from importlib import import_module
    from inspect import signature

    spec = find_env_spec(name)
    cls = getattr(import_module(spec.module), spec.cls)
    known = [p for p in signature(cls).parameters if p not in spec.arguments]
    own = [p for p in known if p not in ("num_envs", "seed", "threads", "infos")]
    for wrong in set(options) - set(own):
        hint = did_you_mean(wrong, known) or f"; it has: {', '.join(own) or 'none'}"
        if name not in ENVIRONMENTS:
            hint += " (a function of your own is called without arguments: name one that fills them in)"
        raise ValueError(f"the environment {name} has no option {wrong!r}{hint}")
    return cls


def register() -> None:
    """Register the environments with Gymnasium; safe to call again."""
    import gymnasium

    crafter = ("achieve.envs.crafter.env:CrafterEnv", "achieve.envs.crafter.vec:CrafterVecEnv")
    tree = ("achieve.envs.minigrid.env:pixel_env", "achieve.envs.minigrid.vec:DoorKeyTreeVecEnv")
    for name, (single, vector), kwargs in (
        ("achieve/Crafter-v1", crafter, {"reward": True}),
        ("achieve/CrafterNoReward-v1", crafter, {"reward": False}),
        ("achieve/DoorKeyTree-v1", tree, {}),
    ):
        if name not in gymnasium.registry:
            gymnasium.register(id=name, entry_point=single, vector_entry_point=vector, kwargs=kwargs)
