"""A new world: the land as noise has it, what chance makes of it, then cows, zombies and skeletons.

Only chance depends on the order of cells. The land (`land`) is a pure function of place and seed, so it is surveyed
column by column ahead of it, and threads that have nothing else to do can take columns.
"""

from __future__ import annotations

import math

import numpy as np

from .creatures import add_cow, add_skeleton, add_zombie
from .data import (
    COAL,
    DIAMOND,
    GRASS,
    IRON,
    LAVA,
    NUM_KINDS,
    NUM_MATERIALS,
    PATH,
    SAND,
    STONE,
    TREE,
    WALKABLE_BY,
    WATER,
    ZOMBIE,
)
from .memory import address_of, array_at, atomic_add, atomic_load, atomic_swap, give_way, relax
from .random import randint, uniform
from .simplex import permutation
from .terrain import (
    CAVES,
    COALS,
    IRONS,
    LAVAS,
    MOUNTAIN_COARSE,
    MOUNTAIN_FINE,
    SANDS,
    START,
    TREES,
    TUNNELS_ACROSS,
    TUNNELS_DOWN,
    WATER_COARSE,
    WATER_FINE,
    WORKSHOP,
    distance_to_centre,
    look_up_gradients,
    noise,
    start_bound,
)
from .typing import Int, Terrain, Workshop, World
from .world import chunk_at, chunk_of, ground, set_ground

MOUNTAIN_LINE, DIAMOND_LINE, CAVE_LINE = 0.15, 0.18, 0.3
SAND_LINE, WATER_LINE, DEEP_LINE = 0.25, 0.3, 0.35

SMALL_START = 0.01
ROUNDING = 1e-9

# A cell's land: the material it has unless chance puts something else there, and what that could be.
MATERIAL = 15
MAY_BE_TREE, MAY_BE_COAL, MAY_BE_IRON, MAY_BE_DIAMOND, TUNNEL = 16, 32, 64, 128, 256

assert WORKSHOP.fields is not None
COLUMN_TICKET = WORKSHOP.fields["ticket"][1]
CLOSED = 1 << 40
"""A ticket counter that no column is left for."""
PATIENCE = 1000


def worldgen(world: World, terrain: Terrain, shop: Workshop) -> None:
    permutation(randint(world, 2**31 - 1), shop.perm, shop.source)
    look_up_gradients(terrain, shop)
    open_survey(terrain, shop)
    for x in range(world.width):
        await_survey(terrain, shop, x)
        for y in range(world.height):
            set_ground(world, x, y, generate_material(world, terrain, shop, x, y))
    count_materials(world)
    for x in range(world.width):
        for y in range(world.height):
            generate_object(world, terrain, shop, x, y)


def open_survey(terrain: Terrain, shop: Workshop) -> None:
    """Lets idle threads look at the land of columns, from the first to the last."""
    for x in range(terrain.width):
        atomic_swap(shop.surveyed + 8 * x, 0)
    if terrain.blocks != 0:  # the room for evaluating noise directly is one thread's
        atomic_swap(address_of(shop) + COLUMN_TICKET, 0)


def await_survey(terrain: Terrain, shop: Workshop, x: int) -> None:
    """Returns when a column is surveyed; until then surveys columns that nobody has taken."""
    waited = 0
    while atomic_load(shop.surveyed + 8 * x) == 0:
        if terrain.blocks == 0:
            survey_column(terrain, shop, x)
        elif help_survey(terrain, shop):
            waited = 0
        else:
            waited += 1
            if waited > PATIENCE:
                give_way()
            else:
                relax()


def help_survey(terrain: Terrain, shop: Workshop) -> bool:
    """Surveys a column, if there is one left to take."""
    ticket = address_of(shop) + COLUMN_TICKET
    if atomic_load(ticket) >= terrain.width:
        return False
    x = atomic_add(ticket, 1)
    if x >= terrain.width:
        return False
    survey_column(terrain, shop, x)
    return True


def survey_column(terrain: Terrain, shop: Workshop, x: int) -> None:
    lands = array_at(shop.land, np.uint16, terrain.width * terrain.height)
    for y in range(terrain.height):
        lands[x * terrain.height + y] = land(terrain, shop, x, y)
    atomic_swap(shop.surveyed + 8 * x, 1)


def land_at(terrain: Terrain, shop: Workshop, x: int, y: int) -> Int:
    return np.int64(array_at(shop.land, np.uint16, terrain.width * terrain.height)[x * terrain.height + y])


