"""The world: materials, who stands where, and the chunks that balancing works on."""

from __future__ import annotations

import numpy as np

from .data import CHUNK, HEALTH, NO_MATERIAL, PLAYER, WALKABLE_BY
from .memory import array_at, copy_bytes, record_at
from .random import randint
from .state import CHUNK_RECORD, OBJECT
from .typing import Int, Record, World

OBJECT_BYTES = OBJECT.itemsize
CHUNK_BYTES = CHUNK_RECORD.itemsize


def entity(world: World, index: int) -> Record:
    """Return the object with an index; the player's is 0."""
    return record_at(world.objects + index * OBJECT_BYTES, OBJECT)


def chunk_at(world: World, chunk: int) -> Record:
    return record_at(world.chunks + chunk * CHUNK_BYTES, CHUNK_RECORD)


def inside(world: World, x: int, y: int) -> bool:
    return 0 <= x < world.width and 0 <= y < world.height


def ground(world: World, x: int, y: int) -> Int:
    """Return the material of a cell that is known to be inside the world."""
    cells = array_at(world.material, np.uint8, world.width * world.height)
    return np.int64(cells[x * world.height + y])


def set_ground(world: World, x: int, y: int, material: int) -> None:
    cells = array_at(world.material, np.uint8, world.width * world.height)
    cells[x * world.height + y] = material


def set_occupant(world: World, x: int, y: int, index: int) -> None:
    """Record which object is in a cell; -1 for none."""
    cells = array_at(world.object_at, np.int32, world.width * world.height)
    cells[x * world.height + y] = index + 1


def material_at(world: World, x: int, y: int) -> int:
    """Return the material of a cell, `NO_MATERIAL` outside the world."""
    if not inside(world, x, y):
        return NO_MATERIAL
    return ground(world, x, y)


def occupant(world: World, x: int, y: int) -> Int:
    """Return the index of the object in a cell, -1 if there is none."""
    if not inside(world, x, y):
        return -1
    cells = array_at(world.object_at, np.int32, world.width * world.height)
    return np.int64(cells[x * world.height + y]) - 1


def chunk_of(world: World, x: int, y: int) -> int:
    return (x // CHUNK) * world.chunk_rows + y // CHUNK


def set_material(world: World, x: int, y: int, material: int) -> None:
    counts = chunk_at(world, chunk_of(world, x, y)).materials
    counts[ground(world, x, y)] -= 1
    counts[material] += 1
    set_ground(world, x, y, material)


def enter_chunk(world: World, index: int, chunk: int) -> None:
    """Add an object to a chunk, last in its order; chunks are ordered by when they first held an object."""
    entity(world, index).entered = world.entries
    world.entries += 1
    chunk_at(world, chunk).creatures[entity(world, index).kind] += 1
    if chunk_at(world, chunk).touched == 0:
        chunk_at(world, chunk).touched = 1
        chunk_at(world, world.num_chunks).sequence = chunk
        world.num_chunks += 1


def add(world: World, kind: int, x: int, y: int) -> int:
    """Put a new object into a free cell and return its index."""
    index = world.num_objects
    if index >= world.capacity:
        return index - 1  # unreachable by construction, see object_capacity
    world.num_objects = index + 1
    set_occupant(world, x, y, index)
    me = entity(world, index)
    me.kind = kind
    me.removed = 0
    me.facing_x = 0
    me.facing_y = 0
    me.x = x
    me.y = y
    me.health = 0
    me.cooldown = 0
    me.reload = 0
    me.grown = 0
    enter_chunk(world, index, chunk_of(world, x, y))
    return index


def remove(world: World, index: int) -> None:
    """Take an object off the map. It still finishes its current update, as in the original."""
    me = entity(world, index)
    if me.removed:
        return
    me.removed = 1
    world.num_removed += 1
    set_occupant(world, me.x, me.y, -1)
    chunk_at(world, chunk_of(world, me.x, me.y)).creatures[me.kind] -= 1


def clear_removed(world: World) -> None:
    """Close the gaps that removed objects left, keeping the order of the others."""
    if world.num_removed == 0:
        return
    kept = 0
    for index in range(world.num_objects):
        if entity(world, index).removed:
            continue
        if kept != index:
            me = entity(world, index)
            set_occupant(world, me.x, me.y, kept)
            copy_bytes(world.objects + kept * OBJECT_BYTES, world.objects + index * OBJECT_BYTES, OBJECT_BYTES)
        kept += 1
    world.num_objects = kept
    world.num_removed = 0


def is_free(world: World, kind: int, x: int, y: int) -> bool:
    """Return whether an object of a kind could step into a cell."""
    return WALKABLE_BY[kind, material_at(world, x, y)] and occupant(world, x, y) < 0


def move(world: World, index: int, dx: int, dy: int) -> bool:
    """Move an object if the cell is free; return whether it was."""
    me = entity(world, index)
    x, y = me.x + dx, me.y + dy
    if not is_free(world, me.kind, x, y):
        return False
    if me.removed:
        return True
    old, new = chunk_of(world, me.x, me.y), chunk_of(world, x, y)
    set_occupant(world, me.x, me.y, -1)
    set_occupant(world, x, y, index)
    me.x = x
    me.y = y
    if old != new:
        chunk_at(world, old).creatures[me.kind] -= 1
        enter_chunk(world, index, new)
    return True


def hurt(world: World, index: int, damage: int) -> None:
    """Take health from any object; the player's is in the inventory."""
    me = entity(world, index)
    if me.kind == PLAYER:
        world.inventory[HEALTH] = max(0, world.inventory[HEALTH] - damage)
    else:
        me.health = max(0, me.health - damage)


def player_distance(world: World, x: int, y: int) -> int:
    """Return the number of steps from the player to a cell."""
    return abs(entity(world, 0).x - x) + abs(entity(world, 0).y - y)


def toward_player(world: World, index: int, long_axis: bool) -> tuple[int, int]:
    """Return one step towards the player, along the longer or the shorter axis."""
    dx = entity(world, 0).x - entity(world, index).x
    dy = entity(world, 0).y - entity(world, index).y
    along_x = abs(dx) > abs(dy) if long_axis else abs(dx) <= abs(dy)
    if along_x:
        return (1 if dx > 0 else -1 if dx < 0 else 0), 0
    return 0, (1 if dy > 0 else -1 if dy < 0 else 0)


def random_direction(world: World) -> tuple[int, int]:
    choice = randint(world, 4)
    if choice == 0:
        return -1, 0
    if choice == 1:
        return 1, 0
    if choice == 2:
        return 0, -1
    return 0, 1


def nearby(world: World, x: int, y: int, distance: int, wanted: np.ndarray) -> bool:
    """Return whether every material in the mask ``wanted`` lies within a square around a cell.

    The square is a Python slice, as in the original: at the left and upper edge its start is negative and counts from
    the other end, which usually leaves nothing.
    """
    width, height = world.width, world.height
    x0, y0 = x - distance, y - distance
    if x0 < 0:
        x0 = max(0, x0 + width)
    if y0 < 0:
        y0 = max(0, y0 + height)
    for material in range(len(wanted)):
        if not wanted[material]:
            continue
        found = False
        for i in range(x0, min(x + distance + 1, width)):
            for j in range(y0, min(y + distance + 1, height)):
                found = found or ground(world, i, j) == material
        if not found:
            return False
    return True
