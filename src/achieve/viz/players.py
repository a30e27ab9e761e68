"""One game of a world at a time, as a video needs it: what the agent sees, what a viewer sees, what was achieved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from achieve.config import EnvConfig
from achieve.envs import make_vec
from achieve.run.env_errors import making_env

Picture = NDArray[np.uint8]

# Procgen's fifteen combinations of buttons; the last six do nothing in Heist.
HEIST_ACTIONS = (
    "left down", "left", "left up", "down", "noop", "up", "right down", "right", "right up",
    "d", "a", "w", "s", "q", "e",
)  # fmt: skip


class Player(Protocol):
    """One environment that plays one episode."""

    actions: Sequence[str]
    achievements: Sequence[str]

    def reset(self) -> Picture:
        """The first observation."""

    def step(self, action: int) -> tuple[Picture, float, bool]:
        """Observation, reward, and whether the episode has ended."""

    def counts(self) -> Mapping[str, int]:
        """How often each achievement was done in this episode."""

    def frame(self, size: int) -> Picture:
        """The game for a viewer: [H, W, 3] of the size asked for where the world can be drawn so, else of any."""

    def close(self) -> None:
        """Lets go of the environment."""


def make_player(env: EnvConfig, seed: int) -> Player:
    """A player of the first world of that environment seed."""
    with making_env(env.name):
        if env.name == "crafter":
            return CrafterPlayer(seed, **env.arguments)
        if env.name == "minigrid":
            return MiniGridPlayer(seed, **env.arguments)
        return VectorPlayer(env, seed)


class CrafterPlayer:
    """Crafter, drawn at any size."""

    def __init__(self, seed: int, **settings: Any) -> None:
        from achieve.envs.crafter import CrafterEnv

        self._env = CrafterEnv(seed=seed, **settings)
        self._counts: Mapping[str, int] = {}
        self.actions: Sequence[str] = self._env.action_names
        self.achievements: Sequence[str] = self._env.achievement_names

    def reset(self) -> Picture:
        observation, _ = self._env.reset()
        return observation

    def step(self, action: int) -> tuple[Picture, float, bool]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._counts = info["achievements"]
        return observation, float(reward), terminated or truncated

    def counts(self) -> Mapping[str, int]:
        return self._counts

    def frame(self, size: int) -> Picture:
        frame = self._env.render((size, size))
        assert frame is not None
        return frame

    def close(self) -> None:
        self._env.close()


class MiniGridPlayer:
    """The door-key tree as MiniGrid draws it: the whole level, with what the agent sees lit up."""

    def __init__(self, seed: int, **settings: Any) -> None:
        from achieve.envs.minigrid import pixel_env

        self._env = pixel_env(render_mode="rgb_array", **settings)
        self._seed = seed
        self._counts: Mapping[str, int] = {}
        base: Any = self._env.unwrapped
        self.actions: Sequence[str] = [action.name for action in base.actions]
        self.achievements: Sequence[str] = base.achievement_names

    def reset(self) -> Picture:
        observation, _ = self._env.reset(seed=self._seed)
        return observation

    def step(self, action: int) -> tuple[Picture, float, bool]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._counts = info["achievements"]
        return observation, float(reward), terminated or truncated

    def counts(self) -> Mapping[str, int]:
        return self._counts

    def frame(self, size: int) -> Picture:
        return np.asarray(self._env.render(), np.uint8)

    def close(self) -> None:
        self._env.close()


class VectorPlayer:
    """Any other world, through its vector environment.

    The viewer sees what the world renders where it does, or else what the agent sees. In the step that ends an
    episode the environment already begins the next one: the last picture is then the last one there was.
    """

    def __init__(self, env: EnvConfig, seed: int) -> None:
        own = {"render_mode": "rgb_array"} if env.name == "heist" else {}
        self._envs = make_vec(env.name, num_envs=1, seed=[seed], threads=1, infos="all", **env.arguments, **own)
        self._counts: dict[str, int] = {}
        self._frame = np.zeros((1, 1, 3), np.uint8)
        count = int(getattr(self._envs.single_action_space, "n", 0))
        numbered = [f"action {i}" for i in range(count)]
        self.actions: Sequence[str] = HEIST_ACTIONS if env.name == "heist" else numbered
        self.achievements: Sequence[str] = self._envs.achievement_names
        self._newest = self._envs.observation_space.shape[-1] // env.own_settings.get("frame_stack", 1)  # type: ignore[index]

    def reset(self) -> Picture:
        observations, infos = self._envs.reset()
        self._look(observations[0], infos)
        return np.array(observations[0])

    def step(self, action: int) -> tuple[Picture, float, bool]:
        observations, rewards, terminated, truncated, infos = self._envs.step(np.array([action]))
        over = bool(terminated[0] or truncated[0])
        if over:
            observation, infos = infos["final_obs"][0], infos["final_info"]
            if self._envs.render_mode is None:
                self._frame = coloured(observation[..., -self._newest :])
            self._count(infos)
        else:
            observation = observations[0]
            self._look(observation, infos)
        return np.array(observation), float(rewards[0]), over

    def counts(self) -> Mapping[str, int]:
        return self._counts

    def frame(self, size: int) -> Picture:
        return self._frame

    def close(self) -> None:
        self._envs.close()

    def _look(self, observation: Picture, infos: Mapping[str, Any]) -> None:
        pictures: Any = self._envs.render() if self._envs.render_mode is not None else None
        self._frame = coloured(observation[..., -self._newest :] if pictures is None else pictures[0])
        self._count(infos)

    def _count(self, infos: Mapping[str, Any]) -> None:
        table = infos["achievements"]
        self._counts = {name: int(table[name][0]) for name in self.achievements}


def coloured(image: Picture) -> Picture:
    """An image [H, W, C] of any channels as RGB: of stacked frames the last, grey where that has one channel."""
    channels = image.shape[2]
    if channels % 3 == 0:
        return np.array(image[..., -3:])
    return np.repeat(image[..., -1:], 3, axis=2)
