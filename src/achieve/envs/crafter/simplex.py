"""OpenSimplex noise in three dimensions, split into what depends on the seed and what does not.

The noise at a point is a sum over the lattice vertices around it: a fading weight times the dot product of the vertex's
gradient with the offset to it. Weights and offsets follow from the point alone; only the gradients depend on the seed.
Terrain is sampled at the same points in every world, so `corners` runs once per world size and each new world only
looks up gradients and adds.

Sums and offsets are evaluated in the order of the ``opensimplex`` package: the results are equal bit for bit.
"""

from __future__ import annotations

import math

import numpy as np

from .typing import Int, Point, Steps

STRETCH = -1.0 / 6
SQUISH = 1.0 / 3
NORM = 103
MAX_CORNERS = 8

_SIGNS = [(x, y, z) for z in (1, -1) for y in (1, -1) for x in (-1, 1)]
GRADIENTS = np.array(
    [(x * long[0], y * long[1], z * long[2]) for x, y, z in _SIGNS for long in ((11, 4, 4), (4, 11, 4), (4, 4, 11))],
    np.float64,
)


def permutation(seed: int, perm: np.ndarray, source: np.ndarray) -> None:
    """Fill ``perm`` (uint8[256]) with the seed's shuffle of 0..255."""
    state = np.uint64(seed)
    factor = np.uint64(6364136223846793005)
    addend = np.uint64(1442695040888963407)
    for _ in range(3):
        state = state * factor + addend
    for i in range(256):
        source[i] = i
    for i in range(255, -1, -1):
        state = state * factor + addend
        # 31 is added after the reduction: added before, it could overflow where Python's does not.
        chosen = (np.int64(state) % (i + 1) + 31) % (i + 1)
        perm[i] = source[chosen]
        source[chosen] = source[i]


def gradient(perm: np.ndarray, x: Int, y: Int, z: Int) -> Int:
    """Return the row of `GRADIENTS` at a lattice vertex."""
    first = np.int64(perm[x & 255])
    second = np.int64(perm[(first + y) & 255])
    return np.int64(perm[(second + z) & 255]) % 24


def corner(
    n: int, cell: Steps, offset: Point, steps: Steps, late: Steps, vertices: np.ndarray, weights: np.ndarray
) -> int:
    """Append the vertex ``steps`` (+ ``late``) away from the cell's origin, if it is close enough.

    ``late`` steps are subtracted last: the same number on paper, not always the same double.
    """
    i, j, k = steps
    li, lj, lk = late
    squish = (i + j + k + li + lj + lk) * SQUISH
    dx = offset[0] - i - squish - li
    dy = offset[1] - j - squish - lj
    dz = offset[2] - k - squish - lk
    fade = 2 - dx * dx - dy * dy - dz * dz
    if fade <= 0:
        return n
    fade *= fade
    vertices[n, 0] = cell[0] + i + li
    vertices[n, 1] = cell[1] + j + lj
    vertices[n, 2] = cell[2] + k + lk
    weights[n, 0] = fade * fade
    weights[n, 1] = dx
    weights[n, 2] = dy
    weights[n, 3] = dz
    return n + 1


def bits(point: int, on: int, off: int) -> Steps:
    """Return steps along the axes: ``on`` where the point's bit is set, ``off`` elsewhere."""
    return (on if point & 1 else off, on if point & 2 else off, on if point & 4 else off)


def lowest(point: int) -> int:
    """Return the lowest set bit, or the z axis when neither x nor y is set."""
    return 1 if point & 1 else (2 if point & 2 else 4)


def near_extras(a: int, a_score: float, b: int, b_score: float, rest: float) -> tuple[Steps, Steps]:
    """Return two further vertices for a point in the tetrahedron at the cell's origin."""
    if rest > a_score or rest > b_score:
        c = b if b_score > a_score else a
        if c == 1:
            return (1, -1, 0), (1, 0, -1)
        if c == 2:
            return (-1, 1, 0), (0, 1, -1)
        return (-1, 0, 1), (0, -1, 1)
    return bits(a | b, 1, 0), bits(a | b, 1, -1)


