"""The game of `env.DoorKeyTreeEnv` on arrays, compiled.

All compiled code is in this one file, because Numba's cache only notices edits to the file that a function is in.

A cell is one number: empty, wall, goal, then three per room for its door (open, closed, locked), then one for what each
room but the last holds. An item is identified by the room it comes from; two doors of one colour are different doors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import event

EMPTY, WALL, GOAL, FIRST_DOOR = 0, 1, 2, 3
OPEN, CLOSED, LOCKED = 0, 1, 2

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, NUM_ACTIONS = 0, 1, 2, 3, 4, 5, 7

X, Y, DIRECTION, CARRYING, STEPS = 0, 1, 2, 3, 4
"""Columns of `Worlds.agent`. Directions are right, down, left, up; carrying is a room, or -1."""

_VIEW, _TILE = 7, 9
_LOW32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_MULTIPLIER_HIGH, _MULTIPLIER_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
"""The multiplier of PCG64, NumPy's default generator, from which MiniGrid draws its levels."""

log = logging.getLogger("achieve")


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call and cache the machine code, if there is a folder for it."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # Numba found no folder that it may write to
        return numba.njit(nogil=True)(function)


class Layout(NamedTuple):
    """What is the same in all episodes."""

    parents: np.ndarray  # int64[rooms]: the room whose key opens each door, -1 for the first
    room_size: int
    num_rows: int
    max_steps: int
    keep_keys: bool  # whether an item is kept until it opens nothing more, and is then gone
    tiles: np.ndarray  # uint8[tiles, 9, 27], see `tiles.tile_table`


class Worlds(NamedTuple):
    """The games' states, one row each."""

    grid: np.ndarray  # uint8[n, height, width]
    agent: np.ndarray  # int64[n, 5]
    unlocked: np.ndarray  # uint8[n, achievements]
    random: np.ndarray  # uint64[n, 6]: PCG64's state and increment, high word first; the kept half, and if there is one


class Results(NamedTuple):
    """The results of a step; the length is written where an episode ended."""

    reward: np.ndarray  # float64[n]
    terminated: np.ndarray  # bool[n]
    truncated: np.ndarray  # bool[n]
    length: np.ndarray  # int64[n]
    unlocked: np.ndarray  # uint8[n, achievements]: at the end of the step, before a reset


def num_codes(rooms: int) -> int:
    return FIRST_DOOR + 3 * rooms + rooms - 1


class Announcer(event.Listener):
    """Say, once per process, why the first use takes so long."""

    said = False

    def on_start(self, event: Any) -> None:
        if not Announcer.said and event.data["dispatcher"].py_func.__module__ == __name__:
            Announcer.said = True
            log.warning("achieve: compiling MiniGrid for this machine (some seconds, once)")

    def on_end(self, event: Any) -> None:
        pass


def prepare(layout: Layout, worlds: Worlds, results: Results) -> None:
    """Compile what a game needs, or load it, so that no step has to wait for that.

    The arguments are used only for their types; nothing is played.
    """
    nobody, no_images = Worlds(*(array[:0] for array in worlds)), np.zeros((0, 64, 192), np.uint8)
    with event.install_listener("numba:compile", Announcer()):
        reset_all(layout, nobody, no_images)
        draw_all(layout, nobody, no_images)
        step_all(layout, nobody, results, np.zeros(0, np.int64), no_images, no_images)


@compiled
def next64(random: np.ndarray) -> Any:
    """Draw PCG64's next number: a 128-bit linear congruential step, then its halves folded and rotated."""
    low, high = random[1], random[0]
    a, b = low & _LOW32, low >> _HALF
    c, d = _MULTIPLIER_LOW & _LOW32, _MULTIPLIER_LOW >> _HALF
    inner = a * d + ((a * c) >> _HALF)
    outer = b * c + (inner & _LOW32)
    carried = b * d + (inner >> _HALF) + (outer >> _HALF)
    product = low * _MULTIPLIER_LOW
    new_low = product + random[3]
    new_high = carried + low * _MULTIPLIER_HIGH + high * _MULTIPLIER_LOW + random[2]
    if new_low < product:
        new_high += _ONE
    random[0], random[1] = new_high, new_low
    folded, turn = new_high ^ new_low, new_high >> np.uint64(58)
    return (folded >> turn) | (folded << ((np.uint64(64) - turn) & np.uint64(63)))


@compiled
def next32(random: np.ndarray) -> Any:
    """Draw half of a 64-bit number; the other half is kept for the next call, as in NumPy."""
    if random[5] != _ZERO:
        random[5] = _ZERO
        return random[4]
    number = next64(random)
    random[4], random[5] = number >> _HALF, _ONE
    return number & _LOW32


