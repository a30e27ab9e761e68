"""A new world: the land as noise shapes it, random materials on it, then cows, zombies and skeletons.

Only the random draws depend on the order of cells. The land (`land`) is a pure function of place and seed, so it is
surveyed ahead of them column by column, and threads that have nothing else to do can take columns.
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
from .memory import address_of, array_at, atomic_add, atomic_load, atomic_swap, spin_hint, yield_thread
from .random import randint, uniform
from .simplex import permutation
from .terrain import (
    CAVES,
    COALS,
    IRONS,
    LAVAS,
    SANDS,
    START,
    SURVEY,
    TUNNELS_ACROSS,
    TUNNELS_DOWN,
    distance_to_centre,
    look_up_gradients,
    noise,
    shape_column,
    shape_noise,
    start_bound,
)
from .typing import Int, Survey, Terrain, World
from .world import chunk_at, chunk_of, ground, set_ground

MOUNTAIN_LINE, DIAMOND_LINE, CAVE_LINE = 0.15, 0.18, 0.3
SAND_LINE, WATER_LINE, DEEP_LINE = 0.25, 0.3, 0.35

# Places in `SHAPES`, of the coarse kind of two.
WATER_SHAPE, MOUNTAIN_SHAPE, TREE_SHAPE = 0, 2, 4

SMALL_START = 0.01
ROUNDING = 1e-9

# A cell's land: the material it has unless chance puts something else there, and what that could be.
MATERIAL = 15
MAY_BE_TREE, MAY_BE_COAL, MAY_BE_IRON, MAY_BE_DIAMOND, TUNNEL = 16, 32, 64, 128, 256

assert SURVEY.fields is not None
COLUMN_TICKET = SURVEY.fields["ticket"][1]
CLOSED = 1 << 40
"""A ticket counter with no columns left."""
PATIENCE = 1000


def worldgen(world: World, terrain: Terrain, survey: Survey) -> None:
    permutation(randint(world, 2**31 - 1), survey.perm, survey.source)
    look_up_gradients(terrain, survey)
    open_survey(terrain, survey)
    for x in range(world.width):
        await_survey(terrain, survey, x)
        for y in range(world.height):
            set_ground(world, x, y, generate_material(world, terrain, survey, x, y))
    count_materials(world)
    for x in range(world.width):
        for y in range(world.height):
            generate_object(world, terrain, survey, x, y)


def open_survey(terrain: Terrain, survey: Survey) -> None:
    """Let idle threads survey columns of land, from the first to the last."""
    for x in range(terrain.width):
        atomic_swap(survey.surveyed + 8 * x, 0)
    if terrain.blocks != 0:  # the room for evaluating noise directly is one thread's
        atomic_swap(address_of(survey) + COLUMN_TICKET, 0)


def await_survey(terrain: Terrain, survey: Survey, x: int) -> None:
    """Return when a column is surveyed; until then, survey columns that nobody has taken."""
    waited = 0
    while atomic_load(survey.surveyed + 8 * x) == 0:
        if terrain.blocks == 0:
            survey_column(terrain, survey, x)
        elif help_survey(terrain, survey):
            waited = 0
        else:
            waited += 1
            if waited > PATIENCE:
                yield_thread()
            else:
                spin_hint()


def help_survey(terrain: Terrain, survey: Survey) -> bool:
    """Survey a column, if there is one left to take; return whether there was."""
    ticket = address_of(survey) + COLUMN_TICKET
    if atomic_load(ticket) >= terrain.width:
        return False
    x = atomic_add(ticket, 1)
    if x >= terrain.width:
        return False
    survey_column(terrain, survey, x)
    return True


def survey_column(terrain: Terrain, survey: Survey, x: int) -> None:
    lands = array_at(survey.land, np.uint16, terrain.width * terrain.height)
    if terrain.blocks != 0:
        shape_column(terrain, survey, x)
    for y in range(terrain.height):
        lands[x * terrain.height + y] = land(terrain, survey, x, y)
    atomic_swap(survey.surveyed + 8 * x, 1)


def land_at(terrain: Terrain, survey: Survey, x: int, y: int) -> Int:
    return np.int64(array_at(survey.land, np.uint16, terrain.width * terrain.height)[x * terrain.height + y])


def land(terrain: Terrain, survey: Survey, x: int, y: int) -> int:
    """Return what noise alone decides about a cell."""
    most = start_bound(terrain, x, y)
    start = 0.0
    if most > SMALL_START:
        start = start_area(terrain, survey, x, y)
        if start > 0.5:
            return GRASS
    wet = shape_noise(terrain, survey, WATER_SHAPE, x, y)
    wet += 0.15 * shape_noise(terrain, survey, WATER_SHAPE + 1, x, y)
    high = shape_noise(terrain, survey, MOUNTAIN_SHAPE, x, y)
    high += 0.3 * shape_noise(terrain, survey, MOUNTAIN_SHAPE + 1, x, y)
    high /= 1.3
    water = wet + 0.1 - 2 * start
    mountain = high - (4 * start + 0.3 * water)
    if most <= SMALL_START and start_matters(water, mountain, most):
        start = start_area(terrain, survey, x, y)
        water = wet + 0.1 - 2 * start
        mountain = high - (4 * start + 0.3 * water)
    if mountain > MOUNTAIN_LINE:
        return mountain_land(terrain, survey, x, y, mountain)
    if SAND_LINE < water <= DEEP_LINE and noise(terrain, survey, SANDS, x, y) > -0.2:
        return SAND
    if water > WATER_LINE:
        return WATER
    if shape_noise(terrain, survey, TREE_SHAPE, x, y) > 0:
        return GRASS + MAY_BE_TREE
    return GRASS


def start_area(terrain: Terrain, survey: Survey, x: int, y: int) -> float:
    """Return how much a cell belongs to the meadow around the player's first position."""
    start = 4 - distance_to_centre(terrain, x, y)
    start += 2 * noise(terrain, survey, START, x, y)
    return 1 / (1 + math.exp(-start))


