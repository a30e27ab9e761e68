"""A new world: terrain from noise, then cows, zombies and skeletons.

Noise is looked up in tables made once per world size (`build_terrain`): they hold, for every cell
and every kind of noise the terrain uses, the lattice vertices around it. Worlds too large for
tables evaluate the noise directly; the results are the same.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
from .random import randint, uniform
from .simplex import GRADIENTS, MAX_CORNERS, NORM, corners, gradient, noise3, permutation
from .world import chunk_of

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


class Terrain(NamedTuple):
    """Tables for one world size; see `build_terrain`."""

    first: Any  # int32[NUM_NOISES, cells + 1]: rows of `weights` of a cell
    weights: Any  # float64[rows, 4]: fade, dx, dy, dz
    vertex: Any  # int32[rows]: row of `vertices`
    vertices: Any  # uint8[n, 3]: distinct lattice vertices, modulo 256
    distance: Any  # float64[width, height]: from the world's centre


class Scratch(NamedTuple):
    """Memory for one world's making."""

    perm: Any  # uint8[256]
    source: Any  # uint8[256]
    gradients: Any  # uint8[n]: row of GRADIENTS at each distinct vertex
    tunnels: Any  # bool[width, height]


def noise_point(kind, x, y):
    """Where a kind of noise is read for a cell."""
    scale = NOISE_SCALE[kind]
    if kind == TUNNELS_ACROSS:
        return (2 * x) / scale, (y / 5) / scale
    if kind == TUNNELS_DOWN:
        return (x / 5) / scale, (2 * y) / scale
    return x / scale, y / scale


def build_terrain(width, height, first, weights, vertices):
    """Fills the tables' rows (or only counts them, if there is no room) and returns their number."""
    row = 0
    corner_vertices = np.empty((MAX_CORNERS, 3), np.int64)
    corner_weights = np.empty((MAX_CORNERS, 4), np.float64)
    for kind in range(NUM_NOISES):
        for x in range(width):
            for y in range(height):
                first[kind, x * height + y] = row
                px, py = noise_point(kind, x, y)
                depth = np.float64(NOISE_DEPTH[kind])
                count = corners(px, py, depth, corner_vertices, corner_weights)
                if row + count <= weights.shape[0]:
                    weights[row : row + count] = corner_weights[:count]
                    vertices[row : row + count] = corner_vertices[:count]
                row += count
        first[kind, width * height] = row
    return row


def noise(terrain, scratch, kind, x, y):
    """One kind of noise at a cell."""
    if terrain.weights.shape[0] == 0:
        px, py = noise_point(kind, x, y)
        return noise3(scratch.perm, px, py, np.float64(NOISE_DEPTH[kind]))
    cell = x * scratch.tunnels.shape[1] + y
    value = 0.0
    for row in range(terrain.first[kind, cell], terrain.first[kind, cell + 1]):
        g = scratch.gradients[terrain.vertex[row]]
        value += terrain.weights[row, 0] * (
            GRADIENTS[g, 0] * terrain.weights[row, 1]
            + GRADIENTS[g, 1] * terrain.weights[row, 2]
            + GRADIENTS[g, 2] * terrain.weights[row, 3]
        )
    return value / NORM


def worldgen(world, terrain, scratch):
    width, height = world.material.shape
    permutation(randint(world, 2**31 - 1), scratch.perm, scratch.source)
    for i in range(terrain.vertices.shape[0]):
        at = terrain.vertices[i]
        scratch.gradients[i] = gradient(scratch.perm, at[0], at[1], at[2])
    for x in range(width):
        for y in range(height):
            scratch.tunnels[x, y] = False
            world.material[x, y] = generate_material(world, terrain, scratch, x, y)
    count_materials(world)
    for x in range(width):
        for y in range(height):
            generate_object(world, terrain, scratch, x, y)


def generate_material(world, terrain, scratch, x, y):
    start = 4 - terrain.distance[x, y]
    start += 2 * noise(terrain, scratch, START, x, y)
    start = 1 / (1 + math.exp(-start))
    if start > 0.5:
        return GRASS
    water = noise(terrain, scratch, WATER_COARSE, x, y)
    water += 0.15 * noise(terrain, scratch, WATER_FINE, x, y)
    water = water + 0.1 - 2 * start
    mountain = noise(terrain, scratch, MOUNTAIN_COARSE, x, y)
    mountain += 0.3 * noise(terrain, scratch, MOUNTAIN_FINE, x, y)
    mountain = mountain / 1.3 - (4 * start + 0.3 * water)
    if mountain > 0.15:
        return generate_mountain(world, terrain, scratch, x, y, mountain)
    if 0.25 < water <= 0.35 and noise(terrain, scratch, SANDS, x, y) > -0.2:
        return SAND
    if 0.3 < water:
        return WATER
    if noise(terrain, scratch, TREES, x, y) > 0 and uniform(world) > 0.8:
        return TREE
    return GRASS


def generate_mountain(world, terrain, scratch, x, y, mountain):
    if mountain > 0.3 and noise(terrain, scratch, CAVES, x, y) > 0.15:
        return PATH
    if noise(terrain, scratch, TUNNELS_ACROSS, x, y) > 0.4:
        scratch.tunnels[x, y] = True
        return PATH
    if noise(terrain, scratch, TUNNELS_DOWN, x, y) > 0.4:
        scratch.tunnels[x, y] = True
        return PATH
    if noise(terrain, scratch, COALS, x, y) > 0 and uniform(world) > 0.85:
        return COAL
    if noise(terrain, scratch, IRONS, x, y) > 0.4 and uniform(world) > 0.75:
        return IRON
    if mountain > 0.18 and uniform(world) > 0.994:
        return DIAMOND
    if mountain > 0.3 and noise(terrain, scratch, LAVAS, x, y) > 0.35:
        return LAVA
    return STONE


def generate_object(world, terrain, scratch, x, y):
    material = world.material[x, y]
    distance = terrain.distance[x, y]
    if not WALKABLE_BY[ZOMBIE, material]:
        return
    if distance > 3 and material == GRASS and uniform(world) > 0.985:
        add_cow(world, x, y)
    elif distance > 10 and uniform(world) > 0.993:
        add_zombie(world, x, y)
    elif material == PATH and scratch.tunnels[x, y] and uniform(world) > 0.95:
        add_skeleton(world, x, y)


def count_materials(world):
    """Chunk statistics of a freshly generated map; the player is already in it."""
    width, height = world.material.shape
    for x in range(width):
        for y in range(height):
            world.chunks[chunk_of(world, x, y)].materials[world.material[x, y]] += 1


def clear_world(world):
    var = world.var
    var.num_objects = 0
    var.num_removed = 0
    var.num_chunks = 0
    var.entries = 0
    world.object_at[:] = 0
    for chunk in range(world.chunks.shape[0]):
        world.chunks[chunk].touched = 0
        world.chunks[chunk].sequence = 0
        for material in range(NUM_MATERIALS):
            world.chunks[chunk].materials[material] = 0
        for kind in range(NUM_KINDS):
            world.chunks[chunk].creatures[kind] = 0