def land(terrain: Terrain, shop: Workshop, x: int, y: int) -> int:
    """What noise alone decides about a cell."""
    most = start_bound(terrain, x, y)
    start = 0.0
    if most > SMALL_START:
        start = start_area(terrain, shop, x, y)
        if start > 0.5:
            return GRASS
    wet = noise(terrain, shop, WATER_COARSE, x, y)
    wet += 0.15 * noise(terrain, shop, WATER_FINE, x, y)
    high = noise(terrain, shop, MOUNTAIN_COARSE, x, y)
    high += 0.3 * noise(terrain, shop, MOUNTAIN_FINE, x, y)
    high /= 1.3
    water = wet + 0.1 - 2 * start
    mountain = high - (4 * start + 0.3 * water)
    if most <= SMALL_START and start_matters(water, mountain, most):
        start = start_area(terrain, shop, x, y)
        water = wet + 0.1 - 2 * start
        mountain = high - (4 * start + 0.3 * water)
    if mountain > MOUNTAIN_LINE:
        return mountain_land(terrain, shop, x, y, mountain)
    if SAND_LINE < water <= DEEP_LINE and noise(terrain, shop, SANDS, x, y) > -0.2:
        return SAND
    if water > WATER_LINE:
        return WATER
    if noise(terrain, shop, TREES, x, y) > 0:
        return GRASS + MAY_BE_TREE
    return GRASS


def start_area(terrain: Terrain, shop: Workshop, x: int, y: int) -> float:
    """How much a cell belongs to the meadow around the player's first position."""
    start = 4 - distance_to_centre(terrain, x, y)
    start += 2 * noise(terrain, shop, START, x, y)
    return 1 / (1 + math.exp(-start))


def start_matters(water: float, mountain: float, most: float) -> bool:
    """Whether a meadow share between 0 and ``most`` could move a cell across any line.

    Far from the start the share is tiny, and its noise and exponential need not be evaluated
    unless a cell happens to be next to a line. The share lowers the water by 2 and the mountain by
    3.4 times itself; rounding is covered by a margin.
    """
    return (
        crosses(water, 2 * most, SAND_LINE)
        or crosses(water, 2 * most, WATER_LINE)
        or crosses(water, 2 * most, DEEP_LINE)
        or crosses(mountain, 3.4 * most, MOUNTAIN_LINE)
        or crosses(mountain, 3.4 * most, DIAMOND_LINE)
        or crosses(mountain, 3.4 * most, CAVE_LINE)
    )


def crosses(value: float, fall: float, line: float) -> bool:
    return value - fall - ROUNDING <= line <= value + ROUNDING


def mountain_land(terrain: Terrain, shop: Workshop, x: int, y: int, mountain: float) -> int:
    cave = mountain > CAVE_LINE
    if cave and noise(terrain, shop, CAVES, x, y) > 0.15:
        return PATH
    if noise(terrain, shop, TUNNELS_ACROSS, x, y) > 0.4:
        return PATH + TUNNEL
    if noise(terrain, shop, TUNNELS_DOWN, x, y) > 0.4:
        return PATH + TUNNEL
    found = LAVA if cave and noise(terrain, shop, LAVAS, x, y) > 0.35 else STONE
    if noise(terrain, shop, COALS, x, y) > 0:
        found += MAY_BE_COAL
    if noise(terrain, shop, IRONS, x, y) > 0.4:
        found += MAY_BE_IRON
    if mountain > DIAMOND_LINE:
        found += MAY_BE_DIAMOND
    return found


def generate_material(world: World, terrain: Terrain, shop: Workshop, x: int, y: int) -> int:
    """What chance makes of a cell's land."""
    what = land_at(terrain, shop, x, y)
    if what & MAY_BE_TREE and uniform(world) > 0.8:
        return TREE
    if what & MAY_BE_COAL and uniform(world) > 0.85:
        return COAL
    if what & MAY_BE_IRON and uniform(world) > 0.75:
        return IRON
    if what & MAY_BE_DIAMOND and uniform(world) > 0.994:
        return DIAMOND
    return what & MATERIAL


def generate_object(world: World, terrain: Terrain, shop: Workshop, x: int, y: int) -> None:
    material = ground(world, x, y)
    distance = distance_to_centre(terrain, x, y)
    if not WALKABLE_BY[ZOMBIE, material]:
        return
    if distance > 3 and material == GRASS and uniform(world) > 0.985:
        add_cow(world, x, y)
    elif distance > 10 and uniform(world) > 0.993:
        add_zombie(world, x, y)
    elif material == PATH and land_at(terrain, shop, x, y) & TUNNEL and uniform(world) > 0.95:
        add_skeleton(world, x, y)


def count_materials(world: World) -> None:
    """Chunk statistics of a freshly generated map."""
    for x in range(world.width):
        for y in range(world.height):
            chunk_at(world, chunk_of(world, x, y)).materials[ground(world, x, y)] += 1


def clear_world(world: World) -> None:
    world.num_objects = 0
    world.num_removed = 0
    world.num_chunks = 0
    world.entries = 0
    occupants = array_at(world.object_at, np.int32, world.width * world.height)
    for i in range(len(occupants)):
        occupants[i] = 0
    for chunk in range(world.chunk_count):
        record = chunk_at(world, chunk)
        record.touched = 0
        record.sequence = 0
        for material in range(NUM_MATERIALS):
            record.materials[material] = 0
        for kind in range(NUM_KINDS):
            record.creatures[kind] = 0
