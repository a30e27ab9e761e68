"""Plays a level to its end: a search over the agent's poses for each thing to be done next.

It looks at the whole level (grid and agent as in `engine`) and works for any layout, so whatever it completes is
proven solvable. It never uses what the generator knows, such as where the rooms are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

import numpy as np

from achieve.envs.minigrid import DoorKeyTreeEnv, Tree
from achieve.envs.minigrid.engine import (
    CLOSED,
    DROP,
    EMPTY,
    FIRST_DOOR,
    FORWARD,
    GOAL,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    WALL,
)

Cell = tuple[int, int]
STEP = ((1, 0), (0, 1), (-1, 0), (0, -1))


class Level:
    """A level as the solver sees it; `refresh` it after every action."""

    def __init__(self, tree: Tree, grid: np.ndarray, agent: np.ndarray, keep_keys: bool = True) -> None:
        self.tree = tree
        self.keep_keys = keep_keys
        self.first_item = FIRST_DOOR + 3 * tree.rooms
        self.refresh(grid, agent)

    def refresh(self, grid: np.ndarray, agent: np.ndarray) -> None:
        self.grid = grid
        self.x, self.y, self.direction, self.carrying = (int(value) for value in agent[:4])

    def door_state(self, cell: Cell) -> int | None:
        code = int(self.grid[cell[1], cell[0]])
        return (code - FIRST_DOOR) % 3 if FIRST_DOOR <= code < self.first_item else None

    def door(self, room: int) -> Cell:
        low = FIRST_DOOR + 3 * room
        return self._find((self.grid >= low) & (self.grid <= low + LOCKED))

    def item(self, room: int) -> Cell:
        return self._find(self.grid == (GOAL if room == self.tree.goal else self.first_item + room))

    def reachable(self, blocked: Cell | None = None) -> set[Cell]:
        """Cells that can be walked to."""
        found, queue = {(self.x, self.y)}, deque([(self.x, self.y)])
        while queue:
            x, y = queue.popleft()
            for dx, dy in STEP:
                cell = (x + dx, y + dy)
                if cell not in found and cell != blocked and self._passable(cell):
                    found.add(cell)
                    queue.append(cell)
        return found

    def path(self, wanted: Callable[[Cell], bool]) -> list[int] | None:
        """A short way to where the cell in front is a wanted one, through doors that are shut but not locked too."""
        start = (self.x, self.y, self.direction)
        came: dict[tuple[int, int, int], tuple[tuple[int, int, int], tuple[int, ...]] | None] = {start: None}
        queue = deque([start])
        while queue:
            pose = queue.popleft()
            x, y, direction = pose
            front = (x + STEP[direction][0], y + STEP[direction][1])
            if wanted(front):
                actions: list[int] = []
                while (step := came[pose]) is not None:
                    pose, how = step
                    actions += reversed(how)
                return actions[::-1]
            following = [((x, y, (direction + 3) % 4), (LEFT,)), ((x, y, (direction + 1) % 4), (RIGHT,))]
            if self._passable(front):
                shut = self.door_state(front) == CLOSED
                following.append(((*front, direction), (TOGGLE, FORWARD) if shut else (FORWARD,)))
            for after, how in following:
                if after not in came:
                    came[after] = (pose, how)
                    queue.append(after)
        return None

    def route(self, target: Cell) -> list[Cell]:
        """The cells of a short way to a cell, as if nothing that can be picked up were in the way."""
        came: dict[Cell, Cell | None] = {(self.x, self.y): None}
        queue = deque(came)
        while queue:
            cell: Cell | None = queue.popleft()
            if cell == target:
                way: list[Cell] = []
                while cell is not None:
                    way.append(cell)
                    cell = came[cell]
                return way[::-1]
            assert cell is not None
            for dx, dy in STEP:
                after = (cell[0] + dx, cell[1] + dy)
                if after not in came and (after == target or self._passable(after) or self.is_thing(after)):
                    came[after] = cell
                    queue.append(after)
        raise AssertionError("there is no way, whatever is moved")

    def is_thing(self, cell: Cell) -> bool:
        return bool(self.grid[cell[1], cell[0]] >= self.first_item)

    def _find(self, mask: np.ndarray) -> Cell:
        (y,), (x,) = np.nonzero(mask)
        return int(x), int(y)

    def _passable(self, cell: Cell) -> bool:
        return self.grid[cell[1], cell[0]] == EMPTY or self.door_state(cell) in (OPEN, CLOSED)


def solve(level: Level, done: np.ndarray) -> Iterator[int]:
    """Actions that do all that is not done yet, the goal last; the caller plays each and refreshes the level."""
    return solve_keeping(level, done.copy()) if level.keep_keys else solve_dropping(level, done.copy())


def solve_keeping(level: Level, done: np.ndarray) -> Iterator[int]:
    """Whatever is in hand is used up before anything else is taken."""
    if level.carrying >= 0:
        yield from open_all(level, level.carrying)
    for room in range(level.tree.rooms):
        if not done[2 * room] and level.door_state(level.door(room)) == CLOSED:
            yield from go(level, level.door(room), TOGGLE)
        if not done[2 * room + 1]:
            yield from go(level, level.item(room), FORWARD if room == level.tree.goal else PICKUP)
        yield from open_all(level, room)


def open_all(level: Level, room: int) -> Iterator[int]:
    """Opens every door that the key of a room unlocks, if they are not open yet."""
    for other, parent in enumerate(level.tree.parents):
        if parent == room and level.door_state(level.door(other)) == LOCKED:
            yield from go(level, level.door(other), TOGGLE)


def solve_dropping(level: Level, done: np.ndarray) -> Iterator[int]:
    """By MiniGrid's rules: each key is fetched when it is needed, and put down when another is."""
    for room, parent in enumerate(level.tree.parents):
        if done[2 * room] and done[2 * room + 1]:
            continue
        state = level.door_state(level.door(room))
        if state == LOCKED:
            assert parent is not None
            yield from take(level, parent)
        if state != OPEN:
            yield from go(level, level.door(room), TOGGLE)
        yield from go(level, level.item(room), FORWARD) if room == level.tree.goal else take(level, room)


