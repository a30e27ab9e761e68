"""A batch of worlds and the memory it takes to run them: what all environments have in common."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays import short
from .advance import RENDER
from .compiler import Program, find_rules
from .data import ITEMS
from .daylight import daylight_table
from .render import CANVAS
from .simplex import MAX_CORNERS
from .state import CONTEXT, RESULT, SETTINGS, Worlds, allocate
from .terrain import BLOCK, LANES, NUM_NOISES, NUM_SHAPES, SHAPES, SURVEY, TERRAIN
from .textures import Prepared, make_view
from .worldgen import CLOSED

TABLE_CELLS = 128 * 128
"""Largest world for which noise tables are kept, at about 3.6 KB per cell."""
MAX_CELLS = 2**24
MAX_PIXELS = 2**26
MAX_SIDE = 2**14

NO_ACTIONS = np.zeros(0, np.int64)


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return a (width, height) setting; a single number stands for both, as in Crafter."""
    try:
        values = tuple(value) if hasattr(value, "__len__") else (value, value)
        first, second = (operator.index(v) for v in values)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be one or two whole numbers, got {short(value)}") from None
    return first, second


@dataclass(frozen=True)
class Config:
    """Validated arguments of `crafter.Env`."""

    area: tuple[int, int]
    view: tuple[int, int]
    size: tuple[int, int]
    reward: bool
    length: int

    @classmethod
    def make(cls, area: Any, view: Any, size: Any, reward: Any, length: Any) -> Config:
        area, view, size = pair("area", area), pair("view", view), pair("size", size)
        rows = -(-len(ITEMS) // view[0]) if view[0] > 0 else 0
        if view[0] < 1 or view[1] <= rows:
            raise ValueError(
                f"view={view} leaves no room for the map: the inventory takes {rows} of its rows; "
                "Crafter's default is (9, 9)"
            )
        if area[0] < view[0] or area[1] < view[1]:
            raise ValueError(f"area={area} must be at least as large as view={view}")
        if area[0] * area[1] > MAX_CELLS:
            raise ValueError(f"area={area} has more than the {MAX_CELLS} cells a world may have")
        check_size(size, view)
        if length is None or (isinstance(length, float) and length == math.inf):
            length = 0
        try:
            limit = math.ceil(length)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"length must be a number of steps or None for no limit, got {length!r}") from None
        if isinstance(reward, str):
            raise ValueError(f"reward must be true or false, got {reward!r}")
        return cls(area, view, size, bool(reward), max(-1, min(limit, 2**62)))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.size[1], self.size[0], 3)


def check_size(size: tuple[int, int], view: tuple[int, int]) -> None:
    if size[0] < 2 * view[0] or size[1] < 2 * view[1]:
        raise ValueError(f"size={size} gives view={view} less than two pixels a cell")
    if size[0] * size[1] > MAX_PIXELS or max(size) > MAX_SIDE:
        raise ValueError(f"size={size} is more than the {MAX_SIDE} pixels a side or {MAX_PIXELS} an image may have")


