"""Textures from the installed ``crafter`` package, prepared for one image size.

The files are read once per process; nothing of the package's code is run.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from .data import ITEMS, MATERIALS, NUM_MATERIALS, NUM_TEXTURES, OBJECT_TEXTURES
from .render import ITEM_PICTURES, NIGHT_TINT, VIEW

OUTSIDE_GREY = 127
VIGNETTE_WIDTH = 0.5


@lru_cache(maxsize=1)
def assets() -> dict[str, np.ndarray]:
    """Return all textures by name, indexed [x, y, channel] as in the original."""
    spec = importlib.util.find_spec("crafter")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("Crafter's textures are missing; install them with: pip install crafter")
    folder = Path(next(iter(spec.submodule_search_locations))) / "assets"
    pictures = {path.stem: np.asarray(Image.open(path)).transpose(1, 0, 2) for path in folder.glob("*.png")}
    if not pictures:
        raise ImportError(f"there are no textures in {folder}; try: pip install --force-reinstall crafter")
    return pictures


def _scaled(name: str | None, size: tuple[int, int]) -> np.ndarray:
    picture = Image.fromarray(np.ascontiguousarray(assets()[name or "unknown"]))
    return np.array(picture.resize(size[::-1], resample=Image.Resampling.NEAREST))


def _blend(canvas: np.ndarray, x: int, y: int, picture: np.ndarray) -> None:
    """Draw a picture over a canvas, in single precision and truncating, as the original does."""
    target = canvas[x : x + picture.shape[0], y : y + picture.shape[1]]
    if picture.shape[-1] == 4:
        alpha = picture[..., 3:].astype(np.float32) / 255
        colour = picture[..., :3].astype(np.float32) / 255
        current = target.astype(np.float32) / 255
        picture = (255 * (alpha * colour + (1 - alpha) * current)).astype(np.uint8)
    target[:] = picture


def _tiles(unit: tuple[int, int]) -> np.ndarray:
    """Return uint8[tiles, x, y, 3]: every material with every object, and what lies outside the world."""
    tiles = np.zeros((NUM_MATERIALS * NUM_TEXTURES + 1, *unit, 3), np.uint8)
    for m, material in enumerate((None, *MATERIALS)):
        ground = _scaled(material, unit)[..., :3]
        for t, name in enumerate(OBJECT_TEXTURES):
            tile = tiles[m * NUM_TEXTURES + t]
            tile[:] = ground
            if name is not None:
                _blend(tile, 0, 0, _scaled(name, unit))
    tiles[-1] = OUTSIDE_GREY
    return tiles


def _items(unit: tuple[int, int]) -> np.ndarray:
    """Return uint8[items, amounts, x, y, 3]: an inventory cell for each item and amount."""
    cells = np.zeros((len(ITEMS), ITEM_PICTURES, *unit, 3), np.uint8)
    shape = np.array(unit)
    item_x, item_y = (0.1 * shape).astype(int)
    amount_x, amount_y = (0.4 * shape).astype(int)
    item_size = int(0.8 * unit[0]), int(0.8 * unit[1])
    amount_size = int(0.6 * unit[0]), int(0.6 * unit[1])
    for i, item in enumerate(ITEMS):
        for amount in range(1, ITEM_PICTURES):
            cell = cells[i, amount]
            _blend(cell, item_x, item_y, _scaled(item, item_size))
            text = str(amount) if amount < 10 else "unknown"
            _blend(cell, amount_x, amount_y, _scaled(text, amount_size))
    return cells


def _dark(tiles: np.ndarray) -> np.ndarray:
    """Return twice the tiles' night colours: grey-shifted by Pillow, half tinted."""
    flat = np.ascontiguousarray(tiles.reshape(-1, tiles.shape[2], 3))
    grey = np.array(ImageEnhance.Color(Image.fromarray(flat)).enhance(0.4))
    return (grey.astype(np.uint16) + NIGHT_TINT.astype(np.uint16)).reshape(tiles.shape)


def vignette(width: int, height: int) -> np.ndarray:
    """Return the strength of the night's noise at each pixel, indexed [x, y]."""
    xs, ys = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    return 1 - np.exp(-0.5 * (xs**2 + ys**2) / (VIGNETTE_WIDTH**2)).T


def _image_order(tiles: np.ndarray) -> np.ndarray:
    """Turn [..., x, y, c] into [..., y * x * c]."""
    return np.ascontiguousarray(tiles.swapaxes(-3, -2)).reshape(*tiles.shape[:-3], -1)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A record, such as a `VIEW`, and the arrays its addresses point into."""

    record: np.ndarray
    parts: tuple[np.ndarray, ...]


@lru_cache(maxsize=8)
def make_view(view: tuple[int, int], size: tuple[int, int]) -> Prepared:
    """Return what `render` needs to draw ``view`` cells into an image of ``size`` (width, height)."""
    unit = (size[0] // view[0], size[1] // view[1])
    grid = (view[0], view[1] - -(-len(ITEMS) // view[0]))
    tiles = _tiles(unit)
    parts = {
        "tiles": _image_order(tiles),
        "planes": np.ascontiguousarray(tiles.transpose(0, 3, 2, 1)),
        "dark": _image_order(_dark(tiles)),
        "items": _image_order(_items(unit)),
        "vignette": np.ascontiguousarray(vignette(grid[0] * unit[0], grid[1] * unit[1]).T),
    }
    record = np.zeros(1, VIEW)
    for name, part in parts.items():
        record[name] = part.ctypes.data
    record["num_tiles"], record["tile_bytes"] = parts["tiles"].shape
    record["grid_x"], record["grid_y"] = grid
    record["unit_x"], record["unit_y"] = unit
    record["map_width"], record["map_height"] = grid[0] * unit[0], grid[1] * unit[1]
    record["width"], record["height"] = size
    record["left"] = (size[0] - unit[0] * view[0]) // 2
    record["top"] = (size[1] - unit[1] * view[1]) // 2
    return Prepared(record, tuple(parts.values()))
