"""The picture: the map around the player, lit by the time of day, and the inventory below.

By day a lit tile looks the same wherever it stands, so each distinct tile is lit once a frame and
then copied. At night every pixel has noise of its own. All arithmetic is the original's, in double
precision and in its order; rounding is by truncation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .creatures import ripe
from .data import (
    ARROW,
    COW,
    NUM_TEXTURES,
    PLANT,
    PLAYER,
    SKELETON,
    TEXTURE_ARROW,
    TEXTURE_COW,
    TEXTURE_PLANT,
    TEXTURE_PLAYER,
    TEXTURE_RIPE,
    TEXTURE_SKELETON,
    TEXTURE_SLEEP,
    TEXTURE_ZOMBIE,
    ZOMBIE,
)
from .random import fill_words
from .world import inside, occupant

NIGHT_BELOW = 0.5
"""Daylight under which noise appears."""


class View(NamedTuple):
    """Pictures and layout for one image size (made by `textures.make_view`).

    A tile is a material with or without an object on it; the last one stands for the world's
    outside. Pixels are ordered as in the image: row, column, channel.
    """

    tiles: Any  # uint8[tiles, unit_y * unit_x * 3]
    dark: Any  # uint16[tiles, ...]: twice the same tile in its night colours, without noise
    items: Any  # uint8[items, amounts, ...]
    vignette: Any  # float64[local height, local width]
    grid_x: int
    grid_y: int
    item_rows: int
    unit_x: int
    unit_y: int
    left: int
    top: int


class Canvas(NamedTuple):
    """Memory for drawing one frame."""

    lit: Any  # uint8, like View.tiles
    is_lit: Any  # uint8[tiles]
    words: Any  # uint32[2 * pixels]


def texture(world, index):
    """What an object looks like, as a row of `OBJECT_TEXTURES`."""
    me = world.objects[index]
    if me.kind == PLAYER:
        if world.var.sleeping:
            return TEXTURE_SLEEP
        return TEXTURE_PLAYER + direction(me.facing_x, me.facing_y)
    if me.kind == ARROW:
        return TEXTURE_ARROW + direction(me.facing_x, me.facing_y)
    if me.kind == COW:
        return TEXTURE_COW
    if me.kind == ZOMBIE:
        return TEXTURE_ZOMBIE
    if me.kind == SKELETON:
        return TEXTURE_SKELETON
    if me.kind == PLANT and ripe(world, index):
        return TEXTURE_RIPE
    return TEXTURE_PLANT


def direction(x, y):
    """Left, right, up, down as 0 to 3."""
    if x != 0:
        return 0 if x < 0 else 1
    return 2 if y < 0 else 3


def tile_at(world, view, gx, gy):
    """The tile in a cell of the local view."""
    x = world.objects[0].x + gx - view.grid_x // 2
    y = world.objects[0].y + gy - view.grid_y // 2
    if not inside(world, x, y):
        return view.tiles.shape[0] - 1
    tile = int(world.material[x, y]) * NUM_TEXTURES
    index = occupant(world, x, y)
    if index >= 0:
        tile += texture(world, index)
    return tile


def luma(red, green, blue):
    """Pillow's conversion to grey."""
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def render(world, view, canvas, image):
    """Draws the world into ``image`` (uint8[height, width, 3])."""
    image[:] = 0
    if world.var.daylight < NIGHT_BELOW:
        draw_night(world, view, canvas, image)
    else:
        draw_day(world, view, canvas, image)
    draw_items(world, view, image)


def draw_day(world, view, canvas, image):
    canvas.is_lit[:] = 0
    for gy in range(view.grid_y):
        for gx in range(view.grid_x):
            tile = tile_at(world, view, gx, gy)
            if not canvas.is_lit[tile]:
                light_tile(world, view, canvas, tile)
                canvas.is_lit[tile] = 1
            copy_tile(view, canvas.lit[tile], gx, gy, image)


def light_tile(world, view, canvas, tile):
    daylight = world.var.daylight
    night = 1 - daylight
    source, dark, target = view.tiles[tile], view.dark[tile], canvas.lit[tile]
    for i in range(len(target)):
        target[i] = np.uint8(daylight * source[i] + night * (0.5 * dark[i]))
    if world.var.sleeping:
        for i in range(0, len(target), 3):
            grey = luma(np.int32(target[i]), np.int32(target[i + 1]), np.int32(target[i + 2]))
            target[i] = np.uint8(grey >> 1)
            target[i + 1] = np.uint8(grey >> 1)
            target[i + 2] = np.uint8((grey + 16) >> 1)


def copy_tile(view, pixels, gx, gy, image):
    width = view.unit_x * 3
    for py in range(view.unit_y):
        row = image[view.top + gy * view.unit_y + py]
        for px in range(view.unit_x):
            at = view.left + gx * view.unit_x + px
            row[at, 0] = pixels[py * width + 3 * px]
            row[at, 1] = pixels[py * width + 3 * px + 1]
            row[at, 2] = pixels[py * width + 3 * px + 2]


def draw_night(world, view, canvas, image):
    daylight = world.var.daylight
    height, width = view.vignette.shape
    for gy in range(view.grid_y):
        for gx in range(view.grid_x):
            copy_tile(view, view.tiles[tile_at(world, view, gx, gy)], gx, gy, image)
    fill_words(world.var, canvas.words)
    amount = 2 * (0.5 - daylight)
    for y in range(height):
        for x in range(width):
            # The original draws its noise column by column.
            at = 2 * (x * height + y)
            high = np.float64(canvas.words[at] >> np.uint32(5))
            low = np.float64(canvas.words[at + 1] >> np.uint32(6))
            noise = 32 + 95.0 * ((high * 67108864.0 + low) / 9007199254740992.0)
            mask = amount * view.vignette[y, x]
            pixel = image[view.top + y, view.left + x]
            shade_pixel(pixel, noise, mask, daylight)
            if world.var.sleeping:
                grey = luma(np.int32(pixel[0]), np.int32(pixel[1]), np.int32(pixel[2]))
                pixel[0] = np.uint8(grey >> 1)
                pixel[1] = np.uint8(grey >> 1)
                pixel[2] = np.uint8((grey + 16) >> 1)


def shade_pixel(pixel, noise, mask, daylight):
    red = np.int32((1 - mask) * pixel[0] + mask * noise)
    green = np.int32((1 - mask) * pixel[1] + mask * noise)
    blue = np.int32((1 - mask) * pixel[2] + mask * noise)
    grey = luma(red, green, blue)
    # Colour saturation of 0.4, as Pillow's blend rounds it, then half a tint of (0, 16, 64).
    red = (3 * grey + 2 * red) // 5
    green = (3 * grey + 2 * green) // 5 + 16
    blue = (3 * grey + 2 * blue) // 5 + 64
    night = 1 - daylight
    pixel[0] = np.uint8(daylight * pixel[0] + night * (0.5 * red))
    pixel[1] = np.uint8(daylight * pixel[1] + night * (0.5 * green))
    pixel[2] = np.uint8(daylight * pixel[2] + night * (0.5 * blue))


def draw_items(world, view, image):
    for item in range(view.items.shape[0]):
        amount = min(world.var.inventory[item], view.items.shape[1] - 1)
        if amount > 0:
            gx, gy = item % view.grid_x, view.grid_y + item // view.grid_x
            copy_tile(view, view.items[item, amount], gx, gy, image)
