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
    GRASS,
    MOVE_DOWN,
    MOVE_LEFT,
    MOVE_RIGHT,
    MOVE_UP,
    NUM_TEXTURES,
    PATH,
    SAND,
    TEXTURE_ARROW,
    TEXTURE_PLAYER,
    TEXTURE_SLEEP,
    WALKABLE_BY,
)
from .daylight import daylight
from .render import VIEW, luma
from .textures import make_view

DAY = 300
"""Steps after which the time of day repeats."""
FLIPS = ((False, False), (True, False), (False, True), (True, True))
"""Columns and rows that change places, by reflection."""
WALKED = (GRASS, PATH, SAND)
"""What a living player stands on."""
TOLERANCE = 25.0
"""The noise of a night is about 3 at the player's tile; pictures of different directions are 157 apart at midnight."""


@lru_cache(maxsize=8)
def make_reflection(view: tuple[int, int], size: tuple[int, int]) -> Reflection | None:
    """Return the tables for images of ``view`` cells and ``size`` pixels; None if the player is not in the middle."""
    prepared = make_view(view, size)
    record = {name: int(prepared.record[name][0]) for name in VIEW.names or ()}
    columns, rows = record["grid_x"], record["grid_y"]
    if columns % 2 == 0 or rows % 2 == 0:
        return None
    awake = [m * NUM_TEXTURES + TEXTURE_PLAYER + d for m in WALKED for d in range(4)]
    asleep = [m * NUM_TEXTURES + TEXTURE_SLEEP for m in WALKED]
    arrows = [m * NUM_TEXTURES + TEXTURE_ARROW + d for m in np.flatnonzero(WALKABLE_BY[ARROW]) for d in range(4)]
    which = np.array([*awake, *asleep, *arrows])
    pictures, dark = prepared.parts[0][which], prepared.parts[2][which]
    lit = _distinct([_lit(pictures, dark, daylight(step)) for step in range(DAY)])  # [times, pictures, 3 P]
    grey = _greyed(lit)
    times = len(lit)
    parts = slice(len(awake)), slice(len(awake), len(awake) + len(asleep)), slice(len(awake) + len(asleep), None)
    looks = lit[:, parts[0]], grey[:, parts[1]]
    return Reflection(
        actions=np.stack([_actions(flip) for flip in FLIPS]),
        corner=(record["top"], record["left"]),
        grid=(rows, columns),
        unit=(record["unit_y"], record["unit_x"]),
        tiles=np.stack([_tiles(columns, rows, flip) for flip in FLIPS]),
        centre=(rows // 2) * columns + columns // 2,
        looks=np.concatenate([part.reshape(-1, part.shape[2]) for part in looks]),
        turned=np.stack([_looks_turned(times, len(awake), len(asleep), flip) for flip in FLIPS]),
        brightness=np.concatenate([np.arange(times).repeat(len(awake)), times + np.arange(times).repeat(len(asleep))]),
        directed=np.concatenate([lit[:, parts[2]], grey[:, parts[2]]]),
        directed_turned=np.stack([_turned(len(arrows), flip) for flip in FLIPS]),
        tolerance=TOLERANCE,
    )


def _lit(pictures: ByteArray, dark: np.ndarray, time: float) -> ByteArray:
    """Return tiles [V, 3 P] as `render.light_tile` draws them for a player who is awake."""
    return (time * pictures + (1 - time) * (0.5 * dark)).astype(np.int32).astype(np.uint8)


def _greyed(tiles: ByteArray) -> ByteArray:
    """Return lit tiles [..., 3 P] as a sleeping player sees them."""
    red, green, blue = np.moveaxis(tiles.reshape(*tiles.shape[:-1], -1, 3).astype(np.int32), -1, 0)
    grey = luma(red, green, blue)
    return np.stack([grey >> 1, grey >> 1, (grey + 16) >> 1], -1).astype(np.uint8).reshape(tiles.shape)


def _distinct(pictures: list[ByteArray]) -> ByteArray:
    """Return those that look different."""
    return np.stack(list({picture.tobytes(): picture for picture in pictures}.values()))


def _looks_turned(times: int, awake: int, asleep: int, flip: tuple[bool, bool]) -> IntArray:
    """Return what the player looks like in the mirror, at all times awake, then at all times asleep."""
    return np.concatenate([_repeated(_turned(awake, flip), times), times * awake + np.arange(times * asleep)])


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
