"""The interface of ``crafter.Env``: ``reset()`` returns an image, ``step()`` four values."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiler import Program
from .env import CrafterEnv, check_action
from .state import NEW


class Env:
    """A drop-in replacement for ``crafter.Env``: change the import and keep the code.

    As there, one may go on stepping after an episode's end, and ``render`` takes a size. Unlike there, ``render`` does
    not change the game.
    """

    reward_range = None
    metadata = None
    spec = None

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
        self._env = env = CrafterEnv(area, view, size, reward, length, seed, render_mode="rgb_array", rules=rules)
        self._length = length
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.action_names = env.action_names
        self.save_state, self.load_state = env.save_state, env.load_state

    def reset(self) -> np.ndarray:
        with self._env._batch.lock:
            return self._env._reset()

    def step(self, action: Any) -> tuple[np.ndarray, float, Any, dict[str, Any]]:
        number = check_action(action)
        with self._env._batch.lock:
            if self._env._status == NEW:
                raise RuntimeError("the episode has not begun: call reset() before step()")
            obs, reward, dead, over, info = self._env._step(number)
        # Without a limit, the original returns `length` itself here.
        done = dead or (over if self._length else self._length)
        return obs, reward if self._env._batch.config.reward else 0.0, done, info

    @property
    def unwrapped(self) -> Env:
        return self

    def close(self) -> None:
        """Do nothing, like the original's: there is nothing to close."""

    def render(self, size: Any = None) -> np.ndarray:
        image = self._env.render(size)
        assert image is not None
        return image
