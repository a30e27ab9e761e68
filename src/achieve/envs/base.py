"""The vector environment that all environments share: checks, locking, episode counts and saved states.

A subclass describes itself in `__init__`, through `_check_arguments` and `_set_spaces`, and fills in the methods at the
end of `AchievementVecEnv`. They are called with checked arguments, one at a time.
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

__all__ = ["AchievementVecEnv", "FinishedEpisodes", "Outcome", "StateError"]

Outcome = tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
"""Rewards, terminations, truncations, infos."""


class AchievementVecEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A vector environment as `achieve.envs.make_vec` returns it.

    It resets an environment in the step in which its episode ends: the observation returned is the next episode's
    first. To Gymnasium's interface it adds what a learner needs: observations written in place, finished episodes as
    arrays, and states that can be saved. Threads may share it: each call waits for the one in progress, so a state is
    never saved in the middle of a step.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    autoreset_mode: ClassVar[AutoresetMode] = AutoresetMode.SAME_STEP
    """The same as in ``metadata``, where TorchRL looks for it."""
    exact_resume: bool = True
    """Whether a loaded state continues bit for bit; otherwise it continues with new episodes."""
    kind: ClassVar[str]
    """What saved states call the environment."""
    version: ClassVar[int] = 2
    """The format of saved states."""
    negative_seeds: ClassVar[bool] = False

    achievement_names: tuple[str, ...]
    """Names of the columns of `FinishedEpisodes.achievements`."""

    def _check_arguments(
        self, num_envs: int, seed: int | Sequence[int] | None, infos: str, render_mode: str | None = None
    ) -> None:
        """Check and keep the arguments that all environments have; the first thing a subclass's ``__init__`` does."""
        self.num_envs = arrays.check_whole("num_envs", num_envs, 1)
        if infos not in ("none", "final", "all"):
            raise ValueError(f"infos must be one of none, final, all, got {infos!r}")
        self._infos = infos
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode
        self._seeds = self._sub_seeds(seed)
        self._lock = threading.RLock()
        self._begun = False
        self._keep_counts = False  # at the next reset

    def _set_spaces(
        self, observations: tuple[int, ...] | gymnasium.spaces.Box, num_actions: int, achievement_names: tuple[str, ...]
    ) -> None:
        """Set the spaces, uint8 images of that shape or a box, and discrete actions, and what is counted."""
        if isinstance(observations, tuple):
            observations = gymnasium.spaces.Box(0, 255, observations, np.uint8)
        self.single_observation_space = observations
        self.single_action_space = gymnasium.spaces.Discrete(num_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.achievement_names = achievement_names
        self._num_actions = num_actions
        self._obs_shape = (self.num_envs, *observations.shape)
        self._obs_dtype = observations.dtype
        self._counter = arrays.EpisodeCounter(self.num_envs, len(achievement_names))

    @property
    def begun(self) -> bool:
        """Whether there are episodes to step: after `reset`, or after the `load_state` of a state with episodes."""
        return self._begun

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
        """Start every environment's next episode, or with ``seed`` its first; ``out`` receives the observations.

        There are no ``options``: all environments are reset, and those whose episodes end are by themselves.
        Ticks start at zero, except in the reset after `load_state` where there is no `exact_resume`.
        """
        seeds = None if seed is None else self._sub_seeds(seed)
        if options:
            raise ValueError(f"reset has no options here, and was given {', '.join(map(repr, options))}")
        arrays.check_out(out, self._obs_shape, self._obs_dtype)
        with self._lock:
            self._require_open()
            obs = self._new_obs() if out is None else out
            if seeds is not None:
                self._seeds = seeds
                self._seed()
            if seeds is not None or not self._keep_counts:
                self._counter.restart()
            self._keep_counts = False
            infos = self._reset(obs)
            self._begun = True
            return obs, infos

    def step(
        self, actions: Any, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every environment. ``out`` receives the observations, which are otherwise a new array."""
        chosen = arrays.check_actions(actions, self.num_envs, self._num_actions)
        arrays.check_out(out, self._obs_shape, self._obs_dtype)
        with self._lock:
            self._require_open()
            self._require_begun("step")
            obs = self._new_obs() if out is None else out
            rewards, terminated, truncated, infos = self._step(chosen, obs)
            return obs, rewards, terminated, truncated, infos

    def pop_episodes(self) -> FinishedEpisodes:
        """Return the episodes that ended since the last call (or reset), in order of completion."""
        with self._lock:
            return self._counter.pop()

    @property
    def has_finished(self) -> bool:
        """Whether `pop_episodes` would return any; a vector step may ask this for next to nothing."""
        return self._counter.has_finished

    def observe(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the current observations again, for instance after `load_state`."""
        arrays.check_out(out, self._obs_shape, self._obs_dtype)
        with self._lock:
            self._require_open()
            self._require_begun("observe")
            obs = self._new_obs() if out is None else out
            self._observe(obs)
            return obs

    def render(self, size: Any = None) -> tuple[np.ndarray, ...] | None:
        """Return an image of each environment, of any ``size`` where supported; never changes the games."""
        if size is None and self.render_mode is None:
            gymnasium.logger.warn("render() returns nothing without render_mode='rgb_array'")
            return None
        with self._lock:
            self._require_open()
            self._require_begun("render")
            return self._render(size)

    def save_state(self) -> bytes:
        """Return what is needed to continue exactly here or, without `exact_resume`, with unseen episodes."""
        with self._lock:
            self._require_open(saving=True)
            own, body = self._save()
            shared = {"seeds": self._seeds, "begun": self._begun, "episodes": self._counter.as_dict()}
            return arrays.seal(self.kind, self.version, {"made_for": self._made_for(), **shared, **own}, body)

    def load_state(self, data: bytes) -> None:
        """Continue where `save_state` was called; without `exact_resume`, `reset` must be called next.

        A state that is damaged or from another configuration is refused with a `StateError`, and nothing changes.
        """
        header, body = arrays.unseal(self.kind, self.version, self._made_for(), data)
        with arrays.reading():
            seeds = self._sub_seeds(list(header["seeds"]))
            begun, counter = bool(header["begun"]), self._counter.from_dict(header["episodes"])
            games = self._read(header, body)
        with self._lock:
            self._require_open(saving=True)
            self._seeds, self._begun, self._counter = seeds, begun, counter
            self._restore(games)

    def _sub_seeds(self, seed: Any) -> list[int]:
        return arrays.sub_seeds(seed, self.num_envs, negative=self.negative_seeds)

    def _new_obs(self) -> np.ndarray:
        """Return an array for observations."""
        return np.empty(self._obs_shape, self._obs_dtype)

    def _require_open(self, *, saving: bool = False) -> None:
        if self.closed:
            raise RuntimeError("the environments are closed")

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise RuntimeError(f"the episodes have not begun: call reset() before {what}()")

    def _final_infos(self, done: np.ndarray, shown: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Return what Gymnasium reports for the episodes in ``done``; ``shown[i]`` is the last observation of i."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final_obs[i] = shown[i].copy()
        return {"final_obs": final_obs, "_final_obs": done.copy(), "final_info": info, "_final_info": done.copy()}

    @abstractmethod
    def _seed(self) -> None:
        """Start each environment's sequence of episodes again, from `_seeds`."""

    @abstractmethod
    def _reset(self, obs: np.ndarray) -> dict[str, Any]:
        """Start every environment's next episode; write the observations and return the infos."""

    @abstractmethod
    def _step(self, actions: np.ndarray, obs: np.ndarray) -> Outcome:
        """Take ``actions``, int64[num_envs], and write the observations."""

    @abstractmethod
    def _observe(self, obs: np.ndarray) -> None:
        """Write the current observations."""

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        """As `render`, for environments whose metadata name a render mode."""
        raise NotImplementedError

    @abstractmethod
    def _made_for(self) -> dict[str, Any]:
        """Return what must be equal where a state is loaded."""

    @abstractmethod
    def _save(self) -> tuple[dict[str, Any], bytes]:
        """Return header entries and body of a saved state, besides what is saved of every environment."""

    @abstractmethod
    def _read(self, header: dict[str, Any], body: bytes) -> Any:
        """Return what `_save` gave, fully checked; changes nothing, and raises for a state no game can reach."""

    @abstractmethod
    def _restore(self, games: Any) -> None:
        """Continue with what `_read` returned."""
