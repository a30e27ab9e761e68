"""A new world: terrain from noise, then cows, zombies and skeletons.

Noise is looked up in tables made once per world size (`build_terrain`): they hold, for every cell
and every kind of noise the terrain uses, the lattice vertices around it. Worlds too large for
tables evaluate the noise directly; the results are the same.
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
from .memory import array_at, record_at
from .random import randint, uniform
from .simplex import GRADIENTS, MAX_CORNERS, NORM, corners, gradient, noise3, permutation
from .typing import Record, Terrain, Workshop, World
from .world import chunk_at, chunk_of, ground, set_ground

# Kinds of noise, and the depth (z) and scale each is read at.
(
    START,
    WATER_COARSE,
    WATER_FINE,
    MOUNTAIN_COARSE,
    MOUNTAIN_FINE,
    CAVES,
    TUNNELS_ACROSS,
    TUNNELS_DOWN,
    COALS,
    IRONS,
    LAVAS,
    SANDS,
    TREES,
) = range(13)
NUM_NOISES = 13
NOISE_DEPTH = np.array([8, 3, 3, 0, 0, 6, 7, 7, 1, 2, 6, 4, 5], np.int64)
NOISE_SCALE = np.array([3, 15, 5, 15, 5, 7, 3, 3, 8, 6, 5, 9, 7], np.int64)


MOUNTAIN_LINE, DIAMOND_LINE, CAVE_LINE = 0.15, 0.18, 0.3
SAND_LINE, WATER_LINE, DEEP_LINE = 0.25, 0.3, 0.35

SMALL_START = 0.01
ROUNDING = 1e-9

USUAL_CORNERS = 7
"""Vertices every sum of noise runs over; the eighth is rarely close enough to matter."""

BLOCK = np.dtype(
    [
        ("weights", np.float64, (MAX_CORNERS, 4)),  # fade, dx, dy, dz; unused rows are zero
        ("vertices", np.uint16, (MAX_CORNERS,)),  # rows of TERRAIN.vertices
        ("count", np.int64),
    ],
    align=True,
)
"""One kind of noise at one cell, apart from the seed."""

TERRAIN = np.dtype(
    [
        ("blocks", np.int64),  # BLOCK[NUM_NOISES, width, height], or 0: evaluate directly
        ("vertices", np.int64),  # uint8[num_vertices, 3]: distinct lattice vertices, modulo 256
        ("distance", np.int64),  # float64[width, height]: from the world's centre
        ("start_bound", np.int64),  # float64[width, height]: no start share is larger
        ("num_vertices", np.int64),
    ],
    align=True,
)
"""Tables for one world size; see `build_terrain`."""

BLOCK_BYTES = BLOCK.itemsize
FLAT_GRADIENTS = GRADIENTS.ravel()

WORKSHOP = np.dtype(
    [
        ("gradients", np.int64),  # uint8[num_vertices]: row of GRADIENTS at each distinct vertex
        ("tunnels", np.int64),  # uint8[width, height]
        ("perm", np.uint8, (256,)),
        ("source", np.uint8, (256,)),
        ("corner_vertices", np.int64, (MAX_CORNERS, 3)),
        ("corner_weights", np.float64, (MAX_CORNERS, 4)),
    ],
    align=True,
)
"""Memory for making one world."""


def noise_point(kind: int, x: int, y: int) -> tuple[float, float]:
    """Where a kind of noise is read for a cell."""
    scale = NOISE_SCALE[kind]
    if kind == TUNNELS_ACROSS:
        return (2 * x) / scale, (y / 5) / scale
    if kind == TUNNELS_DOWN:
        return (x / 5) / scale, (2 * y) / scale
    return x / scale, y / scale


def build_terrain(width: int, height: int, blocks: np.ndarray, vertices: np.ndarray) -> None:
    """Fills the blocks, and the vertices (int64[..., 8, 3]) that belong to them."""
    row = 0
    for kind in range(NUM_NOISES):
        for x in range(width):
            for y in range(height):
                px, py = noise_point(kind, x, y)
                depth = np.float64(NOISE_DEPTH[kind])
                blocks[row].count = corners(px, py, depth, vertices[row], blocks[row].weights)
                row += 1


def noise(world: World, terrain: Terrain, shop: Workshop, kind: int, x: int, y: int) -> float:
    """One kind of noise at a cell."""
    if terrain.blocks == 0:
        px, py = noise_point(kind, x, y)
        depth = np.float64(NOISE_DEPTH[kind])
        return noise3(shop.perm, px, py, depth, shop.corner_vertices, shop.corner_weights)
    at = (kind * world.width + x) * world.height + y
    block = record_at(terrain.blocks + at * BLOCK_BYTES, BLOCK)
    gradients = array_at(shop.gradients, np.uint8, terrain.num_vertices)
    # A fixed number of rounds is faster than the right one; the zeros at the end change nothing.
    value = 0.0
    for k in range(USUAL_CORNERS):
        value += pull(block, gradients, k)
    if block.count > USUAL_CORNERS:
        value += pull(block, gradients, USUAL_CORNERS)
    return value / NORM


def pull(block: Record, gradients: np.ndarray, k: int) -> float:
    """What one vertex adds to the noise."""
    g = 3 * np.int64(gradients[block.vertices[k]])
    return block.weights[k, 0] * (
        FLAT_GRADIENTS[g] * block.weights[k, 1]
        + FLAT_GRADIENTS[g + 1] * block.weights[k, 2]
        + FLAT_GRADIENTS[g + 2] * block.weights[k, 3]
    )


def distance_to_centre(world: World, terrain: Terrain, x: int, y: int) -> float:
    return array_at(terrain.distance, np.float64, world.width * world.height)[x * world.height + y]


def start_bound(world: World, terrain: Terrain, x: int, y: int) -> float:
    return array_at(terrain.start_bound, np.float64, world.width * world.height)[
        x * world.height + y
    ]


def is_tunnel(world: World, shop: Workshop, x: int, y: int) -> bool:
    return array_at(shop.tunnels, np.uint8, world.width * world.height)[x * world.height + y] != 0


def set_tunnel(world: World, shop: Workshop, x: int, y: int, value: int) -> None:
    tunnels = array_at(shop.tunnels, np.uint8, world.width * world.height)
    tunnels[x * world.height + y] = value


def worldgen(world: World, terrain: Terrain, shop: Workshop) -> None:
    permutation(randint(world, 2**31 - 1), shop.perm, shop.source)
    look_up_gradients(terrain, shop)
    for x in range(world.width):
        for y in range(world.height):
            set_tunnel(world, shop, x, y, 0)
            set_ground(world, x, y, generate_material(world, terrain, shop, x, y))
    count_materials(world)
    for x in range(world.width):
        for y in range(world.height):
            generate_object(world, terrain, shop, x, y)


def look_up_gradients(terrain: Terrain, shop: Workshop) -> None:
    vertices = array_at(terrain.vertices, np.uint8, 3 * terrain.num_vertices)
    gradients = array_at(shop.gradients, np.uint8, terrain.num_vertices)
    for i in range(terrain.num_vertices):
        x, y, z = vertices[3 * i], vertices[3 * i + 1], vertices[3 * i + 2]
        gradients[i] = gradient(shop.perm, np.int64(x), np.int64(y), np.int64(z))


def generate_material(world: World, terrain: Terrain, shop: Workshop, x: int, y: int) -> int:
    most = start_bound(world, terrain, x, y)
    start = 0.0
    if most > SMALL_START:
        start = start_area(world, terrain, shop, x, y)
        if start > 0.5:
            return GRASS
    wet = noise(world, terrain, shop, WATER_COARSE, x, y)
    wet += 0.15 * noise(world, terrain, shop, WATER_FINE, x, y)
    high = noise(world, terrain, shop, MOUNTAIN_COARSE, x, y)
    high += 0.3 * noise(world, terrain, shop, MOUNTAIN_FINE, x, y)
    high /= 1.3
    water = wet + 0.1 - 2 * start
    mountain = high - (4 * start + 0.3 * water)
    if most <= SMALL_START and start_matters(water, mountain, most):
        start = start_area(world, terrain, shop, x, y)
        water = wet + 0.1 - 2 * start
        mountain = high - (4 * start + 0.3 * water)
    if mountain > MOUNTAIN_LINE:
        return generate_mountain(world, terrain, shop, x, y, mountain)
    if SAND_LINE < water <= DEEP_LINE and noise(world, terrain, shop, SANDS, x, y) > -0.2:
        return SAND
    if water > WATER_LINE:
        return WATER
    if noise(world, terrain, shop, TREES, x, y) > 0 and uniform(world) > 0.8:
        return TREE
    return GRASS


def start_area(world: World, terrain: Terrain, shop: Workshop, x: int, y: int) -> float:
    """How much a cell belongs to the meadow around the player's first position."""
    start = 4 - distance_to_centre(world, terrain, x, y)
    start += 2 * noise(world, terrain, shop, START, x, y)
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


