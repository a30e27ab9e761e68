"""A small environment to record: its episodes are as long as its seed and number say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from achieve import record

NAMES = ("wood", "stone", "iron")


class Mine(gymnasium.Env[np.ndarray, np.int64]):
    """Episode k has k + 3 steps (k + 3 + seed with a seed); step i earns 1 while there is something to unlock.

    The last step is truncated in every other episode.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (4,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, named: bool = True, offset: int = 0) -> None:
        self._named = named
        self._episode = -1
        self._offset = offset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return np.zeros(4, np.uint8), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == self._episode + 3 + self._offset
        cut = over and self._episode % 2 == 1
        counts = {name: int(self._step > k) for k, name in enumerate(NAMES)}
        info = {"achievements": counts} if self._named else {}
        reward = 1.0 if self._step <= len(NAMES) else 0.0
        return np.full(4, self._step, np.uint8), reward, over and not cut, cut, info


def play(env: Any, steps: int) -> None:
    """Step a recorded environment, resetting it where it ends."""
    env.reset()
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()


def work(folder: Path, offset: int, steps: int, barrier: Any) -> None:
    """What one of several processes does."""
    env = record(Mine(offset=offset), folder, name="many", seed=3, env_name="mine/Mine-v0")
    barrier.wait(60)
    play(env, steps)
    barrier.wait(60)
    env.close()
