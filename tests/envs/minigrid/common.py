"""Layouts that the tests are run on, and play by the solver."""

from __future__ import annotations

from typing import Any

import pytest

from achieve.envs.minigrid import DoorKeyTreeVecEnv

from .solver import Level, solve

LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "smallest": {"depth": 1, "room_size": 4},
    "narrow": {"depth": 6, "room_size": 4},
    "branching": {"depth": 3, "branching": 2},
    "wide": {"depth": 3, "branching": 4, "room_size": 4},
    "own tree": {"tree": (None, 0, 0, 2, 1, 2), "room_size": 6, "num_rows": 5},
}

BOTH_RULES = pytest.mark.parametrize("keep_keys", [True, False], ids=["kept", "droppable"])
"""Our rule for keys, and MiniGrid's own."""


def level_in(vec: DoorKeyTreeVecEnv, i: int) -> Level:
    return Level(vec.tree, vec._worlds.grid[i], vec._worlds.agent[i], vec._layout.keep_keys)


class Solver:
    """Chooses the solver's actions in one sub-environment, episode after episode."""

    def __init__(self, vec: DoorKeyTreeVecEnv, i: int) -> None:
        self.vec, self.i = vec, i
        self.begin()

    def begin(self) -> None:
        """To be called when an episode has begun, or when somebody else has acted."""
        self.level = level_in(self.vec, self.i)
        self._actions = solve(self.level, self.vec._worlds.unlocked[self.i])

    def action(self) -> int:
        self.level.refresh(self.vec._worlds.grid[self.i], self.vec._worlds.agent[self.i])
        return next(self._actions)
