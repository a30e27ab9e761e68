"""Crafter in a mirror: left for right, up for down, or both.

World generation, rules and the view around the player know no left or right and no up or down, so the mirrored world
is as likely a world, in which the mirrored actions do the same. What has a direction in the image is the player, whose
picture shows what it faces, and arrows. By day the mirrored image is the image of the mirrored world, to the byte. At
night each pixel has noise: there is none at the player's tile to speak of, elsewhere it moves along with its tile, and
arrows in it are not found.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..reflection import ByteArray, IntArray, Reflection
from .data import (
    ACTIONS,
    ARROW,
    MOVE_DOWN,
    MOVE_LEFT,
    MOVE_RIGHT,
    MOVE_UP,
    NUM_TEXTURES,
    TEXTURE_ARROW,
    TEXTURE_PLAYER,
    TEXTURE_SLEEP,
    WALKABLE,
    WALKABLE_BY,
    _material,
)
from .daylight import daylight
from .render import luma
from .textures import make_view

DAY = 300
"""Steps after which the time of day repeats."""
FLIPS = ((False, False), (True, False), (False, True), (True, True))
"""Columns and rows that change places, by reflection."""
TOLERANCE = 25.0
"""The noise of a night is about 3 at the player's tile; pictures of different directions are 157 apart at midnight."""


@lru_cache(maxsize=8)
def make_reflection(view: tuple[int, int], size: tuple[int, int]) -> Reflection | None:
    """Return the tables for images of ``view`` cells and ``size`` pixels; None if the player is not in the middle."""
    prepared = make_view(view, size)
    record = prepared.record[0]
    columns, rows = int(record["grid_x"]), int(record["grid_y"])
    if columns % 2 == 0 or rows % 2 == 0:
        return None
    pictures, dark = prepared.parts[0], prepared.parts[2]
    times = [daylight(step) for step in range(DAY)]
    walked = [_material(name) for name in WALKABLE]
    flown = np.flatnonzero(WALKABLE_BY[ARROW])
    awake = [m * NUM_TEXTURES + TEXTURE_PLAYER + d for m in walked for d in range(4)]
    asleep = [m * NUM_TEXTURES + TEXTURE_SLEEP for m in walked]
    arrows = [m * NUM_TEXTURES + TEXTURE_ARROW + d for m in flown for d in range(4)]

    def lit(which: list[int], *, sleeping: bool) -> ByteArray:
        return np.stack([_lit(pictures[which], dark[which], time, sleeping=sleeping) for time in times])

    # By time of day, first awake, then asleep.
    looks = np.concatenate([np.concatenate(lit(awake, sleeping=False)), np.concatenate(lit(asleep, sleeping=True))])
    directed = np.concatenate([lit(arrows, sleeping=sleeping) for sleeping in (False, True)])
    turned = np.stack([
        np.concatenate([_repeated(_turned(len(awake), flip), DAY), DAY * len(awake) + np.arange(DAY * len(asleep))])
        for flip in FLIPS
    ])  # fmt: skip
    return Reflection(
        actions=np.stack([_actions(flip) for flip in FLIPS]),
        pixels=_pixels(view, size),
        tiles=np.stack([_tiles(columns, rows, flip) for flip in FLIPS]),
        centre=(rows // 2) * columns + columns // 2,
        looks=looks,
        turned=turned,
        brightness=np.concatenate([np.arange(DAY).repeat(len(awake)), DAY + np.arange(DAY).repeat(len(asleep))]),
        directed=directed,
        directed_turned=np.stack([_turned(len(arrows), flip) for flip in FLIPS]),
        tolerance=TOLERANCE,
    )


def _lit(pictures: ByteArray, dark: np.ndarray, time: float, *, sleeping: bool) -> ByteArray:
    """Return tiles [V, 3 P] as `render.light_tile` draws them."""
    lit: ByteArray = (time * pictures + (1 - time) * (0.5 * dark)).astype(np.int32).astype(np.uint8)
    if sleeping:
        red, green, blue = np.moveaxis(lit.reshape(len(lit), -1, 3).astype(np.int32), 2, 0)
        grey = luma(red, green, blue)
        lit = np.stack([grey >> 1, grey >> 1, (grey + 16) >> 1], 2).astype(np.uint8).reshape(lit.shape)
    return lit


def _actions(flip: tuple[bool, bool]) -> IntArray:
    actions = np.arange(len(ACTIONS))
    for flipped, one, other in zip(flip, (MOVE_LEFT, MOVE_UP), (MOVE_RIGHT, MOVE_DOWN), strict=True):
        if flipped:
            actions[[one, other]] = other, one
    return actions


def _turned(count: int, flip: tuple[bool, bool]) -> IntArray:
    """Return what pictures are in the mirror that come as left, right, up, down, of one material after the other."""
    four = np.arange(4)
    if flip[0]:
        four[[0, 1]] = 1, 0
    if flip[1]:
        four[[2, 3]] = 3, 2
    return _repeated(four, count // 4)


def _repeated(places: IntArray, times: int) -> IntArray:
    """Return places in so many tables of the same kind, one after the other."""
    return (len(places) * np.arange(times)[:, None] + places).ravel()


def _tiles(columns: int, rows: int, flip: tuple[bool, bool]) -> IntArray:
    tiles = np.arange(columns * rows).reshape(rows, columns)
    tiles = tiles[:, ::-1] if flip[0] else tiles
    return (tiles[::-1] if flip[1] else tiles).ravel()


def _pixels(view: tuple[int, int], size: tuple[int, int]) -> IntArray:
    record = make_view(view, size).record[0]
    columns, rows, unit_x, unit_y = (int(record[name]) for name in ("grid_x", "grid_y", "unit_x", "unit_y"))
    image = np.arange(size[0] * size[1]).reshape(size[1], size[0])
    left, top = int(record["left"]), int(record["top"])
    map_ = image[top : top + rows * unit_y, left : left + columns * unit_x]
    tiles: IntArray = map_.reshape(rows, unit_y, columns, unit_x).swapaxes(1, 2).reshape(rows * columns, -1)
    return tiles
