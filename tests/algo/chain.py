"""An environment for looking and patience: a row of doors, each with its own button, and a reward behind the last."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from tests.helpers.envs import NAMES, SIZE, TinyEnv

DOORS = len(NAMES)
BUTTONS = 3
LIMIT = 12


class ChainEnv(TinyEnv):
    """The picture shows which door one is at; its button opens it, any other leads back to the first.

    Behind the last door there is a reward of 1 and the episode ends. A player of chance gets there in one of ten.
    """

    def __init__(
        self, num_envs: int, seed: int | list[int], threads: int | None = None, *, infos: str = "final"
    ) -> None:
        seeds = [seed + i for i in range(num_envs)] if isinstance(seed, int) else seed
        super().__init__(num_envs, seeds, threads, infos=infos, limit=LIMIT)
        self.single_action_space = gym.spaces.Discrete(BUTTONS)
        self.buttons = np.array([2, 0, 1, 2])

    def step(self, actions: NDArray[np.int64], *, out: NDArray[np.uint8] | None = None) -> Any:
        out = self._room(out)
        rewards = np.zeros(self.num_envs)
        truncated = np.zeros(self.num_envs, dtype=bool)
        self._ticks += 1
        for env, action in enumerate(actions):
            opened = action == self.buttons[self._unlocked[env]]
            self._unlocked[env] = self._unlocked[env] + 1 if opened else 0
            self._length[env] += 1
            rewards[env] = self._unlocked[env] == DOORS
            self._return[env] += rewards[env]
            truncated[env] = not rewards[env] and self._length[env] >= LIMIT
            if rewards[env] or truncated[env]:
                self._finish(env)
            out[env] = self._image(env)
        return out, rewards, rewards > 0, truncated, {}

    def _image(self, env: int) -> NDArray[np.uint8]:
        image = np.zeros((SIZE, SIZE, 3), dtype=np.uint8)
        image[:, 4 * self._unlocked[env] : 4 * self._unlocked[env] + 4] = 255
        return image
