"""A batch of worlds with all it takes to run them: the common ground of the environments."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .data import ITEMS
from .daylight import daylight_table
from .game import RENDER, RESET, STEP
from .program import Program, original
from .render import View
from .state import FINISHED, Outputs, Settings, Worlds, allocate
from .textures import make_view
from .worldgen import NUM_NOISES, Terrain

TABLE_CELLS = 128 * 128
"""Largest world for which noise tables are kept (they take about 2.5 KB a cell)."""

_NO_ACTIONS = np.zeros(0, np.int64)


def pair(name: str, value: Any) -> tuple[int, int]:
    """A (width, height) setting; a single number stands for both, as in Crafter."""
    values = tuple(value) if hasattr(value, "__len__") else (value, value)
    try:
        first, second = (operator.index(v) for v in values)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be one or two whole numbers, got {value!r}") from None
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
                f"view={view} has no room for the map: of its height, "
                f"{rows} rows go to the inventory; Crafter's default is (9, 9)"
            )
        if area[0] < view[0] or area[1] < view[1]:
            raise ValueError(f"area={area} must be at least as large as view={view}")
        _check_size(size, view)
        if length is None or (isinstance(length, float) and length == math.inf):
            length = 0
        try:
            limit = math.ceil(length)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"length must be a number of steps or None for no limit, got {length!r}"
            ) from None
        return cls(area, view, size, bool(reward), int(np.clip(limit, -(2**62), 2**62)))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.size[1], self.size[0], 3)


def _check_size(size: tuple[int, int], view: tuple[int, int]) -> None:
    if size[0] < 2 * view[0] or size[1] < 2 * view[1]:
        raise ValueError(f"size={size} gives view={view} less than two pixels a cell")
    if size[0] * size[1] > 2**26:
        raise ValueError(f"size={size} is more than the {2**26} pixels an image may have")


@lru_cache(maxsize=4)
def make_terrain(program: Program, area: tuple[int, int]) -> Terrain:
    """Noise tables for a world size, shared by all environments of that size."""
    width, height = area
    # NumPy's scalars and the compiled square root agree; this is the original's expression.
    xs, ys = np.meshgrid(np.arange(width), np.arange(height), indexing="ij")
    distance = np.sqrt(((xs - width // 2) ** 2 + (ys - height // 2) ** 2).astype(np.float64))
    first = np.zeros((NUM_NOISES, width * height + 1), np.int32)
    weights = np.empty((0, 4), np.float64)
    vertices = np.empty((0, 3), np.int64)
    if width * height > TABLE_CELLS:
        return Terrain(
            first, weights, np.empty(0, np.int32), np.empty((0, 3), np.uint8), distance
        )
    rows = program.build_terrain(width, height, first, weights, vertices)
    weights = np.empty((rows, 4), np.float64)
    vertices = np.empty((rows, 3), np.int64)
    program.build_terrain(width, height, first, weights, vertices)
    keys = ((vertices[:, 0] & 255) << 16) | ((vertices[:, 1] & 255) << 8) | (vertices[:, 2] & 255)
    distinct, vertex = np.unique(keys, return_inverse=True)
    points = np.stack([distinct >> 16, (distinct >> 8) & 255, distinct & 255], 1)
    return Terrain(first, weights, vertex.astype(np.int32), points.astype(np.uint8), distance)


class Batch:
    """``num_envs`` worlds of one configuration and one set of rules."""

    def __init__(
        self, config: Config, num_envs: int, *, rules: Program | None, autoreset: bool
    ) -> None:
        self.config = config
        self.num_envs = num_envs
        self.program = original() if rules is None else rules
        self.worlds: Worlds = allocate(num_envs, config.area)
        self.settings = Settings(config.length, 2 * max(config.view), int(autoreset))
        self.terrain = make_terrain(self.program, config.area)
        self.view: View = make_view(config.view, config.size)
        self.daylight = daylight_table(max(config.length, 0) if config.length < 20_000 else 0)
        self.longest = 0
        empty = np.zeros((0, 0, 0), np.uint8)
        self._nothing = Outputs(
            np.zeros((0, 0, 0, 3), np.uint8),
            np.zeros(0, np.float64),
            np.zeros(0, np.bool_),
            np.zeros(0, np.bool_),
            np.zeros(0, FINISHED),
            empty,
            np.zeros((0, 0, 0, 3), np.uint8),
            empty,
        )

    def outputs(self, *, final_obs: bool = False, semantic: bool = False) -> Outputs:
        n, shape, area = self.num_envs, self.config.image_shape, self.config.area
        return Outputs(
            obs=np.zeros((n, *shape), np.uint8),
            reward=np.zeros(n, np.float64),
            terminated=np.zeros(n, np.bool_),
            truncated=np.zeros(n, np.bool_),
            finished=np.zeros(n, FINISHED),
            semantic=np.zeros((n if semantic else 0, *area), np.uint8),
            final_obs=np.zeros((n if final_obs else 0, *shape), np.uint8),
            first_semantic=np.zeros((n if semantic else 0, *area), np.uint8),
        )

    def seed(self, seeds: Sequence[int]) -> None:
        """Starts each environment's sequence of worlds again."""
        self.worlds.var["seed_hash"] = [hash(seed) for seed in seeds]
        self.worlds.var["episode"] = 0

    def reset(self, out: Outputs, first: int = 0, last: int | None = None) -> None:
        last = self.num_envs if last is None else last
        self._advance(RESET, self.view, _NO_ACTIONS, out, first, last)

    def ready_daylight(self) -> None:
        """Makes sure the next step's time of day is known."""
        if self.longest + 1 >= len(self.daylight):
            self.daylight = daylight_table(self.longest + 1)

    def step(self, actions: np.ndarray, out: Outputs, first: int, last: int) -> tuple[int, int]:
        return self._advance(STEP, self.view, actions, out, first, last)

    def _advance(
        self, operation: int, view: View, actions: np.ndarray, out: Outputs, first: int, last: int
    ) -> tuple[int, int]:
        ended, longest = self.program.advance(
            operation,
            self.worlds,
            self.settings,
            self.terrain,
            view,
            self.daylight,
            actions,
            out,
            first,
            last,
        )
        return ended, longest

    def check_image_size(self, size: Any) -> tuple[int, int]:
        checked = pair("size", size)
        _check_size(checked, self.config.view)
        return checked

    def draw(self, index: int, size: Any = None) -> np.ndarray:
        """An image of one environment that leaves it as it was."""
        config, view = self.config, self.view
        if size is not None:
            size = self.check_image_size(size)
            view = make_view(config.view, size)
            config = Config(config.area, config.view, size, config.reward, config.length)
        image = np.zeros((1, *config.image_shape), np.uint8)
        one = Worlds(*(field[index : index + 1] for field in self.worlds))
        nothing = self._nothing
        out = Outputs(image, *nothing[1:])
        self.program.advance(
            RENDER,
            one,
            self.settings,
            self.terrain,
            view,
            self.daylight,
            _NO_ACTIONS,
            out,
            0,
            1,
        )
        return image[0]