@compiled
def below(random: np.ndarray, count: int) -> Any:
    """Draw ``Generator.integers(0, count)``: Lemire's method, which draws again where the result would be biased."""
    if count == 1:
        return 0
    span = np.uint64(count)
    product = next32(random) * span
    if (product & _LOW32) < span:
        threshold = (np.uint64(1 << 32) - span) % span
        while (product & _LOW32) < threshold:
            product = next32(random) * span
    return np.int64(product >> _HALF)


@compiled
def generate(layout: Layout, grid: np.ndarray, agent: np.ndarray, unlocked: np.ndarray, random: np.ndarray) -> None:
    """Generate a level, from the same random numbers in the same order as `DoorKeyTreeEnv._gen_grid`."""
    pitch, inside, rows = layout.room_size - 1, layout.room_size - 2, layout.num_rows
    rooms = len(layout.parents)
    height, width = grid.shape
    for y in range(height):
        for x in range(width):
            between_rooms = y % pitch == 0 and not (pitch < x < 2 * pitch and 0 < y < height - 1)
            grid[y, x] = WALL if between_rooms or x % pitch == 0 else EMPTY
    door_y = np.empty(2 * rows, np.int64)
    for row in range(rows):
        for col in range(3):
            if col < 2:
                door_y[2 * row + col] = row * pitch + 1 + below(random, inside)
            if row < rows - 1:
                below(random, inside)  # a door between rows, which the hallway does without
    places = np.arange(2 * rows)
    left = 2 * rows
    chosen = np.empty(rooms, np.int64)
    for room in range(rooms):
        at = below(random, left)
        chosen[room] = places[at]
        left -= 1
        for k in range(at, left):
            places[k] = places[k + 1]
    for room in range(rooms):
        row, side = chosen[room] // 2, chosen[room] % 2
        state = CLOSED if layout.parents[room] < 0 else LOCKED
        grid[door_y[chosen[room]], (1 + side) * pitch] = FIRST_DOOR + 3 * room + state
        x = 2 * side * pitch + 1 + below(random, inside)
        y = row * pitch + 1 + below(random, inside)
        grid[y, x] = GOAL if room == rooms - 1 else FIRST_DOOR + 3 * rooms + room
    agent[X] = pitch + 1 + below(random, inside)
    agent[Y] = 1 + below(random, height - 2)
    agent[DIRECTION] = below(random, 4)
    agent[CARRYING] = -1
    agent[STEPS] = 0
    unlocked[:] = 0


