"""The vector environment that all worlds share: checks, locking, counted episodes and saved states.

A world says what it is in `__init__`, through `_prepare` and `_offer`, and fills in the methods that begin with one
underscore at the end of `WorldVecEnv`. They are called with checked arguments, one at a time.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from . import arrays
from .arrays import FinishedEpisodes, StateError

__all__ = ["FinishedEpisodes", "StateError", "Step", "WorldVecEnv"]

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
"""Observations, rewards, terminations, truncations, infos."""


class WorldVecEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A vector environment as `achieve.envs.make_vec` returns it.

    It resets an environment in the same step in which its episode ends, and adds to Gymnasium's
    interface what a learner wants: observations written in place, finished episodes as arrays,
    and states that can be saved. Several threads may use it: each call waits for the one under way, so that a saved
    state is always one between two steps.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    exact_resume: bool = True
    """Whether a loaded state continues bit for bit; where not, it continues with new episodes, on new worlds."""
    kind: ClassVar[str]
    """What saved states call the world."""
    version: ClassVar[int] = 2
    """The format of saved states."""
    negative_seeds: ClassVar[bool] = False

    achievement_names: tuple[str, ...]
    """Names of the columns of `FinishedEpisodes.achievements`."""

    def _prepare(self, num_envs: int, seed: int | Sequence[int] | None, infos: str, render_mode: str | None) -> None:
        """Checks and keeps the arguments that all worlds have; the first thing a world's ``__init__`` does."""
        self.num_envs = arrays.check_num_envs(num_envs)
        self._infos = arrays.check_infos(infos)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode
        self._seeds = self._sub_seeds(seed)
        self._lock = threading.RLock()
        self._begun = False

    def _offer(self, image_shape: tuple[int, ...], num_actions: int, achievement_names: tuple[str, ...]) -> None:
        """Sets the spaces, byte images of that shape and so many actions, and what is counted."""
        self.single_observation_space = gymnasium.spaces.Box(0, 255, image_shape, np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(num_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.achievement_names = achievement_names
        self._num_actions = num_actions
        self._obs_shape = (self.num_envs, *image_shape)
        self._counter = arrays.EpisodeCounter(self.num_envs, len(achievement_names))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Each environment's seed."""
        return tuple(self._seeds)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts every environment's next episode, with ``seed`` their first; ``out`` receives the observations.

        Ticks start at zero, except in the reset that follows the `load_state` of a world without `exact_resume`.
        """
        seeds = None if seed is None else self._sub_seeds(seed)
        self._check_out(out)
        with self._lock:
            self._require_open()
            return self._reset(seeds, out)

    def step(self, actions: Any, *, out: np.ndarray | None = None) -> Step:
        """One step everywhere. ``out`` receives the observations, which are otherwise a copy."""
        chosen = arrays.check_actions(actions, self.num_envs, self._num_actions)
        self._check_out(out)
        with self._lock:
            self._require_open()
            self._require_begun("step")
            return self._step(chosen, out)

    def pop_episodes(self) -> FinishedEpisodes:
        """The episodes that ended since the last call (or reset), in order of completion."""
        with self._lock:
            return self._counter.pop()

    def observe(self, out: np.ndarray | None = None) -> np.ndarray:
        """The current observations once more, for instance after `load_state`."""
        self._check_out(out)
        with self._lock:
            self._require_open()
            self._require_begun("observe")
            return self._observe(out)

    def render(self, size: Any = None) -> tuple[np.ndarray, ...] | None:
        """Pictures of all environments, at any ``size`` where the world can be drawn so; never changes the games."""
        if size is None and self.render_mode is None:
            gymnasium.logger.warn("render() returns nothing without render_mode='rgb_array'")
            return None
        with self._lock:
            self._require_open()
            self._require_begun("render")
            return self._render(size)

    def save_state(self) -> bytes:
        """Everything needed to continue exactly here; without `exact_resume`, to continue on unseen worlds."""
        with self._lock:
            self._require_open()
            own, body = self._save()
            shared = {"seeds": self._seeds, "begun": self._begun, "episodes": self._counter.as_dict()}
            return arrays.seal(self.kind, self.version, {"made_for": self._made_for(), **shared, **own}, body)

    def load_state(self, data: bytes) -> None:
        """Continues where `save_state` was called; without `exact_resume`, `reset` must be called next.

        A state that is damaged or of another configuration is refused with a `StateError`, and nothing has changed.
        """
        header, body = arrays.unseal(self.kind, self.version, self._made_for(), data)
        with arrays.reading():
            seeds = self._sub_seeds(list(header["seeds"]))
            begun, counter = bool(header["begun"]), self._counter.from_dict(header["episodes"])
            games = self._read(header, body)
        with self._lock:
            self._require_open()
            self._seeds, self._begun, self._counter = seeds, begun, counter
            self._put(games)

    def _sub_seeds(self, seed: Any) -> list[int]:
        return arrays.sub_seeds(seed, self.num_envs, negative=self.negative_seeds)

    def _check_out(self, out: np.ndarray | None) -> None:
        if out is not None:
            arrays.check_out(out, self._obs_shape)

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("the environments are closed")

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise RuntimeError(f"the episodes have not begun: call reset() before {what}()")

    def _final_infos(self, done: np.ndarray, shown: Any, info: dict[str, Any]) -> dict[str, Any]:
        """What Gymnasium reports of the episodes in the mask ``done``; ``shown[i]`` is the last observation of i."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final_obs[i] = shown[i].copy()
        final = {"final_obs": final_obs, "final_info": info}
        return final | {f"_{name}": done.copy() for name in final}

    @abstractmethod
    def _reset(self, seeds: list[int] | None, out: np.ndarray | None) -> tuple[np.ndarray, dict[str, Any]]:
        """As `reset`; begins with the worlds of ``seeds`` if there are any, or else goes on to the next."""

    @abstractmethod
    def _step(self, actions: np.ndarray, out: np.ndarray | None) -> Step:
        """As `step`; ``actions`` is int64[num_envs]."""

    @abstractmethod
    def _observe(self, out: np.ndarray | None) -> np.ndarray:
        """As `observe`."""

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        """As `render`, for worlds whose metadata name a render mode."""
        raise NotImplementedError

    @abstractmethod
    def _made_for(self) -> dict[str, Any]:
        """What must be equal where a state is loaded."""

    @abstractmethod
    def _save(self) -> tuple[dict[str, Any], bytes]:
        """Header entries and body of a saved state, besides what is saved of every world."""

    @abstractmethod
    def _read(self, header: dict[str, Any], body: bytes) -> Any:
        """What `_save` gave, checked completely; changes nothing, and raises for what is not of a possible game."""

    @abstractmethod
    def _put(self, games: Any) -> None:
        """Continues with what `_read` returned."""
