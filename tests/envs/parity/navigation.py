"""Shortest ways to face a cell, counted in actions.

In Crafter one acts on the cell one faces, and moving towards a free cell enters it. Facing a free
cell is therefore a matter of the direction one arrives from: the search runs over (x, y, facing).
"""

from __future__ import annotations

import numba
import numpy as np

# The order of the move actions: left, right, up, down.
DIRECTIONS: tuple[tuple[int, int], ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))

# What a cell costs, as the search sees it.
FREE = 0  # walk in
SOLID = 1  # can be faced by moving against it, never entered
LETHAL = 2  # moving against it enters it and kills
# Larger numbers: solid, and opened and entered by that many minus `OPENED` actions when faced.
OPENED = 10
# Larger still: as above, but lethal to move against, so it must be faced on arrival.
OPENED_LETHAL = 20

_UNREACHED = np.int32(1 << 30)


@numba.njit(cache=True)
def _distances(cells, start_x, start_y, start_facing):  # type: ignore[no-untyped-def]
    """The number of actions to every (x, y, facing), and the state each was reached from."""
    width, height = cells.shape
    count = width * height * 4
    dist = np.full(count, _UNREACHED, np.int32)
    origin = np.full(count, -1, np.int32)
    queue = np.empty(count + 1, np.int32)
    queued = np.zeros(count, np.bool_)
    start = (start_x * height + start_y) * 4 + start_facing
    dist[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head != tail:
        state = queue[head]
        head = (head + 1) % (count + 1)
        queued[state] = False
        facing = state % 4
        y = (state // 4) % height
        x = state // 4 // height
        for direction in range(4):
            dx = -1 if direction == 0 else (1 if direction == 1 else 0)
            dy = -1 if direction == 2 else (1 if direction == 3 else 0)
            nx, ny = x + dx, y + dy
            inside = 0 <= nx < width and 0 <= ny < height
            cell = cells[nx, ny] if inside else SOLID
            entered = (nx * height + ny) * 4 + direction
            if cell == FREE:
                target, cost = entered, 1
            elif cell == LETHAL:
                continue
            elif facing == direction:
                if cell >= OPENED_LETHAL:
                    target, cost = entered, cell - OPENED_LETHAL
                elif cell >= OPENED:
                    target, cost = entered, cell - OPENED
                else:
                    continue
            elif cell >= OPENED_LETHAL:
                continue
            else:
                target, cost = (x * height + y) * 4 + direction, 1
            if dist[state] + cost < dist[target]:
                dist[target] = dist[state] + cost
                origin[target] = state
                if not queued[target]:
                    queued[target] = True
                    queue[tail] = target
                    tail = (tail + 1) % (count + 1)
    return dist, origin


def faced_from(targets: np.ndarray) -> np.ndarray:
    """The states (x, y, facing) that face a cell of the mask."""
    states = np.zeros((*targets.shape, 4), bool)
    states[1:, :, 0] = targets[:-1]
    states[:-1, :, 1] = targets[1:]
    states[:, 1:, 2] = targets[:, :-1]
    states[:, :-1, 3] = targets[:, 1:]
    return states


class Routes:
    """All shortest ways from one (position, facing) over a grid of cell costs."""

    def __init__(self, cells: np.ndarray, position: tuple[int, int], facing: int) -> None:
        self.shape = cells.shape
        self.start = (position[0] * cells.shape[1] + position[1]) * 4 + facing
        self._dist, self._origin = _distances(cells, position[0], position[1], facing)

    def facing(self, targets: np.ndarray) -> tuple[int, tuple[int, int, int]] | None:
        """The nearest state that faces a cell of the mask: its distance and (x, y, facing)."""
        return self.nearest(faced_from(targets))

    def standing(self, targets: np.ndarray) -> tuple[int, tuple[int, int, int]] | None:
        """The nearest state that stands on a cell of the mask."""
        return self.nearest(np.repeat(targets[..., None], 4, axis=2))

    def nearest(self, goals: np.ndarray) -> tuple[int, tuple[int, int, int]] | None:
        """The nearest of a mask of states: its distance and (x, y, facing)."""
        dist = np.where(goals, self._dist.reshape(*self.shape, 4), _UNREACHED)
        index = int(dist.argmin())
        if dist.flat[index] >= _UNREACHED:
            return None
        x, rest = divmod(index, self.shape[1] * 4)
        return int(dist.flat[index]), (x, rest // 4, rest % 4)

    def first_move(self, goal: tuple[int, int, int]) -> int | None:
        """The direction to move, or to act in, first on the way to `goal`; None when there."""
        state = (goal[0] * self.shape[1] + goal[1]) * 4 + goal[2]
        if state == self.start:
            return None
        while self._origin[state] != self.start:
            state = int(self._origin[state])
        return int(state % 4)