@compiled
def is_useful(parents: np.ndarray, grid: np.ndarray, item: int) -> Any:
    """Return whether there is a door left that the item from room ``item`` unlocks."""
    last_door = FIRST_DOOR + 3 * len(parents)
    for cell in grid.flat:
        door = np.int64(cell) - FIRST_DOOR
        if FIRST_DOOR <= cell < last_door and door % 3 == LOCKED and parents[door // 3] == item:
            return True
    return False


@compiled
def act(layout: Layout, grid: np.ndarray, agent: np.ndarray, action: int) -> Any:
    """Take one action; return the achievement whose condition it made true, or -1."""
    parents = layout.parents
    direction, carrying = agent[DIRECTION], agent[CARRYING]
    if action == LEFT:
        agent[DIRECTION] = (direction + 3) % 4
        return -1
    if action == RIGHT:
        agent[DIRECTION] = (direction + 1) % 4
        return -1
    x, y = agent[X], agent[Y]
    if direction % 2 == 0:
        x += 1 - direction
    else:
        y += 2 - direction
    cell = np.int64(grid[y, x])
    first_item = FIRST_DOOR + 3 * len(parents)
    is_door = FIRST_DOOR <= cell < first_item
    room, state = (cell - FIRST_DOOR) // 3, (cell - FIRST_DOOR) % 3
    if action == FORWARD:
        if cell in (EMPTY, GOAL) or (is_door and state == OPEN):
            agent[X], agent[Y] = x, y
        if cell == GOAL:
            return 2 * len(parents) - 1
    elif action == PICKUP:
        if cell >= first_item and carrying < 0:
            agent[CARRYING] = cell - first_item
            grid[y, x] = EMPTY
            if layout.keep_keys and not is_useful(parents, grid, cell - first_item):
                agent[CARRYING] = -1
            return 2 * (cell - first_item) + 1
    elif action == DROP:
        if cell == EMPTY and carrying >= 0 and not layout.keep_keys:
            grid[y, x] = first_item + carrying
            agent[CARRYING] = -1
    elif action == TOGGLE and is_door:
        if state == CLOSED or (state == LOCKED and carrying == parents[room]):
            grid[y, x] = FIRST_DOOR + 3 * room + OPEN
            if layout.keep_keys and state == LOCKED and not is_useful(parents, grid, carrying):
                agent[CARRYING] = -1
            return 2 * room
        if state == OPEN:
            grid[y, x] = FIRST_DOOR + 3 * room + CLOSED
    return -1


@compiled
def see(rooms: int, grid: np.ndarray, agent: np.ndarray, view: np.ndarray) -> None:
    """Write the tile numbers of the 7x7 cells in front of the agent, which is at the bottom facing up."""
    height, width = grid.shape
    first_item = FIRST_DOOR + 3 * rooms
    unseen = first_item + rooms - 1
    x, y, direction = agent[X], agent[Y], agent[DIRECTION]
    ahead_x = 1 - direction if direction % 2 == 0 else 0
    ahead_y = 2 - direction if direction % 2 == 1 else 0
    seen = 1 << (_VIEW // 2)  # a bit for each column of the row
    for row in range(_VIEW - 1, -1, -1):
        far = _VIEW - 1 - row
        dark = 0  # cells that cannot be seen through
        for col in range(_VIEW):
            aside = col - _VIEW // 2
            at_x, at_y = x + ahead_x * far - ahead_y * aside, y + ahead_y * far + ahead_x * aside
            cell = np.int64(WALL)
            if 0 <= at_x < width and 0 <= at_y < height:
                cell = np.int64(grid[at_y, at_x])
            view[row, col] = cell
            if cell == WALL or (FIRST_DOOR <= cell < first_item and (cell - FIRST_DOOR) % 3 != OPEN):
                dark |= 1 << col
        # Sight spreads to the right, then to the left, and from each lit cell into the row ahead.
        ahead = 0
        for col in range(_VIEW - 1):
            if seen >> col & 1 and not dark >> col & 1:
                seen |= 2 << col
                ahead |= 3 << col
        for col in range(_VIEW - 1, 0, -1):
            if seen >> col & 1 and not dark >> col & 1:
                seen |= 1 << (col - 1)
                ahead |= 3 << (col - 1)
        for col in range(_VIEW):
            if not seen >> col & 1:
                view[row, col] = unseen
        seen = ahead
    view[_VIEW - 1, _VIEW // 2] = unseen + 2 + agent[CARRYING]


@compiled
def draw(layout: Layout, grid: np.ndarray, agent: np.ndarray, view: np.ndarray, image: np.ndarray) -> None:
    """Draw the agent's view as an image of [64, 192] bytes; the last pixel of each row and the last row are black."""
    see(len(layout.parents), grid, agent, view)
    for row in range(_VIEW):
        for col in range(_VIEW):
            tile = layout.tiles[view[row, col]]
            for line in range(_TILE):
                for k in range(3 * _TILE):
                    image[row * _TILE + line, col * 3 * _TILE + k] = tile[line, k]
    image[:, 3 * _VIEW * _TILE :] = 0
    image[_VIEW * _TILE] = 0


@compiled
def reset_all(layout: Layout, worlds: Worlds, images: np.ndarray) -> None:
    """Start a new episode in every environment; ``images`` are [n, 64, 192]."""
    view = np.empty((_VIEW, _VIEW), np.int64)
    for i in range(len(worlds.grid)):
        generate(layout, worlds.grid[i], worlds.agent[i], worlds.unlocked[i], worlds.random[i])
        draw(layout, worlds.grid[i], worlds.agent[i], view, images[i])


@compiled
def draw_all(layout: Layout, worlds: Worlds, images: np.ndarray) -> None:
    view = np.empty((_VIEW, _VIEW), np.int64)
    for i in range(len(worlds.grid)):
        draw(layout, worlds.grid[i], worlds.agent[i], view, images[i])


@compiled
def step_all(
    layout: Layout, worlds: Worlds, results: Results, actions: np.ndarray, images: np.ndarray, finals: np.ndarray
) -> int:
    """Step every environment and start a new episode where one ended; return how many did. ``finals`` may be empty."""
    view = np.empty((_VIEW, _VIEW), np.int64)
    goal = 2 * len(layout.parents) - 1
    ended = 0
    for i in range(len(worlds.grid)):
        grid, agent, unlocked = worlds.grid[i], worlds.agent[i], worlds.unlocked[i]
        agent[STEPS] += 1
        achieved = act(layout, grid, agent, actions[i])
        results.reward[i] = 0.0
        if achieved >= 0 and not unlocked[achieved]:
            unlocked[achieved] = 1
            results.reward[i] = 1.0
        results.terminated[i] = achieved == goal
        results.truncated[i] = agent[STEPS] >= layout.max_steps
        results.unlocked[i] = unlocked
        if results.terminated[i] or results.truncated[i]:
            ended += 1
            results.length[i] = agent[STEPS]
            if len(finals):
                draw(layout, grid, agent, view, finals[i])
            generate(layout, grid, agent, unlocked, worlds.random[i])
        draw(layout, grid, agent, view, images[i])
    return ended
