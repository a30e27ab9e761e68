"""Spawning and despawning: every tenth step, each chunk drifts towards its target populations."""

from __future__ import annotations

from .creatures import add_cow, add_skeleton, add_zombie
from .data import CHUNK, COW, GRASS, PATH, SKELETON, ZOMBIE
from .random import randint, uniform
from .typing import World
from .world import chunk_at, chunk_of, entity, ground, occupant, player_distance, remove


def balance(world: World) -> None:
    for k in range(world.num_chunks):
        balance_chunk(world, chunk_at(world, k).sequence)


def balance_chunk(world: World, chunk: int) -> None:
    light = world.daylight
    grass = chunk_at(world, chunk).materials[GRASS]
    path = chunk_at(world, chunk).materials[PATH]
    zombies = 3.5 - 3 * light
    balance_object(world, chunk, ZOMBIE, GRASS, 6, 0, 0.3, 0.4, 0.0 if grass < 50 else zombies, zombies)
    balance_object(world, chunk, SKELETON, PATH, 7, 7, 0.1, 0.1, 0.0 if path < 6 else 1.0, 2.0)
    balance_object(world, chunk, COW, GRASS, 5, 5, 0.01, 0.1, 0.0 if grass < 30 else 1.0, 1.5 + light)


def balance_object(
    world: World,
    chunk: int,
    kind: int,
    material: int,
    spawn_distance: int,
    despawn_distance: int,
    spawn_probability: float,
    despawn_probability: float,
    target_min: float,
    target_max: float,
) -> None:
    count = chunk_at(world, chunk).creatures[kind]
    if count < int(target_min) and uniform(world) < spawn_probability:
        x, y = random_cell(world, chunk, material)
        if occupant(world, x, y) < 0 and player_distance(world, x, y) >= spawn_distance:
            spawn(world, kind, x, y)
    elif count > int(target_max) and uniform(world) < despawn_probability:
        index = creature(world, chunk, kind, randint(world, count))
        me = entity(world, index)
        if player_distance(world, me.x, me.y) >= despawn_distance:
            remove(world, index)


def spawn(world: World, kind: int, x: int, y: int) -> None:
    if kind == ZOMBIE:
        add_zombie(world, x, y)
    elif kind == SKELETON:
        add_skeleton(world, x, y)
    else:
        add_cow(world, x, y)


def random_cell(world: World, chunk: int, material: int) -> tuple[int, int]:
    """Return a random cell of the chunk with the material; there is at least one."""
    width, height = world.width, world.height
    rows = world.chunk_rows
    x0, y0 = (chunk // rows) * CHUNK, (chunk % rows) * CHUNK
    remaining = randint(world, chunk_at(world, chunk).materials[material])
    for x in range(x0, min(x0 + CHUNK, width)):
        for y in range(y0, min(y0 + CHUNK, height)):
            if ground(world, x, y) == material:
                if remaining == 0:
                    return x, y
                remaining -= 1
    return x0, y0


def creature(world: World, chunk: int, kind: int, rank: int) -> int:
    """Return the creature of a kind that entered the chunk ``rank``-th among those still there."""
    last = -1
    chosen = 0
    for _ in range(rank + 1):
        first = world.entries
        for index in range(world.num_objects):
            me = entity(world, index)
            if (
                me.kind == kind
                and not me.removed
                and last < me.entered < first
                and chunk_of(world, me.x, me.y) == chunk
            ):
                first = me.entered
                chosen = index
        last = first
    return chosen
