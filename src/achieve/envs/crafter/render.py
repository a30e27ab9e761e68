"""The image: the map around the player, lit by the time of day, and the inventory below.

By day a lit tile looks the same wherever it stands, so each distinct tile is lit once a frame and then copied. At night
every pixel has noise of its own. All arithmetic is the original's, in double precision and in its order; rounding is by
truncation.
"""

from __future__ import annotations

from typing import Any

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
from .memory import array_at, copy_bytes
from .random import WORDS, fill_words
from .typing import Canvas, View, World
from .world import entity, ground, inside, occupant

NIGHT_BELOW = 0.5
"""Daylight under which noise appears."""
NIGHT_TINT = np.array([0, 16, 64], np.int64)
ITEM_PICTURES = 11
"""Pictures of an inventory cell: for 0 to 9 of an item, and for more."""

VIEW = np.dtype(
    [
        ("tiles", np.int64),  # uint8[num_tiles, unit_y, unit_x, 3]
        ("planes", np.int64),  # uint8[num_tiles, 3, unit_y, unit_x]: the same, by colour
        ("dark", np.int64),  # uint16[...]: twice the tiles in their night colours, without noise
        ("items", np.int64),  # uint8[items, ITEM_PICTURES, unit_y, unit_x, 3]
        ("vignette", np.int64),  # float64[map_height, map_width]
        ("num_tiles", np.int64),
        ("tile_bytes", np.int64),
        ("grid_x", np.int64),  # cells of the map
        ("grid_y", np.int64),
        ("unit_x", np.int64),  # pixels of a cell
        ("unit_y", np.int64),
        ("map_width", np.int64),  # pixels of the map
        ("map_height", np.int64),
        ("width", np.int64),  # pixels of the image
        ("height", np.int64),
        ("left", np.int64),  # of the map in the image
        ("top", np.int64),
    ],
    align=True,
)
"""Pictures and layout for one image size, made by `textures.make_view`.

A tile is a material with or without an object on it; the last one is what lies outside the world.
"""

CANVAS = np.dtype(
    [
        ("lit", np.int64),  # uint8, like the tiles
        ("is_lit", np.int64),  # uint8[num_tiles]
        ("words", np.int64),  # uint32[2 * pixels of the map]
        ("drawn", np.int64),  # float64[pixels]
        ("keep", np.int64),  # float64[pixels]
        ("added", np.int64),  # float64[pixels]
        ("planes", np.int64),  # uint8[3, pixels]
        ("noisy", np.int64),  # uint8[3, pixels]
        ("grey", np.int64),  # uint8[pixels]
        ("key", np.uint32, (WORDS,)),  # keeps the generator aside
    ],
    align=True,
)
"""Memory for drawing one frame."""


def texture(world: World, index: int) -> int:
    """Return what an object looks like, as a row of `OBJECT_TEXTURES`."""
    me = entity(world, index)
    if me.kind == PLAYER:
        if world.sleeping:
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


def direction(x: int, y: int) -> int:
    """Return left, right, up, down as 0 to 3."""
    if x != 0:
        return 0 if x < 0 else 1
    return 2 if y < 0 else 3


def tile_at(world: World, view: View, gx: int, gy: int) -> int:
    """Return the tile in a cell of the local view."""
    x = entity(world, 0).x + gx - view.grid_x // 2
    y = entity(world, 0).y + gy - view.grid_y // 2
    if not inside(world, x, y):
        return view.num_tiles - 1
    tile = ground(world, x, y) * NUM_TEXTURES
    index = occupant(world, x, y)
    if index >= 0:
        tile += texture(world, index)
    return tile


def luma(red: Any, green: Any, blue: Any) -> Any:
    """Convert to grey as Pillow does."""
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def saturate(grey: Any, colour: Any) -> Any:
    """Enhance colour by 0.4 as Pillow does: its blend of grey and colour, rounding included."""
    # (3 * grey + 2 * colour) // 5, with the division written as 32-bit vector instructions have it.
    return ((3 * grey + 2 * colour) * 52429) >> 18


