"""What all worlds share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space


class FinishedEpisodes(NamedTuple):
    """Episodes that have ended, in order of completion (vector step, then environment).

    After ``tick`` vector steps, ``tick * num_envs`` environment steps have been taken.
    """

    env: np.ndarray  # int64[k]: which sub-environment
    tick: np.ndarray  # int64[k]: vector steps taken when it ended
    length: np.ndarray  # int64[k]
    episode_return: np.ndarray  # float64[k]
    achievements: np.ndarray  # int64[k, achievements]: how often each was done


class WorldVecEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A vector environment as `achieve.envs.make_vec` returns it.

    It resets an environment in the same step in which its episode ends, and adds to Gymnasium's
    interface what a learner wants: observations written in place, finished episodes as arrays,
    and states that can be saved.
    """

    exact_resume: bool = True
    """Whether a loaded state continues bit for bit; where not, it continues with new episodes, on new worlds."""

    _seeds: list[int]

    def _offer(self, image_shape: tuple[int, ...], num_actions: int) -> None:
        """Sets the spaces: byte images of that shape, so many actions."""
        self.single_observation_space = gymnasium.spaces.Box(0, 255, image_shape, np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(num_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Each environment's seed."""
        return tuple(self._seeds)

    @property
    @abstractmethod
    def achievement_names(self) -> tuple[str, ...]:
        """Names of the columns of `FinishedEpisodes.achievements`."""

    @abstractmethod
    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts every environment's next episode; ``out`` receives the observations.

        Ticks start at zero, except in the reset that follows the `load_state` of a world without `exact_resume`.
        """

    @abstractmethod
    def step(
        self, actions: Any, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere: observations, rewards, terminations, truncations, infos."""

    @abstractmethod
    def pop_episodes(self) -> FinishedEpisodes:
        """The episodes that ended since the last call (or reset)."""

    @abstractmethod
    def save_state(self) -> bytes:
        """Everything needed to continue exactly here; without `exact_resume`, to continue on unseen worlds."""

    @abstractmethod
    def load_state(self, data: bytes) -> None:
        """Continues where `save_state` was called; without `exact_resume`, `reset` must be called next."""