def far_extras(a: int, a_score: float, b: int, b_score: float, rest: float) -> tuple[Steps, Steps, Steps, Steps]:
    """Return the same for the tetrahedron at the opposite corner; each is followed by its late steps."""
    if rest < a_score or rest < b_score:
        c = b if b_score < a_score else a
        if c == 3:
            return (2, 1, 0), (0, 0, 0), (1, 1, 0), (0, 1, 0)
        if c == 5:
            return (2, 0, 1), (0, 0, 0), (1, 0, 2), (0, 0, 0)
        return (0, 1, 1), (0, 1, 0), (0, 1, 2), (0, 0, 0)
    return bits(a & b, 1, 0), (0, 0, 0), bits(a & b, 2, 0), (0, 0, 0)


def middle_extras(xins: float, yins: float, zins: float) -> tuple[Steps, Steps, Steps]:
    """Return the same for the octahedron between the two tetrahedra."""
    xy, xz, yz = xins + yins, xins + zins, yins + zins
    a_far, b_far, c_far = xy > 1, xz > 1, yz > 1
    a, a_score = (3, xy - 1) if a_far else (4, 1 - xy)
    b, b_score = (5, xz - 1) if b_far else (2, 1 - xz)
    c, c_score = (6, yz - 1) if c_far else (1, 1 - yz)
    if a_score <= b_score and a_score < c_score:
        a, a_far = c, c_far
    elif a_score > b_score and b_score < c_score:
        b, b_far = c, c_far
    if a_far and b_far:
        return (1, 1, 1), bits(lowest(a & b), 2, 0), (0, 0, 0)
    if not a_far and not b_far:
        return (0, 0, 0), bits(lowest(7 - (a | b)), -1, 1), (0, 0, 0)
    far, near = (a, b) if a_far else (b, a)
    return bits(lowest(7 - far), -1, 1), (0, 0, 0), bits(lowest(near), 2, 0)


def corners(x: float, y: float, z: float, vertices: np.ndarray, weights: np.ndarray) -> int:
    """Find the lattice vertices that matter at a point, in order of summation; return their number.

    vertices: int64[8, 3], weights: float64[8, 4] = (fade, dx, dy, dz).
    """
    stretch = (x + y + z) * STRETCH
    xs, ys, zs = x + stretch, y + stretch, z + stretch
    xb, yb, zb = math.floor(xs), math.floor(ys), math.floor(zs)
    squish = (xb + yb + zb) * SQUISH
    cell = (xb, yb, zb)
    offset = (x - (xb + squish), y - (yb + squish), z - (zb + squish))
    xins, yins, zins = xs - xb, ys - yb, zs - zb
    inside = xins + yins + zins
    on_time = (0, 0, 0)
    n = 0
    if inside <= 1:
        a, a_score, b, b_score = 1, xins, 2, yins
        if a_score >= b_score and zins > b_score:
            b, b_score = 4, zins
        elif a_score < b_score and zins > a_score:
            a, a_score = 4, zins
        extra0, extra1 = near_extras(a, a_score, b, b_score, 1 - inside)
        late0, late1 = on_time, on_time
        for steps in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
            n = corner(n, cell, offset, steps, on_time, vertices, weights)
    elif inside >= 2:
        a, a_score, b, b_score = 6, xins, 5, yins
        if a_score <= b_score and zins < b_score:
            b, b_score = 3, zins
        elif a_score > b_score and zins < a_score:
            a, a_score = 3, zins
        extra0, late0, extra1, late1 = far_extras(a, a_score, b, b_score, 3 - inside)
        for steps in ((1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)):
            n = corner(n, cell, offset, steps, on_time, vertices, weights)
    else:
        extra0, extra1, late1 = middle_extras(xins, yins, zins)
        late0 = on_time
        for steps in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)):
            n = corner(n, cell, offset, steps, on_time, vertices, weights)
    n = corner(n, cell, offset, extra0, late0, vertices, weights)
    return corner(n, cell, offset, extra1, late1, vertices, weights)


def noise3(perm: np.ndarray, x: float, y: float, z: float, vertices: np.ndarray, weights: np.ndarray) -> float:
    """Return the noise at one point, computed directly; the last two are memory for `corners`."""
    value = 0.0
    for i in range(corners(x, y, z, vertices, weights)):
        g = gradient(perm, vertices[i, 0], vertices[i, 1], vertices[i, 2])
        value += weights[i, 0] * (
            GRADIENTS[g, 0] * weights[i, 1] + GRADIENTS[g, 1] * weights[i, 2] + GRADIENTS[g, 2] * weights[i, 3]
        )
    return value / NORM