def take(level: Level, room: int) -> Iterator[int]:
    """Picks up what a room held, wherever it is now, with the hands emptied before."""
    if level.carrying == room:
        return
    if level.carrying >= 0:
        yield from put_down(level)
    yield from go(level, level.item(room), PICKUP)


def put_down(level: Level, keep_clear: Collection[Cell] = ()) -> Iterator[int]:
    """Drops what is carried where it shuts nothing off, every other cell staying within reach; or near enough."""
    assert not level.keep_keys, "nothing can be put down, so nothing should have to be"
    before = level.reachable()

    def free(cell: Cell) -> bool:
        return cell in before and cell not in keep_clear and bool(level.grid[cell[1], cell[0]] == EMPTY)

    def harmless(cell: Cell) -> bool:
        if not free(cell):
            return False
        beside_door = any(level.grid[cell[1] + dy, cell[0] + dx] not in (EMPTY, WALL) for dx, dy in STEP)
        return not beside_door and len(level.reachable(cell)) == len(before) - 1

    path = level.path(harmless)
    path = level.path(free) if path is None else path
    assert path is not None, "there is no room to put anything down"
    yield from path
    yield DROP


def go(level: Level, cell: Cell, action: int) -> Iterator[int]:
    """Goes where the cell is in front, moving aside what is in the way, and acts."""
    while (path := level.path(lambda front: front == cell)) is None:
        yield from clear_way(level, cell)
    yield from path
    yield action


def clear_way(level: Level, cell: Cell) -> Iterator[int]:
    """Moves the first thing on the way aside, and takes up again what was carried."""
    route, carried = level.route(cell), level.carrying
    if carried >= 0:
        yield from put_down(level, route)
    yield from go(level, next(step for step in route if level.is_thing(step)), PICKUP)
    yield from put_down(level, route)
    if carried >= 0:
        yield from take(level, carried)


def level_of(env: DoorKeyTreeEnv) -> tuple[np.ndarray, np.ndarray]:
    """Grid and agent of the plain environment in the numbers of the compiled one."""
    first_item = FIRST_DOOR + 3 * env.tree.rooms
    grid = np.zeros((env.height, env.width), np.uint8)
    for y in range(env.height):
        for x in range(env.width):
            cell = env.grid.get(x, y)
            if cell is None:
                grid[y, x] = EMPTY
            elif cell.type == "wall":
                grid[y, x] = WALL
            elif cell.type == "goal":
                grid[y, x] = GOAL
            elif cell.type == "door":
                room = next(room for room, door in enumerate(env.room_doors) if door is cell)
                grid[y, x] = FIRST_DOOR + 3 * room + cell.encode()[2]
            else:
                room = next(room for room, item in enumerate(env.room_items) if item is cell)
                grid[y, x] = first_item + room
    carrying = next((room for room, item in enumerate(env.room_items) if item is env.carrying), -1)
    return grid, np.array([*env.agent_pos, env.agent_dir, carrying, env.step_count])