def render(world: World, view: View, canvas: Canvas, image: int) -> None:
    """Draw the world into the image (uint8[height, width, 3]) at an address."""
    clear(view, image)
    if world.daylight < NIGHT_BELOW:
        draw_night(world, view, canvas, image)
    else:
        draw_day(world, view, canvas, image)
    draw_items(world, view, image)


def clear(view: View, image: int) -> None:
    pixels = array_at(image, np.uint8, view.height * view.width * 3)
    for i in range(len(pixels)):
        pixels[i] = 0


def copy_tile(view: View, tile: int, gx: int, gy: int, image: int) -> None:
    """Copy a tile's pixels, at an address, into a cell of the image."""
    row = view.unit_x * 3
    stride = view.width * 3
    target = image + (view.top + gy * view.unit_y) * stride + view.left * 3 + gx * row
    if row == 21:  # Crafter's usual size: a constant count makes each copy two instructions
        for _ in range(view.unit_y):
            copy_bytes(target, tile, 21)
            target += stride
            tile += row
    else:
        for _ in range(view.unit_y):
            copy_bytes(target, tile, row)
            target += stride
            tile += row


def draw_day(world: World, view: View, canvas: Canvas, image: int) -> None:
    is_lit = array_at(canvas.is_lit, np.uint8, view.num_tiles)
    for tile in range(view.num_tiles):
        is_lit[tile] = 0
    for gy in range(view.grid_y):
        for gx in range(view.grid_x):
            tile = tile_at(world, view, gx, gy)
            if not is_lit[tile]:
                light_tile(world, view, canvas, tile)
                is_lit[tile] = 1
            copy_tile(view, canvas.lit + tile * view.tile_bytes, gx, gy, image)


def light_tile(world: World, view: View, canvas: Canvas, tile: int) -> None:
    daylight = world.daylight
    night = 1 - daylight
    source = array_at(view.tiles + tile * view.tile_bytes, np.uint8, view.tile_bytes)
    dark = array_at(view.dark + 2 * tile * view.tile_bytes, np.uint16, view.tile_bytes)
    target = array_at(canvas.lit + tile * view.tile_bytes, np.uint8, view.tile_bytes)
    for i in range(len(target)):
        target[i] = np.uint8(np.int32(daylight * source[i] + night * (0.5 * dark[i])))
    if world.sleeping:
        for i in range(0, len(target), 3):
            grey = luma(np.int32(target[i]), np.int32(target[i + 1]), np.int32(target[i + 2]))
            target[i] = grey >> 1
            target[i + 1] = grey >> 1
            target[i + 2] = (grey + 16) >> 1


def draw_night(world: World, view: View, canvas: Canvas, image: int) -> None:
    """Draw plane by plane, in loops simple enough for vector instructions."""
    pixels = view.map_height * view.map_width
    red = array_at(canvas.planes, np.uint8, pixels)
    green = array_at(canvas.planes + pixels, np.uint8, pixels)
    blue = array_at(canvas.planes + 2 * pixels, np.uint8, pixels)
    grey = array_at(canvas.grey, np.uint8, pixels)
    for gy in range(view.grid_y):
        for gx in range(view.grid_x):
            copy_planes(view, canvas, tile_at(world, view, gx, gy), gx, gy)
    draw_noise(world, view, canvas)
    for plane in range(3):
        add_noise(view, canvas, plane, pixels)
    noisy = canvas.noisy
    to_grey(
        array_at(noisy, np.uint8, pixels),
        array_at(noisy + pixels, np.uint8, pixels),
        array_at(noisy + 2 * pixels, np.uint8, pixels),
        grey,
    )
    for plane in range(3):
        shade(world.daylight, canvas, plane, pixels)
    if world.sleeping:
        to_grey(red, green, blue, grey)
        for i in range(pixels):
            red[i] = grey[i] >> 1
        for i in range(pixels):
            green[i] = grey[i] >> 1
        for i in range(pixels):
            blue[i] = (np.int32(grey[i]) + 16) >> 1
    interleave(view, red, green, blue, image)


