"""Notice opened locks without reading the game's state at every step.

The centre of a lock does not change while it is closed: nothing is drawn over it, the player cannot enter its cell, and
collected keys are drawn where no lock is. So its four central pixels are watched, and the state, which decides, is only
read when one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .state import WORLD_DIM, Locks
from .stepping import Tables, find_changed

SIZE = 64
"""Pixels along each side of an observation."""


class LockWatch:
    """The closed locks of many games.

    Args:
        read_locks: returns the locks of game i as they are; called at an episode's start and when one looks different.
        tables: where to note what is watched.
    """

    def __init__(self, read_locks: Callable[[int], Locks], tables: Tables) -> None:
        self._read = read_locks
        self._pixels, self._looks, self.closed = tables.pixels, tables.looks, tables.watched
        num_envs = len(self.closed)
        self.placed = np.zeros(num_envs, np.int64)
        """Locks that each game's level started with (or, after `begin` in mid-game, that were left)."""
        self.level_seed = np.zeros(num_envs, np.int64)
        # On no images, to have it compiled before the first step.
        find_changed(np.zeros((0, SIZE * SIZE * 3), np.uint8), self._pixels[:0], self._looks[:0], self.closed[:0])

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
        images, closed, before = obs.reshape(len(obs), -1), self.closed[part], self._looks[part]
        changed = find_changed(images, self._pixels[part], before, closed & ~skip[:, None])
        if not changed.any():
            return changed
        for i in np.flatnonzero(changed.any(1)):
            there = self._read(first + int(i)).locks
            for colour in np.flatnonzero(changed[i]):
                if colour in there:
                    changed[i, colour] = False
                    before[i, colour] = obs[i].reshape(-1, 3)[self._pixels[first + i, colour]]
        closed &= ~changed
        return changed