def start_matters(water: float, mountain: float, most: float) -> bool:
    """Return whether a meadow share between 0 and ``most`` could move a cell across any threshold.

    Far from the start the share is tiny, and its noise and exponential are only needed where a cell is close to a
    threshold. The share lowers the water by 2 and the mountain by 3.4 times itself; a margin covers rounding.
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


def mountain_land(terrain: Terrain, survey: Survey, x: int, y: int, mountain: float) -> int:
    cave = mountain > CAVE_LINE
    if cave and noise(terrain, survey, CAVES, x, y) > 0.15:
        return PATH
    if noise(terrain, survey, TUNNELS_ACROSS, x, y) > 0.4:
        return PATH + TUNNEL
    if noise(terrain, survey, TUNNELS_DOWN, x, y) > 0.4:
        return PATH + TUNNEL
    found = LAVA if cave and noise(terrain, survey, LAVAS, x, y) > 0.35 else STONE
    if noise(terrain, survey, COALS, x, y) > 0:
        found += MAY_BE_COAL
    if noise(terrain, survey, IRONS, x, y) > 0.4:
        found += MAY_BE_IRON
    if mountain > DIAMOND_LINE:
        found += MAY_BE_DIAMOND
    return found


def generate_material(world: World, terrain: Terrain, survey: Survey, x: int, y: int) -> int:
    """Draw a cell's material, given its land."""
    what = land_at(terrain, survey, x, y)
    if what & MAY_BE_TREE and uniform(world) > 0.8:
        return TREE
    if what & MAY_BE_COAL and uniform(world) > 0.85:
        return COAL
    if what & MAY_BE_IRON and uniform(world) > 0.75:
        return IRON
    if what & MAY_BE_DIAMOND and uniform(world) > 0.994:
        return DIAMOND
    return what & MATERIAL


def generate_object(world: World, terrain: Terrain, survey: Survey, x: int, y: int) -> None:
    material = ground(world, x, y)
    distance = distance_to_centre(terrain, x, y)
    if not WALKABLE_BY[ZOMBIE, material]:
        return
    if distance > 3 and material == GRASS and uniform(world) > 0.985:
        add_cow(world, x, y)
    elif distance > 10 and uniform(world) > 0.993:
        add_zombie(world, x, y)
    elif material == PATH and land_at(terrain, survey, x, y) & TUNNEL and uniform(world) > 0.95:
        add_skeleton(world, x, y)


def count_materials(world: World) -> None:
    """Count the materials of each chunk of a freshly generated map."""
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
