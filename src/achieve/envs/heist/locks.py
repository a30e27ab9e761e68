"""Notice opened locks without reading the game's state at every step.

The centre of a lock does not change while it is closed: nothing is drawn over it, the player cannot enter its cell, and
collected keys are drawn where no lock is. So its four central pixels are watched, and the state, which decides, is only
read when one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .state import COLOURS, WORLD_DIM, Locks

SIZE = 64
"""Pixels along each side of an observation."""


class LockWatch:
    """The closed locks of many games.

    Args:
        read_locks: returns the locks of game i as they are; called at an episode's start and when one looks different.
    """

    def __init__(self, num_envs: int, read_locks: Callable[[int], Locks]) -> None:
        self._read = read_locks
        self._games = np.arange(num_envs)[:, None, None]
        self._pixels = np.zeros((num_envs, len(COLOURS), 4), np.int64)
        self._looks = np.zeros((num_envs, len(COLOURS), 4, 3), np.uint8)
        self.closed = np.zeros((num_envs, len(COLOURS)), np.bool_)
        self.placed = np.zeros(num_envs, np.int64)
        """Locks that each game's level started with (or, after `begin` in mid-game, that were left)."""
        self.level_seed = np.zeros(num_envs, np.int64)

    def begin(self, i: int, obs: np.ndarray) -> None:
        """Find the locks of game i, whose level ``obs`` shows."""
        state = self._read(i)
        self.closed[i] = False
        for colour, (x, y) in state.locks.items():
            row, column = int((WORLD_DIM - y) * SIZE / WORLD_DIM), int(x * SIZE / WORLD_DIM)
            rows, columns = np.array([row - 1, row - 1, row, row]), np.array([column - 1, column] * 2)
            self._pixels[i, colour] = rows * SIZE + columns
            self.closed[i, colour] = True
        self._looks[i] = obs.reshape(-1, 3)[self._pixels[i]]
        self.placed[i] = len(state.locks)
        self.level_seed[i] = state.level_seed

    def opened(self, obs: np.ndarray, skip: np.ndarray, first: int = 0) -> np.ndarray:
        """Return which locks opened since the last call, bool[N, colours]; games in the mask ``skip`` are ignored.

        The observations are those of games from ``first`` on.
        """
        part = slice(first, first + len(obs))
        looks = obs.reshape(len(obs), SIZE * SIZE, 3)[self._games[: len(obs)], self._pixels[part]]
        closed, before = self.closed[part], self._looks[part]
        changed = (looks != before).any((2, 3)) & closed & ~skip[:, None]
        for i in np.flatnonzero(changed.any(1)):
            there = self._read(first + int(i)).locks
            for colour in np.flatnonzero(changed[i]):
                if colour in there:
                    changed[i, colour] = False
                    before[i, colour] = looks[i, colour]
        closed &= ~changed
        return changed