def copy_planes(view: View, canvas: Canvas, tile: int, gx: int, gy: int) -> None:
    """Copy a tile, colour by colour, into the planes."""
    cell = view.unit_x * view.unit_y
    for plane in range(3):
        source = view.planes + tile * view.tile_bytes + plane * cell
        target = canvas.planes + plane * view.map_height * view.map_width
        target += gy * view.unit_y * view.map_width + gx * view.unit_x
        if view.unit_x == 7:
            for _ in range(view.unit_y):
                copy_bytes(target, source, 7)
                target += view.map_width
                source += view.unit_x
        else:
            for _ in range(view.unit_y):
                copy_bytes(target, source, view.unit_x)
                target += view.map_width
                source += view.unit_x


def draw_noise(world: World, view: View, canvas: Canvas) -> None:
    """Draw noise and its weight for every pixel, column by column as the original does."""
    width, height = view.map_width, view.map_height
    words = array_at(canvas.words, np.uint32, 2 * width * height)
    drawn = array_at(canvas.drawn, np.float64, width * height)
    keep = array_at(canvas.keep, np.float64, width * height)
    added = array_at(canvas.added, np.float64, width * height)
    vignette = array_at(view.vignette, np.float64, width * height)
    fill_words(world, words)
    for i in range(width * height):
        high = np.float64(np.int32(words[2 * i] >> np.uint32(5)))
        low = np.float64(np.int32(words[2 * i + 1] >> np.uint32(6)))
        drawn[i] = 32 + 95.0 * ((high * 67108864.0 + low) / 9007199254740992.0)
    amount = 2 * (0.5 - world.daylight)
    for y in range(height):
        for x in range(width):
            mask = amount * vignette[y * width + x]
            keep[y * width + x] = 1 - mask
            added[y * width + x] = mask * drawn[x * height + y]


def add_noise(view: View, canvas: Canvas, plane: int, pixels: int) -> None:
    source = array_at(canvas.planes + plane * pixels, np.uint8, pixels)
    target = array_at(canvas.noisy + plane * pixels, np.uint8, pixels)
    keep = array_at(canvas.keep, np.float64, pixels)
    added = array_at(canvas.added, np.float64, pixels)
    for i in range(pixels):
        target[i] = np.uint8(np.int32(keep[i] * source[i] + added[i]))


def to_grey(red: Any, green: Any, blue: Any, grey: np.ndarray) -> None:
    for i in range(len(grey)):
        grey[i] = luma(np.uint32(red[i]), np.uint32(green[i]), np.uint32(blue[i]))


def shade(daylight: float, canvas: Canvas, plane: int, pixels: int) -> None:
    """Mix a plane with its night colours: less saturated, half tinted."""
    colour = array_at(canvas.planes + plane * pixels, np.uint8, pixels)
    noisy = array_at(canvas.noisy + plane * pixels, np.uint8, pixels)
    grey = array_at(canvas.grey, np.uint8, pixels)
    tint = np.int32(NIGHT_TINT[plane])
    night = 1 - daylight
    for i in range(pixels):
        dark = np.int32(saturate(np.int32(grey[i]), np.int32(noisy[i]))) + tint
        colour[i] = np.uint8(np.int32(daylight * colour[i] + night * (0.5 * dark)))


def interleave(view: View, red: Any, green: Any, blue: Any, image: int) -> None:
    width = view.map_width
    for y in range(view.map_height):
        row = array_at(image + ((view.top + y) * view.width + view.left) * 3, np.uint8, 3 * width)
        for x in range(width):
            row[3 * x] = red[y * width + x]
            row[3 * x + 1] = green[y * width + x]
            row[3 * x + 2] = blue[y * width + x]


def draw_items(world: World, view: View, image: int) -> None:
    for item in range(len(world.inventory)):
        amount = min(world.inventory[item], ITEM_PICTURES - 1)
        if amount > 0:
            picture = view.items + (item * ITEM_PICTURES + amount) * view.tile_bytes
            gx, gy = item % view.grid_x, view.grid_y + item // view.grid_x
            copy_tile(view, picture, gx, gy, image)
