"""The environments known by name, and what can be said about each without making it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvSpec:
    """An environment: where its vector environment is, what counts as an achievement, and how agents are measured."""

    name: str
    about: str
    """A one-line description."""
    module: str
    cls: str
    unlock_threshold: float
    """A reward above this means that an achievement was unlocked."""
    goal: str | None = None
    """The achievement whose success rate is the measure; without one, it is the score over all achievements."""
    title: str = ""
    """The name in headings."""
    published_steps: int | None = 1_000_000
    """Environment steps after which published results are reported; None where there are none."""
    window: int = 100_000
    """Reward and the goal's success rate are averaged over the episodes that ended in this many last steps."""
    decimals: int = 6
    """Decimals of returns in the episode log."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the vector environment is always made with."""
    unseen: Mapping[str, Any] = field(default_factory=dict)
    """Options for evaluating in worlds that training never showed, in place of those of training."""
    spaces: tuple[tuple[int, ...], int] | None = None
    """Shape of its images and number of its actions, as they are without an option `size`."""
    in_parts: bool = False
    """Whether a learner steps many of them in parts, which `parts_of` of the vector environment says."""
    by_reward: bool = False
    """Whether the vector environment counts achievements by the threshold, and so takes it as an argument."""

    @property
    def measure(self) -> str:
        """What tables call the measure in percent: the goal's name, or the score."""
        return self.goal or "score"


ENVIRONMENTS: dict[str, EnvSpec] = {
    spec.name: spec
    for spec in (
        EnvSpec(
            "crafter",
            "the game of the `crafter` package, exact and compiled",
            "achieve.envs.crafter.vec",
            "CrafterVecEnv",
            0.15,  # regained health gives 0.1, an unlock at least 0.2
            title="Crafter",
            spaces=((64, 64, 3), 17),
            decimals=1,  # as the original's recorder writes them
        ),
        EnvSpec(
            "minigrid",
            "a tree of locked doors and keys on `minigrid`, ten achievements",
            "achieve.envs.minigrid.vec",
            "DoorKeyTreeVecEnv",
            0.5,
            title="MiniGrid",
            spaces=((64, 64, 3), 7),
        ),
        EnvSpec(
            "heist",
            "Procgen Heist in hard mode, 2 for each lock and 10 for the gem (`make heist`)",
            "achieve.envs.heist.vec",
            "HeistVecEnv",
            1.0,
            goal="gem",
            title="Heist",
            spaces=((64, 64, 3), 15),
            in_parts=True,
            published_steps=25_000_000,
            # A hundred thousand steps have only some two hundred episodes, too few for a success rate.
            window=1_000_000,
            unseen={"num_levels": 0, "start_level": 0},  # all levels: hardly ever one of those trained on
        ),
    )
}

KNOWN = f"{', '.join(ENVIRONMENTS)}, a Gymnasium id such as pkg/Name-v0, or module:function"
_REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py"}
"""Modules that register well-known ids, by prefix."""


def find_env_spec(name: str) -> EnvSpec:
    """Return the entry of that name. Any other name is taken for a Gymnasium environment's, which `make_vec` checks."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    return EnvSpec(
        name,
        "a Gymnasium environment",
        "achieve.envs.gym.vec",
        "GymVecEnv",
        0.0,  # any reward, unless the user sets a threshold
        title=name,
        published_steps=None,
        arguments={"id": name},
        by_reward=True,
    )


def is_known(name: str) -> bool:
    """Return whether the name is known here, or could be a Gymnasium environment's."""
    import gymnasium

    return name in ENVIRONMENTS or ":" in name or "/" in name or name in gymnasium.registry


def unknown(name: str) -> str:
    """Return an error message for a name that is not known."""
    told = f"there is no environment named {name!r}; known are: {KNOWN}"
    return f"{told}; {registering(name)}" if re.search(r"-v\d+$", name) else told


def registering(name: str) -> str:
    """Return how to name the module that registers a Gymnasium id."""
    module = next((module for start, module in _REGISTERED_BY.items() if name.startswith(start)), "package")
    return f"an id is only known once its package is imported, so put that in front: {module}:{name}"
