"""Terrain noise, looked up in tables made once per world size.

The tables (`build_terrain`) hold, for every cell and every kind of noise, the lattice vertices around it; a new world
only brings its own gradients. Worlds too large for tables evaluate the noise directly; the results are the same.
"""

from __future__ import annotations

import numpy as np

from .memory import array_at, record_at, sum_of_lanes
from .simplex import GRADIENTS, MAX_CORNERS, NORM, corners, gradient, noise3
from .typing import Int, Record, Survey, Terrain

# Kinds of noise, and the depth (z) and scale each is sampled at. They are not Python integers, for each of which Numba
# would compile the functions that take a kind once more.
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
) = (np.int64(kind) for kind in range(13))
NUM_NOISES = 13
NOISE_DEPTH = np.array([8, 3, 3, 0, 0, 6, 7, 7, 1, 2, 6, 4, 5], np.int64)
NOISE_SCALE = np.array([3, 15, 5, 15, 5, 7, 3, 3, 8, 6, 5, 9, 7], np.int64)

SHAPES = np.array([WATER_COARSE, WATER_FINE, MOUNTAIN_COARSE, MOUNTAIN_FINE, TREES])
"""Kinds that most cells need: they are computed along whole columns, some cells at a time."""
NUM_SHAPES = len(SHAPES)
LANES = 4
"""Cells that are computed side by side, in vector registers."""

USUAL_CORNERS = 7
"""Vertices that every sum runs over; the eighth is rarely close enough to matter."""

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
        ("columns", np.int64),  # float64[NUM_SHAPES, width, MAX_CORNERS, 4, rows]: weights of `SHAPES`
        ("column_vertices", np.int64),  # uint16[NUM_SHAPES, width, MAX_CORNERS, rows]
        ("column_corners", np.int64),  # int64[NUM_SHAPES, width, rows / LANES]: the most corners of these cells
        ("rows", np.int64),  # the height, rounded up to whole LANES
        ("vertices", np.int64),  # uint8[num_vertices, 3]: distinct lattice vertices, modulo 256
        ("distance", np.int64),  # float64[width, height]: from the world's centre
        ("start_bound", np.int64),  # float64[width, height]: no start share is larger
        ("num_vertices", np.int64),
        ("width", np.int64),
        ("height", np.int64),
    ],
    align=True,
)
"""Tables for one world size; see `build_terrain`."""

BLOCK_BYTES = BLOCK.itemsize
FLAT_GRADIENTS = GRADIENTS.ravel()

SURVEY = np.dtype(
    [
        # Changed by several threads, only atomically; see `worldgen.open_survey`.
        ("ticket", np.int64),  # the next column to take
        ("surveyed", np.int64),  # int64[width]: columns whose land is known
        ("gradients", np.int64),  # float64[num_vertices, 4]: this world's, at each distinct vertex; the last is unused
        ("shapes", np.int64),  # float64[width, NUM_SHAPES, rows]: noise of the kinds `SHAPES`
        ("land", np.int64),  # uint16[width, height]: what noise alone decides, see `worldgen.land`
        ("perm", np.uint8, (256,)),
        ("source", np.uint8, (256,)),
        ("corner_vertices", np.int64, (MAX_CORNERS, 3)),
        ("corner_weights", np.float64, (MAX_CORNERS, 4)),
    ],
    align=True,
)
"""Memory for making one world."""


def noise_point(kind: Int, x: int, y: int) -> tuple[float, float]:
    """Return where a kind of noise is sampled for a cell."""
    scale: Int = NOISE_SCALE[kind]
    if kind == TUNNELS_ACROSS:
        return (2 * x) / scale, (y / 5) / scale
    if kind == TUNNELS_DOWN:
        return (x / 5) / scale, (2 * y) / scale
    return x / scale, y / scale