def generate_mountain(
    world: World, terrain: Terrain, shop: Workshop, x: int, y: int, mountain: float
) -> int:
    if mountain > CAVE_LINE and noise(world, terrain, shop, CAVES, x, y) > 0.15:
        return PATH
    if noise(world, terrain, shop, TUNNELS_ACROSS, x, y) > 0.4:
        set_tunnel(world, shop, x, y, 1)
        return PATH
    if noise(world, terrain, shop, TUNNELS_DOWN, x, y) > 0.4:
        set_tunnel(world, shop, x, y, 1)
        return PATH
    if noise(world, terrain, shop, COALS, x, y) > 0 and uniform(world) > 0.85:
        return COAL
    if noise(world, terrain, shop, IRONS, x, y) > 0.4 and uniform(world) > 0.75:
        return IRON
    if mountain > DIAMOND_LINE and uniform(world) > 0.994:
        return DIAMOND
    if mountain > CAVE_LINE and noise(world, terrain, shop, LAVAS, x, y) > 0.35:
        return LAVA
    return STONE


def generate_object(world: World, terrain: Terrain, shop: Workshop, x: int, y: int) -> None:
    material = ground(world, x, y)
    distance = distance_to_centre(world, terrain, x, y)
    if not WALKABLE_BY[ZOMBIE, material]:
        return
    if distance > 3 and material == GRASS and uniform(world) > 0.985:
        add_cow(world, x, y)
    elif distance > 10 and uniform(world) > 0.993:
        add_zombie(world, x, y)
    elif material == PATH and is_tunnel(world, shop, x, y) and uniform(world) > 0.95:
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
