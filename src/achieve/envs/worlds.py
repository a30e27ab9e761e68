"""The worlds known by name, and what is true of each without opening it."""

from __future__ import annotations

from dataclasses import dataclass


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


WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        World(
            "crafter",
            "the game of the `crafter` package, exact and compiled",
            "achieve.envs.crafter.vec",
            "CrafterVecEnv",
            0.15,  # regained health gives 0.1, an unlock at least 0.2
        ),
    )
}