@lru_cache(maxsize=4)
def make_terrain(program: Program, area: tuple[int, int]) -> Prepared:
    """Return a `TERRAIN` with the noise tables for a world size, shared by all environments of that size."""
    width, height = area
    xs, ys = np.meshgrid(np.arange(width), np.arange(height), indexing="ij")
    distance = np.sqrt((xs - width // 2) ** 2 + (ys - height // 2) ** 2)
    # The noise stays within [-1.5, 1.5] (a test checks that), which bounds 4 - distance + 2 * noise and so its
    # logistic function.
    share = np.exp(4 + 2 * 1.5 - distance)
    bound = share / (1 + share)
    blocks, vertices = np.zeros(0, BLOCK), np.zeros((0, 3), np.uint8)
    rows = -(-height // LANES) * LANES
    columns, column_vertices, column_corners = (np.zeros(0, dtype) for dtype in (np.float64, np.uint16, np.int64))
    if width * height <= TABLE_CELLS:
        blocks = np.zeros(NUM_NOISES * width * height, BLOCK)
        around = np.zeros((len(blocks), MAX_CORNERS, 3), np.int64)
        program.build_terrain(width, height, blocks, around)
        x, y, z = (around & 255).reshape(-1, 3).T
        distinct, inverse = np.unique((x << 16) | (y << 8) | z, return_inverse=True)
        if len(distinct) > np.iinfo(np.uint16).max:
            raise ValueError(f"area={area} needs more noise vertices than a table can number")
        blocks["vertices"] = inverse.reshape(len(blocks), MAX_CORNERS)
        vertices = np.stack([distinct >> 16, (distinct >> 8) & 255, distinct & 255], 1).astype(np.uint8)
        shapes = blocks.reshape(NUM_NOISES, width, height)[SHAPES]
        columns = np.zeros((NUM_SHAPES, width, MAX_CORNERS, 4, rows))
        columns[..., :height] = shapes["weights"].transpose(0, 1, 3, 4, 2)
        column_vertices = np.zeros((NUM_SHAPES, width, MAX_CORNERS, rows), np.uint16)
        column_vertices[..., :height] = shapes["vertices"].transpose(0, 1, 3, 2)
        counts = np.zeros((NUM_SHAPES, width, rows), np.int64)
        counts[..., :height] = shapes["count"]
        column_corners = counts.reshape(NUM_SHAPES, width, -1, LANES).max(3)
    record = np.zeros(1, TERRAIN)
    record["blocks"] = blocks.ctypes.data if len(blocks) else 0
    record["columns"] = columns.ctypes.data
    record["column_vertices"] = column_vertices.ctypes.data
    record["column_corners"] = column_corners.ctypes.data
    record["rows"] = rows
    record["vertices"] = vertices.ctypes.data
    record["distance"] = distance.ctypes.data
    record["start_bound"] = bound.ctypes.data
    record["num_vertices"] = len(vertices)
    record["width"], record["height"] = width, height
    return Prepared(record, (blocks, vertices, distance, bound, columns, column_vertices, column_corners))


class Workspace:
    """Memory for one thread: a survey for generating worlds, a canvas for drawing them, and a job if it shares one."""

    def __init__(self, batch: Batch, view: Prepared, job: np.ndarray | None = None) -> None:
        shape = view.record[0]
        pixels = int(shape["map_width"] * shape["map_height"])
        tiles = int(shape["num_tiles"])
        self.survey = survey = np.zeros(1, SURVEY)
        self.canvas = canvas = np.zeros(1, CANVAS)
        self._parts: list[Any] = [view, job]
        terrain = batch.terrain.record[0]
        rows = int(terrain["rows"]) if terrain["blocks"] else 0
        self._give(survey, "gradients", 4 * int(terrain["num_vertices"]), np.float64)
        self._give(survey, "shapes", int(terrain["width"]) * NUM_SHAPES * rows, np.float64)
        self._give(survey, "land", batch.config.area[0] * batch.config.area[1], np.uint16)
        self._give(survey, "surveyed", batch.config.area[0], np.int64)
        survey["ticket"] = CLOSED
        self._give(canvas, "lit", tiles * int(shape["tile_bytes"]), np.uint8)
        self._give(canvas, "is_lit", tiles, np.uint8)
        self._give(canvas, "words", 2 * pixels, np.uint32)
        for name in ("drawn", "keep", "added"):
            self._give(canvas, name, pixels, np.float64)
        for name in ("planes", "noisy"):
            self._give(canvas, name, 3 * pixels, np.uint8)
        self._give(canvas, "grey", pixels, np.uint8)
        self.context = np.zeros(1, CONTEXT)
        for name, part in {
            "worlds": batch.worlds.var,
            "results": batch.results,
            "settings": batch.settings,
            "terrain": batch.terrain.record,
            "layout": view.record,
            "survey": survey,
            "canvas": canvas,
        }.items():
            self.context[name] = part.ctypes.data
        self.context["job"] = 0 if job is None else job.ctypes.data

    def _give(self, record: np.ndarray, name: str, count: int, dtype: Any) -> None:
        part = np.empty(count, dtype)
        self._parts.append(part)
        record[name] = part.ctypes.data


class Batch:
    """``num_envs`` worlds of one configuration and one set of rules."""

    def __init__(
        self,
        config: Config,
        num_envs: int,
        *,
        rules: Program | str | None,
        autoreset: bool,
        semantic: bool = False,
        final_obs: bool = False,
    ) -> None:
        self.config = config
        self.num_envs = num_envs
        # Two threads in one world could leave it in a state that compiled code cannot survive.
        self.lock = threading.RLock()
        self.program = find_rules(rules)
        self.advance: Any = self.program.advance
        self.worlds: Worlds = allocate(num_envs, config.area)
        self.terrain = make_terrain(self.program, config.area)
        self.view = make_view(config.view, config.size)
        self.results = np.zeros(num_envs, RESULT)
        maps, images = (num_envs, *config.area), (num_envs, *config.image_shape)
        self.semantic = np.zeros(maps if semantic else 0, np.uint8)
        self.first_semantic = np.zeros(maps if semantic else 0, np.uint8)
        self.final_obs = np.zeros(images if final_obs else 0, np.uint8)
        self.settings = np.zeros(1, SETTINGS)
        self.settings["length"] = config.length
        self.settings["reach"] = 2 * max(config.view)
        self.settings["autoreset"] = autoreset
        for name in ("semantic", "first_semantic", "final_obs"):
            part = getattr(self, name)
            self.settings[name] = part.ctypes.data if part.size else 0
        self._known_steps = 0
        self.longest = 0
        """The largest step number of any environment."""
        self.extend_daylight(config.length if 0 < config.length <= 20_000 else 0)
        self.workspace = Workspace(self, self.view)

    def __reduce__(self) -> Any:
        # Records hold addresses: a byte-for-byte copy would share memory with the original.
        raise TypeError("environments are copied through save_state() and load_state()")

    def seed(self, seeds: Sequence[int]) -> None:
        """Start each environment's sequence of worlds again."""
        self.worlds.var["seed_hash"] = [hash(seed) for seed in seeds]
        self.worlds.var["episode"] = 0

    def extend_daylight(self, steps: int = 0) -> None:
        """Tabulate the time of day up to a step, and at least up to the next."""
        steps = max(steps, self.longest + 1)
        if steps >= self._known_steps:
            self._daylight = daylight_table(steps)
            self._known_steps = len(self._daylight)
            self.settings["daylight"] = self._daylight.ctypes.data

    def draw(self, index: int, size: Any = None) -> np.ndarray:
        """Draw an image of one environment, and leave the game as it was."""
        view, shape = self.view, self.config.image_shape
        if size is not None:
            size = self.check_image_size(size)
            view, shape = make_view(self.config.view, size), (size[1], size[0], 3)
        workspace = Workspace(self, view)
        workspace.context["worlds"] += index * self.worlds.var.itemsize
        images = np.zeros((1, *shape), np.uint8)
        with self.lock:
            self.advance(RENDER, workspace.context, NO_ACTIONS, images, 0, 1)
        return images[0]

    def check_image_size(self, size: Any) -> tuple[int, int]:
        checked = pair("size", size)
        check_size(checked, self.config.view)
        return checked
