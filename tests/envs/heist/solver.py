"""A player that knows the game's state: fetches the nearest key, opens what it can, takes the gem."""

from __future__ import annotations

from collections import deque

import numpy as np

from achieve.envs.heist.state import HeistState

NOTHING = 4
# Procgen's first nine actions, by the direction they push: (x, y) upwards.
ACTION = {(x, y): 3 * (x + 1) + y + 1 for x in (-1, 0, 1) for y in (-1, 0, 1)}

Cell = tuple[int, int]


def _cell(place: tuple[float, float]) -> Cell:
    return int(place[0]), int(place[1])


def _path(free: set[Cell], start: Cell, goals: set[Cell]) -> list[Cell]:
    """The shortest way to the nearest goal, the start included; empty if there is none."""
    before: dict[Cell, Cell | None] = {start: None}
    queue = deque([start])
    while queue:
        cell: Cell | None = queue.popleft()
        if cell in goals:
            path = []
            while cell is not None:
                path.append(cell)
                cell = before[cell]
            return path[::-1]
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            following = (cell[0] + dx, cell[1] + dy)
            if following in free and following not in before:
                before[following] = cell
                queue.append(following)
    return []


def next_action(state: HeistState) -> int:
    """A step on the way to what is needed next."""
    start, gem = _cell(state.player), _cell(state.gem)
    locks = {_cell(place): colour for colour, place in state.locks.items()}
    keys = {_cell(place) for place in state.keys.values()}
    shut = {cell for cell, colour in locks.items() if not state.held[colour]}
    rows, columns = np.nonzero(~state.walls)
    free = ({(int(x), int(y)) for x, y in zip(columns, rows, strict=True)} | keys | set(locks) | {gem, start}) - shut
    path = _path(free, start, keys) or _path(free, start, set(locks) - shut) or _path(free, start, {gem})
    if not path:
        return NOTHING
    target = path[1] if len(path) > 1 else path[0]
    dx, dy = target[0] + 0.5 - state.player[0], target[1] + 0.5 - state.player[1]
    x, y = (int(np.sign(d)) if abs(d) > 0.12 else 0 for d in (dx, dy))
    # A corridor is only a little wider than the player: first to its middle, then along it.
    if target[0] != start[0] and abs(dy) > 0.2:
        x = 0
    elif target[1] != start[1] and abs(dx) > 0.2:
        y = 0
    return ACTION[x, y]
