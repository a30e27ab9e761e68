"""The worlds known by name, and what is true of each without opening it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class World:
    """A world: where its vector environment is, what counts as an achievement, and how its agents are measured."""

    name: str
    about: str
    """One line for people."""
    module: str
    cls: str
    unlock_threshold: float
    """A reward above this means that an achievement was unlocked."""
    goal: str | None = None
    """The achievement whose success rate is the world's measure; without one it is the score over all of them."""
    title: str = ""
    """The world's name as it is written in headings."""
    published_steps: int | None = 1_000_000
    """Environment steps at which published figures are read; None where there are none."""
    window: int = 100_000
    """Reward, and the goal's success rate, are those of the episodes that ended in so many last steps."""
    decimals: int = 6
    """Decimals of the returns in the episode log."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What its vector environment is always made with."""
    by_reward: bool = False
    """Whether the vector environment itself counts achievements by the threshold, so that it must be told."""

    @property
    def measure(self) -> str:
        """What a success rate in percent is called in tables: the goal's name, or the score."""
        return self.goal or "score"


WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        World(
            "crafter",
            "the game of the `crafter` package, exact and compiled",
            "achieve.envs.crafter.vec",
            "CrafterVecEnv",
            0.15,  # regained health gives 0.1, an unlock at least 0.2
            title="Crafter",
            decimals=1,  # as the original's recorder writes them
        ),
        World(
            "minigrid",
            "a tree of locked doors and keys on `minigrid`, ten achievements",
            "achieve.envs.minigrid.vec",
            "DoorKeyTreeVecEnv",
            0.5,
            title="MiniGrid",
        ),
        World(
            "heist",
            "Procgen Heist in hard mode, 2 for each lock and 10 for the gem (`make heist`)",
            "achieve.envs.heist.vec",
            "HeistVecEnv",
            1.0,
            goal="gem",
            title="Heist",
            published_steps=25_000_000,
            # A hundred thousand steps hold some two hundred episodes, too few for a success rate.
            window=1_000_000,
        ),
    )
}

KNOWN = f"{', '.join(WORLDS)}, a Gymnasium id such as pkg/Name-v0, or module:function"
_REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py"}
"""Modules that register well-known ids, by how these begin."""


def find_world(name: str) -> World:
    """The world of that name. Any other name is taken for a Gymnasium environment's; `make_vec` will tell."""
    if name in WORLDS:
        return WORLDS[name]
    return World(
        name,
        "a Gymnasium environment",
        "achieve.envs.gym.vec",
        "GymVecEnv",
        0.0,  # without a threshold of the user's, any reward
        title=name,
        published_steps=None,
        arguments={"id": name},
        by_reward=True,
    )


def is_known(name: str) -> bool:
    """Whether there is such a world, or a Gymnasium environment could be meant."""
    import gymnasium

    return name in WORLDS or ":" in name or "/" in name or name in gymnasium.registry


def unknown(name: str) -> str:
    """What to tell people about a name that `is_known` does not know."""
    told = f"there is no world named {name!r}; known are: {KNOWN}"
    return f"{told}; {registering(name)}" if re.search(r"-v\d+$", name) else told


def registering(name: str) -> str:
    """How to name the module that registers a Gymnasium id."""
    module = next((module for start, module in _REGISTERED_BY.items() if name.startswith(start)), "package")
    return f"an id is known once its package is imported, so name that in front: {module}:{name}"
