"""The world: materials, who stands where, and the chunks that balancing works on."""

from __future__ import annotations

from .data import CHUNK, NO_MATERIAL, PLAYER, WALKABLE_BY, HEALTH
from .random import randint


def inside(world, x, y):
    return 0 <= x < world.material.shape[0] and 0 <= y < world.material.shape[1]


def material_at(world, x, y):
    """The material of a cell, `NO_MATERIAL` outside the world."""
    if not inside(world, x, y):
        return NO_MATERIAL
    return int(world.material[x, y])


def occupant(world, x, y):
    """Index of the object in a cell, -1 if there is none."""
    if not inside(world, x, y):
        return -1
    return int(world.object_at[x, y]) - 1


def chunk_of(world, x, y):
    return (x // CHUNK) * ((world.material.shape[1] + CHUNK - 1) // CHUNK) + y // CHUNK


def set_material(world, x, y, material):
    counts = world.chunks[chunk_of(world, x, y)].materials
    counts[world.material[x, y]] -= 1
    counts[material] += 1
    world.material[x, y] = material


def enter_chunk(world, index, chunk):
    """Last in its chunk's order; chunks are ordered by when they first held an object."""
    var = world.var
    world.objects[index].entered = var.entries
    var.entries += 1
    world.chunks[chunk].creatures[world.objects[index].kind] += 1
    if world.chunks[chunk].touched == 0:
        world.chunks[chunk].touched = 1
        world.chunks[var.num_chunks].sequence = chunk
        var.num_chunks += 1


def add(world, kind, x, y):
    """Puts a new object into a free cell and returns its index."""
    index = int(world.var.num_objects)
    if index >= world.objects.shape[0]:
        return index - 1  # unreachable by construction, see object_capacity
    world.var.num_objects = index + 1
    world.object_at[x, y] = index + 1
    me = world.objects[index]
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


def remove(world, index):
    """Takes an object off the map. In its current update it still acts, as in the original."""
    me = world.objects[index]
    if me.removed:
        return
    me.removed = 1
    world.var.num_removed += 1
    world.object_at[me.x, me.y] = 0
    world.chunks[chunk_of(world, me.x, me.y)].creatures[me.kind] -= 1


def clear_removed(world):
    """Closes the gaps that removed objects left, keeping the order of the others."""
    var = world.var
    if var.num_removed == 0:
        return
    kept = 0
    for index in range(var.num_objects):
        if world.objects[index].removed:
            continue
        if kept != index:
            world.objects[kept] = world.objects[index]
            world.object_at[world.objects[kept].x, world.objects[kept].y] = kept + 1
        kept += 1
    var.num_objects = kept
    var.num_removed = 0


def is_free(world, kind, x, y):
    """Whether an object of a kind could step into a cell."""
    return WALKABLE_BY[kind, material_at(world, x, y)] and occupant(world, x, y) < 0


def move(world, index, dx, dy):
    """Moves an object if the cell is free; says whether it was."""
    me = world.objects[index]
    x, y = me.x + dx, me.y + dy
    if not is_free(world, me.kind, x, y):
        return False
    if me.removed:
        return True
    old, new = chunk_of(world, me.x, me.y), chunk_of(world, x, y)
    world.object_at[me.x, me.y] = 0
    world.object_at[x, y] = index + 1
    me.x = x
    me.y = y
    if old != new:
        world.chunks[old].creatures[me.kind] -= 1
        enter_chunk(world, index, new)
    return True


def hurt(world, index, damage):
    """Takes health from any object; the player's is in the inventory."""
    me = world.objects[index]
    if me.kind == PLAYER:
        world.var.inventory[HEALTH] = max(0, world.var.inventory[HEALTH] - damage)
    else:
        me.health = max(0, me.health - damage)


def player_distance(world, x, y):
    """Steps from the player to a cell."""
    return abs(world.objects[0].x - x) + abs(world.objects[0].y - y)


def toward_player(world, index, long_axis):
    """One step towards the player, along the longer or the shorter way."""
    dx = world.objects[0].x - world.objects[index].x
    dy = world.objects[0].y - world.objects[index].y
    along_x = abs(dx) > abs(dy) if long_axis else abs(dx) <= abs(dy)
    if along_x:
        return (1 if dx > 0 else -1 if dx < 0 else 0), 0
    return 0, (1 if dy > 0 else -1 if dy < 0 else 0)


def random_direction(world):
    choice = randint(world, 4)
    if choice == 0:
        return -1, 0
    if choice == 1:
        return 1, 0
    if choice == 2:
        return 0, -1
    return 0, 1


def nearby(world, x, y, distance, wanted):
    """Whether every material in the mask ``wanted`` lies within a square around a cell.

    The square is a Python slice, as in the original: at the left and upper edge its start is
    negative and counts from the other end, which usually leaves nothing.
    """
    width, height = world.material.shape
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
                found = found or world.material[i, j] == material
        if not found:
            return False
    return True
