"""The body of a saved state, the arrays of `Worlds` one after the other, and the checks it must pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import StateError, require
from .engine import CARRYING, CLOSED, DIRECTION, EMPTY, FIRST_DOOR, GOAL, LOCKED, STEPS, WALL, Layout, Worlds, X, Y


def allocate(layout: Layout, num_envs: int) -> Worlds:
    rooms, pitch = len(layout.parents), layout.room_size - 1
    return Worlds(
        grid=np.zeros((num_envs, layout.num_rows * pitch + 1, 3 * pitch + 1), np.uint8),
        agent=np.zeros((num_envs, 5), np.int64),
        unlocked=np.zeros((num_envs, 2 * rooms), np.uint8),
        random=np.zeros((num_envs, 6), np.uint64),
    )


def made_for(layout: Layout, num_envs: int) -> dict[str, Any]:
    return {
        "tree": layout.parents.tolist(),
        "room_size": layout.room_size,
        "num_rows": layout.num_rows,
        "max_steps": layout.max_steps,
        "keep_keys": layout.keep_keys,
        "num_envs": num_envs,
    }


def read(layout: Layout, num_envs: int, body: bytes, *, begun: bool) -> Worlds:
    """Return the saved games, checked; a `StateError` for a state no game can reach."""
    worlds = allocate(layout, num_envs)
    if len(body) != sum(array.nbytes for array in worlds):
        raise StateError(f"the saved state holds {len(body)} bytes of games, which is the wrong number")
    start = 0
    for array in worlds:
        array[:] = np.frombuffer(body, array.dtype, array.size, start).reshape(array.shape)
        start += array.nbytes
    increments, halves, kept = worlds.random[:, 3:].T
    require((increments % 2 == 1) & (halves < 2**32) & (kept <= 1), "random generator")
    if begun:
        _check_games(layout, worlds)
    return worlds


def _items_left(layout: Layout, unlocked: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return whether each room's item still exists, 1 or 0 [n, rooms - 1], given how often each cell code occurs."""
    rooms = len(layout.parents)
    if not layout.keep_keys:
        return np.ones((len(counts), rooms - 1), np.int64)
    locked = counts[:, FIRST_DOOR + LOCKED : FIRST_DOOR + 3 * rooms : 3]
    left = unlocked[:, 1:-1:2] == 0
    for room, parent in enumerate(layout.parents[1:], 1):
        left[:, parent] |= locked[:, room] > 0
    return left.astype(np.int64)


def _check_games(layout: Layout, worlds: Worlds) -> None:
    """Check everything that compiled code takes for granted, and that nothing is missing or duplicated."""
    grid, agent = worlds.grid, worlds.agent
    num_envs, height, width = grid.shape
    rooms = len(layout.parents)
    x, y, carrying = agent[:, X], agent[:, Y], agent[:, CARRYING]
    require((x > 0) & (x < width - 1) & (y > 0) & (y < height - 1), "position")
    require((agent[:, DIRECTION] >= 0) & (agent[:, DIRECTION] < 4), "direction")
    require((carrying >= -1) & (carrying < rooms - 1), "what is carried")
    require((agent[:, STEPS] >= 0) & (agent[:, STEPS] < layout.max_steps), "steps")
    require(worlds.unlocked <= 1, "achievements")
    edge = np.ones((height, width), bool)
    edge[1:-1, 1:-1] = False
    require(grid[:, edge] == WALL, "outer wall")
    counts = np.stack([np.bincount(cells, minlength=256) for cells in grid.reshape(num_envs, -1)])
    first_item = FIRST_DOOR + 3 * rooms
    items = counts[:, first_item : first_item + rooms - 1].copy()
    holders = np.flatnonzero(carrying >= 0)
    items[holders, carrying[holders]] += 1
    require(items == _items_left(layout, worlds.unlocked, counts), "keys")
    require(counts[:, first_item + rooms - 1 :] == 0, "cell")
    require(counts[:, GOAL] == 1, "goal")
    require(counts[:, FIRST_DOOR:first_item].reshape(num_envs, rooms, 3).sum(2) == 1, "doors")
    require(counts[:, FIRST_DOOR + LOCKED] == 0, "the first door")
    under = grid[np.arange(num_envs), y, x].astype(np.int64)
    doorway = (under >= FIRST_DOOR) & (under < first_item) & ((under - FIRST_DOOR) % 3 < CLOSED)
    require((under == EMPTY) | doorway, "position")