def build_terrain(width: int, height: int, blocks: np.ndarray, vertices: np.ndarray) -> None:
    """Fill the blocks, and the vertices (int64[..., 8, 3]) that belong to them."""
    row = 0
    for kind in range(NUM_NOISES):
        for x in range(width):
            for y in range(height):
                px, py = noise_point(kind, x, y)
                depth = np.float64(NOISE_DEPTH[kind])
                blocks[row].count = corners(px, py, depth, vertices[row], blocks[row].weights)
                row += 1


def noise(terrain: Terrain, survey: Survey, kind: Int, x: int, y: int) -> float:
    """Return one kind of noise at a cell."""
    if terrain.blocks == 0:
        px, py = noise_point(kind, x, y)
        depth = np.float64(NOISE_DEPTH[kind])
        return noise3(survey.perm, px, py, depth, survey.corner_vertices, survey.corner_weights)
    at = (kind * terrain.width + x) * terrain.height + y
    block = record_at(terrain.blocks + at * BLOCK_BYTES, BLOCK)
    gradients = array_at(survey.gradients, np.float64, 4 * terrain.num_vertices)
    # A fixed number of rounds is faster than the right one; the zeros at the end change nothing.
    value = 0.0
    for k in range(USUAL_CORNERS):
        value += contribution(block, gradients, k)
    if block.count > USUAL_CORNERS:
        value += contribution(block, gradients, USUAL_CORNERS)
    return value / NORM


def contribution(block: Record, gradients: np.ndarray, k: int) -> float:
    """Return what one vertex adds to the noise."""
    g = 4 * np.int64(block.vertices[k])
    return block.weights[k, 0] * (
        gradients[g] * block.weights[k, 1]
        + gradients[g + 1] * block.weights[k, 2]
        + gradients[g + 2] * block.weights[k, 3]
    )


def shape_column(terrain: Terrain, survey: Survey, x: int) -> None:
    """Compute the noise of the kinds `SHAPES` along a column: the sums of `noise`, each in the same order."""
    rows = terrain.rows
    for shape in range(NUM_SHAPES):
        column = shape * terrain.width + x
        corners = array_at(terrain.column_corners + column * (rows // LANES) * 8, np.int64, rows // LANES)
        weights = terrain.columns + column * rows * (8 * 4 * MAX_CORNERS)
        vertices = terrain.column_vertices + column * rows * (2 * MAX_CORNERS)
        target = survey.shapes + (x * NUM_SHAPES + shape) * rows * 8
        for i in range(len(corners)):
            here, vertex, there = weights + 8 * LANES * i, vertices + 2 * LANES * i, target + 8 * LANES * i
            sum_of_lanes(survey.gradients, here, vertex, rows, corners[i], np.float64(NORM), there)


def shape_noise(terrain: Terrain, survey: Survey, shape: int, x: int, y: int) -> float:
    """Return the noise of a kind, by its place in `SHAPES`, at a cell of a column that is computed."""
    if terrain.blocks == 0:
        return noise(terrain, survey, SHAPES[shape], x, y)
    return array_at(survey.shapes + (x * NUM_SHAPES + shape) * terrain.rows * 8, np.float64, terrain.rows)[y]


def distance_to_centre(terrain: Terrain, x: int, y: int) -> float:
    return array_at(terrain.distance, np.float64, terrain.width * terrain.height)[x * terrain.height + y]


def start_bound(terrain: Terrain, x: int, y: int) -> float:
    return array_at(terrain.start_bound, np.float64, terrain.width * terrain.height)[x * terrain.height + y]


def look_up_gradients(terrain: Terrain, survey: Survey) -> None:
    vertices = array_at(terrain.vertices, np.uint8, 3 * terrain.num_vertices)
    gradients = array_at(survey.gradients, np.float64, 4 * terrain.num_vertices)
    for i in range(terrain.num_vertices):
        x, y, z = vertices[3 * i], vertices[3 * i + 1], vertices[3 * i + 2]
        g = 3 * np.int64(gradient(survey.perm, np.int64(x), np.int64(y), np.int64(z)))
        for axis in range(3):
            gradients[4 * i + axis] = FLAT_GRADIENTS[g + axis]
