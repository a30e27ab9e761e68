"""Small environments, right and wrong ones; named as `tests.envs.gym.envs:Name`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

HERE = __name__


class Count(gymnasium.Env):
    """Counts steps; every third gives a reward of 1, the others 0.25; random length, random pictures."""

    shape: tuple[int, ...] = (9, 12, 4)
    observation_space: Any = Box(0, 255, (9, 12, 4), np.uint8)
    action_space: Any = Discrete(5, start=3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed_given = seed
        self.taken = 0
        self.length = int(self.np_random.integers(4, 15))
        self.buffer = np.zeros(self.observation_space.shape, np.uint8)
        return self.draw(), self.info()

    def step(self, action: int) -> Any:
        assert self.action_space.contains(action), action
        self.taken += 1
        reward = 1.0 if self.taken % 3 == 0 else 0.25
        over = self.taken == self.length
        return self.draw(action), reward, over and self.length % 2 == 0, over and self.length % 2 == 1, self.info()

    def draw(self, action: int = 0) -> Any:
        # The same array every time, as many environments do.
        self.buffer[:] = self.np_random.integers(0, 256, self.buffer.shape)
        self.buffer.flat[:2] = self.taken, action
        return self.buffer

    def info(self) -> dict[str, Any]:
        return {"taken": self.taken, "seed": self.seed_given}


class Moody(Count):
    """Pays no heed to its seed."""

    def draw(self, action: int = 0) -> Any:
        self.buffer[:] = np.random.default_rng().integers(0, 256, self.buffer.shape)
        return self.buffer


class Grey(Count):
    observation_space = Box(0, 255, (84, 84), np.uint8)
    action_space = Discrete(5)


class Named(Count):
    """Tells of its achievements in every info."""

    def info(self) -> dict[str, Any]:
        return {"achievements": {"walk": self.taken, "third": self.taken // 3}}


class Announced(Count):
    """Announces its achievements, and tells of those done."""

    achievement_names = ("third", "sixth")

    def info(self) -> dict[str, Any]:
        return {"achievements": {name: 1 for k, name in enumerate(self.achievement_names) if self.taken >= 3 * k + 3}}


class Silent(Count):
    achievement_names = ("third",)


class Unannounced(Count):
    def info(self) -> dict[str, Any]:
        return {"achievements": {"walk": 1} | ({"surprise": 1} if self.taken == 2 else {})}


class Uncountable(Count):
    def info(self) -> dict[str, Any]:
        return {"achievements": {"walk": "often" if self.taken else 0}}


class Continuous(Count):
    action_space = Box(-1, 1, (2,))


class Vectors(Count):
    """Numbers of any kind and shape: subclasses say which."""

    observation_space = Box(-np.inf, np.inf, (4,))

    def draw(self, action: int = 0) -> Any:
        space = self.observation_space
        return self.np_random.integers(-9, 10, space.shape).astype(space.dtype) / space.dtype.type(1)


class Doubles(Vectors):
    observation_space = Box(-1e300, 1e300, (2, 3, 2, 2), np.float64)


class Integers(Vectors):
    observation_space = Box(-9, 9, (3, 5), np.int64)


class Scalar(Vectors):
    observation_space = Box(-9, 9, ())


class Small(Count):
    observation_space = Box(0, 255, (7, 7), np.uint8)


class NotFinite(Vectors):
    def draw(self, action: int = 0) -> Any:
        return super().draw() if self.taken < 2 else np.array([0, 1, np.nan, 3], np.float32)


class Numbered(Count):
    observation_space = Discrete(9)


class Paired(Count):
    observation_space = gymnasium.spaces.Tuple((Discrete(9), Discrete(9)))


class Empty(Count):
    observation_space = Box(-1, 1, (0,))


class Wordy(Count):
    observation_space = Dict({"text": gymnasium.spaces.Text(9)})


class Several(Count):
    observation_space = Dict({"image": Box(0, 255, (64, 64, 3), np.uint8)})


class WrongPicture(Count):
    def draw(self, action: int = 0) -> Any:
        return super().draw(action) if self.taken < 2 else np.zeros((5, 5, 4), np.uint8)


class NoReward(Count):
    reward: Any = None

    def step(self, action: int) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self.reward, terminated, truncated, info


class AtThreshold(NoReward):
    reward = np.float32(0.1)


class NotANumber(NoReward):
    reward = float("nan")


class Enormous(NoReward):
    reward = -1e39


class OldStep(Count):
    def step(self, action: int) -> Any:
        return super().step(action)[:4]


class OldReset(Count):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class ListInfo(Count):
    def info(self) -> Any:
        return [] if self.taken else {}


class BadNames(Count):
    achievement_names = "walk"


class TwiceNamed(Count):
    achievement_names = ("walk", "walk")


class Raises(Count):
    def step(self, action: int) -> Any:
        if self.taken == 2:
            raise KeyError("a bug of the user's")
        return super().step(action)


class RaisesAtReset(Count):
    """Only in the second episode, when a run is under way."""

    episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        if self.episodes == 2:
            raise RuntimeError("no second episode")
        return super().reset(**kwargs)


class SaysExit(Count):
    def step(self, action: int) -> Any:
        return sys.exit() if self.taken == 2 else super().step(action)


class SaysExitAtOnce(Count):
    def reset(self, **kwargs: Any) -> Any:
        sys.exit(0)


class Hangs(Count):
    def step(self, action: int) -> Any:
        while self.taken == 2:
            time.sleep(1000)
        return super().step(action)


class Forgets(Count):
    """Tells only what was done in this very step."""

    achievement_names = ("walk", "rest")

    def info(self) -> dict[str, Any]:
        return {"achievements": {"walk" if self.taken % 2 else "rest": 1}}


class Laconic(Count):
    """Tells only what was done, nothing of what was not."""

    achievement_names = ("walk", "rest")

    def info(self) -> dict[str, Any]:
        return {"achievements": {"walk": 1} if self.taken > 1 else {}}


class Ordered(Laconic):
    achievement_requirements = (("walk", "rest"),)


class Circular(Laconic):
    achievement_requirements = (("walk", "rest"), ("rest", "walk"))


class Dies(Count):
    def step(self, action: int) -> Any:
        if self.taken == 2 and action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class DiesWithChild(Dies):
    """A child that is forked keeps the dead worker's end of the connection open."""

    def reset(self, **kwargs: Any) -> Any:
        if self.__dict__.get("child") is None:
            self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(6,))
            self.child.start()
        return super().reset(**kwargs)

    def close(self) -> None:
        self.child.terminate()


class Exits(Count):
    def step(self, action: int) -> Any:
        os._exit(7) if self.taken == 2 else None
        return super().step(action)


class NoPickle(Count):
    def info(self) -> dict[str, Any]:
        return {"call": lambda: None}


def broken() -> Any:
    raise OSError("the simulator's licence has expired")


NUMBER = 3
gymnasium.register("AchieveTest/Grey-v0", entry_point=Grey, max_episode_steps=5)
