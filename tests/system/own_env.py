"""Gymnasium environments such as users have: small, of an odd shape, and at times broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

LIMIT = 40
CRASH = Path("crash")
"""Where this file exists, an environment of `make_fragile` fails in its next episodes."""


class Steps(gym.Env[np.ndarray, int]):
    """A staircase seen in grey: the right one of three actions climbs a step, worth 0.5; three steps are the end."""

    def __init__(self, *, fragile: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (20, 24), np.uint8)
        self.action_space = gym.spaces.Discrete(3, start=1)
        self._fragile = fragile
        self._height = self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._height = self._time = 0
        if self._fragile and CRASH.exists():
            raise OSError("the staircase has fallen down")
        return self._image(), {}

    def step(self, action: int) -> Any:
        assert self.action_space.contains(action)
        self._time += 1
        climbed = action == 1 + self._height and bool(self.np_random.random() < 0.5)
        self._height += climbed
        return self._image(), 0.5 * climbed, self._height == 3, self._time >= LIMIT, {}

    def _image(self) -> np.ndarray:
        image = self.np_random.integers(0, 40, (20, 24), dtype=np.uint8)
        image[: 6 * self._height] += 150
        return image


def make_env() -> Steps:
    return Steps()


def make_fragile() -> Steps:
    return Steps(fragile=True)


class Moody(Steps):
    """Draws from a generator of its own, whatever seed it is given."""

    def _image(self) -> np.ndarray:
        return np.maximum(super()._image(), np.random.default_rng().integers(0, 40, (20, 24), dtype=np.uint8))


class Endless(Steps):
    """Gives no reward and never ends."""

    def step(self, action: int) -> Any:
        return self._image(), 0.0, False, False, {}


class Worthless(Steps):
    def step(self, action: int) -> Any:
        image, _, *rest = super().step(action)
        return image, -1.0, *rest


class Continuous(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-1, 1, (2,))  # type: ignore[assignment]


class Blind(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-1, 1, (4,))

    def _image(self) -> np.ndarray:
        return np.zeros(4, np.float32)
