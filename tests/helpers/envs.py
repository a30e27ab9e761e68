"""A small deterministic environment for tests: quick to step, easy to unlock things in, free of any dependency."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from achieve.envs.base import FinishedEpisodes

NAMES = ("first", "second", "third", "fourth")
SIZE = 16


class TinyEnv:
    """Vector environment with images of noise around a state, four achievements in a row and short episodes.

    Action 1 unlocks the next achievement with probability 0.4 (reward 1, or 0.9 with damage). Episodes
    end at random, or by truncation after `limit` steps. `labels` renames achievements in the log only:
    what a learner may see is the same.
    """

    achievement_names = NAMES
    exact_resume = True

    def __init__(
        self,
        num_envs: int,
        seed: list[int],
        threads: int | None = None,
        *,
        infos: str = "final",
        limit: int = 30,
        labels: list[int] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.limit = limit
        self.labels = list(range(len(NAMES))) if labels is None else labels
        self.single_observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.single_action_space = gym.spaces.Discrete(4)
        self._rngs = [np.random.default_rng(s) for s in seed]
        self._ticks = 0
        self._unlocked = np.zeros(num_envs, dtype=np.int64)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self._finished: list[tuple[int, int, int, float, list[int]]] = []
        self._palette = np.random.default_rng(0).integers(
            0, 256, (len(NAMES) + 1, SIZE, SIZE, 3), dtype=np.uint8
        )

    def reset(
        self, *, out: NDArray[np.uint8] | None = None, **_: Any
    ) -> tuple[Any, dict[str, Any]]:
        out = self._room(out)
        self._unlocked[:] = self._length[:] = 0
        self._return[:] = 0
        for env in range(self.num_envs):
            out[env] = self._image(env)
        return out, {}

    def step(self, actions: NDArray[np.int64], *, out: NDArray[np.uint8] | None = None) -> Any:
        out = self._room(out)
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, dtype=bool)
        truncated = np.zeros(self.num_envs, dtype=bool)
        self._ticks += 1
        for env, rng in enumerate(self._rngs):
            luck, health, fate = rng.random(3)
            if actions[env] == 1 and luck < 0.4 and self._unlocked[env] < len(NAMES):
                self._unlocked[env] += 1
                rewards[env] = 1.0
            rewards[env] += 0.1 if health < 0.1 else -0.1 if health > 0.9 else 0.0
            self._length[env] += 1
            self._return[env] += rewards[env]
            terminated[env] = fate < 0.05
            truncated[env] = not terminated[env] and self._length[env] >= self.limit
            if terminated[env] or truncated[env]:
                self._finish(env)
            out[env] = self._image(env)
        return out, rewards, terminated, truncated, {}

    def pop_episodes(self) -> FinishedEpisodes:
        rows, self._finished = self._finished, []
        env, tick, length, total, counts = zip(*rows, strict=True) if rows else ([],) * 5
        return FinishedEpisodes(
            np.array(env, dtype=np.int64),
            np.array(tick, dtype=np.int64),
            np.array(length, dtype=np.int64),
            np.array(total, dtype=np.float64),
            np.array(counts, dtype=np.int64).reshape(len(rows), len(NAMES)),
        )

    def save_state(self) -> bytes:
        state = {
            "rngs": [rng.bit_generator.state for rng in self._rngs],
            "ticks": self._ticks,
            "unlocked": self._unlocked.tolist(),
            "length": self._length.tolist(),
            "return": self._return.tolist(),
        }
        return json.dumps(state).encode()

    def load_state(self, data: bytes) -> None:
        state = json.loads(data)
        for rng, saved in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = saved
        self._ticks = state["ticks"]
        self._unlocked[:] = state["unlocked"]
        self._length[:] = state["length"]
        self._return[:] = state["return"]
        self._finished = []

    def close(self) -> None:
        pass

    def _room(self, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        return np.empty((self.num_envs, SIZE, SIZE, 3), np.uint8) if out is None else out

    def _image(self, env: int) -> NDArray[np.uint8]:
        noise = self._rngs[env].integers(0, 64, (SIZE, SIZE, 3), dtype=np.uint8)
        return self._palette[self._unlocked[env]] // 2 + noise

    def _finish(self, env: int) -> None:
        counts = [0] * len(NAMES)
        for index in range(self._unlocked[env]):
            counts[self.labels[index]] = 1
        self._finished.append(
            (env, self._ticks, int(self._length[env]), float(self._return[env]), counts)
        )
        self._unlocked[env] = self._length[env] = 0
        self._return[env] = 0


class ScriptedEnv:
    """Random images with rewards and episode ends given in advance, row by row; remembers the actions it was given."""

    def __init__(
        self, rewards: NDArray[np.float64], dones: NDArray[np.bool_], seed: int = 0
    ) -> None:
        self.rewards, self.dones = rewards, dones
        self.num_envs = rewards.shape[1]
        self._rng = np.random.default_rng(seed)
        self.actions: list[NDArray[np.int64]] = []

    def reset(self, *, out: NDArray[np.uint8]) -> None:
        out[:] = self._rng.integers(0, 256, out.shape, dtype=np.uint8)

    def step(self, actions: NDArray[np.int64], *, out: NDArray[np.uint8]) -> Any:
        tick = len(self.actions)
        self.actions.append(actions.copy())
        out[:] = self._rng.integers(0, 256, out.shape, dtype=np.uint8)
        done = self.dones[tick]
        # Half of the ends are time limits: a learner must not tell them apart.
        limit = done & (np.arange(self.num_envs) % 2 == 1)
        return out, self.rewards[tick], done & ~limit, limit, {}
