"""The interface of ``crafter.Env``: ``reset()`` gives an image, ``step()`` four values."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from .env import CrafterEnv, check_action
from .program import Program
from .state import NEW


class Env:
    """A drop-in for ``crafter.Env``: change the import and keep the code.

    As there, one may go on stepping after an episode's end, and ``render`` takes a size. Unlike
    there, ``render`` does not change the game.
    """

    def __init__(
        self,
        area: Any = (64, 64),
        view: Any = (9, 9),
        size: Any = (64, 64),
        reward: bool = True,
        length: int | None = 10000,
        seed: int | None = None,
        rules: Program | str | None = None,
    ) -> None:
        self._env = CrafterEnv(
            area, view, size, reward, length, seed, render_mode="rgb_array", rules=rules
        )
        self._length = length
        self.reward_range = None
        self.metadata = None

    @property
    def observation_space(self) -> gymnasium.spaces.Space[np.ndarray]:
        return self._env.observation_space

    @property
    def action_space(self) -> gymnasium.spaces.Space[Any]:
        return self._env.action_space

    @property
    def action_names(self) -> list[str]:
        return self._env.action_names

    def reset(self) -> np.ndarray:
        with self._env._batch.lock:
            return self._env._reset()

    def step(self, action: Any) -> tuple[np.ndarray, float, Any, dict[str, Any]]:
        number = check_action(action)
        with self._env._batch.lock:
            if self._env._status == NEW:
                raise RuntimeError("the episode has not begun: call reset() before step()")
            obs, reward, dead, over, info = self._env._step(number)
        # Without a limit, the original's value is that of `length` itself.
        done = dead or (over if self._length else self._length)
        return obs, reward if self._env._batch.config.reward else 0.0, done, info

    def render(self, size: Any = None) -> np.ndarray:
        image = self._env.render(size)
        assert image is not None
        return image

    def save_state(self) -> bytes:
        return self._env.save_state()

    def load_state(self, data: bytes) -> None:
        self._env.load_state(data)
