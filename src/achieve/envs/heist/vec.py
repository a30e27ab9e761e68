"""Procgen Heist as a vector environment, with the paper's reward."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import FinishedEpisodes, WorldVecEnv
from .games import NUM_ACTIONS, Games
from .locks import SIZE, LockWatch
from .state import COLOURS, read

ACHIEVEMENTS = (*(f"{colour}_lock" for colour in COLOURS), "gem")
LOCK_REWARD = 2.0
GEM_REWARD = 10.0  # Procgen's own

_KIND, _VERSION = "heist", 1


class HeistVecEnv(WorldVecEnv):
    """``num_envs`` games in hard mode, on levels without end: 2 for each lock opened, 10 for the gem.

    Game i depends on its own seed alone. Procgen resets inside the step in which an episode ends and does not show
    the last picture: a lock opened in an episode's very last step goes unseen, and ``final_obs`` is the observation
    before that step. An episode ends at the gem (terminated) or after 1,000 steps (truncated).

    Args:
        seed: one number, from which each game's seed is drawn; a sequence with a seed for each; or None for
            fresh ones.
        threads: how many threads share the work; None chooses by the number of games.
        infos: "final" reports ``final_obs`` and ``final_info`` when an episode ended, "all" every game's info at
            every step, "none" nothing.
        render_mode: "rgb_array" makes `render` give Procgen's large pictures, at the price of drawing them always.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 15,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        infos: str = "final",
        render_mode: str | None = None,
    ) -> None:
        self.num_envs = arrays.check_num_envs(num_envs)
        self._infos = arrays.check_infos(infos)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.threads = arrays.choose_workers(threads, self.num_envs, envs_each=8)
        self._seeds = arrays.sub_seeds(seed, self.num_envs)
        self._games = Games(self.num_envs, self.threads, frames=render_mode is not None)
        self._games.seed(self._seeds)
        self._watch = LockWatch(self.num_envs, self._games.read)
        self._counter = arrays.EpisodeCounter(self.num_envs, len(ACHIEVEMENTS))
        self._begun = False
        self._shown: np.ndarray | None = None
        self.render_mode = render_mode
        self._offer((SIZE, SIZE, 3), NUM_ACTIONS)

    @property
    def achievement_names(self) -> tuple[str, ...]:
        return ACHIEVEMENTS

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts every game's next level; with ``seed``, their first."""
        self._check_out(out)
        if seed is not None:
            self._seeds = arrays.sub_seeds(seed, self.num_envs)
            self._games.seed(self._seeds)
        obs = self._games.start_over()
        self._watch_all(obs)
        self._counter.restart()
        self._begun = True
        return self._handed_out(obs, out), self._info(np.ones(self.num_envs, np.bool_)) if self._infos == "all" else {}

    def step(
        self, actions: Any, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere. ``out`` receives the observations, which are otherwise a copy."""
        chosen = arrays.check_actions(actions, self.num_envs, NUM_ACTIONS)
        self._check_out(out)
        self._require_begun("step")
        obs, native, done = self._games.step(chosen)
        gem = native > 0
        opened = self._watch.opened(obs, skip=done)
        rewards = LOCK_REWARD * opened.sum(1) + GEM_REWARD * gem
        self._counter.add(rewards)
        self._counter.achievements[:, :-1] += opened
        self._counter.achievements[:, -1] += gem
        infos: dict[str, Any] = {}
        ended = np.flatnonzero(done)
        if len(ended):
            if self._infos != "none":
                infos = self._final_infos(done)
            self._counter.finish(ended)
            for i in ended:
                self._watch.begin(int(i), obs)
        if self._infos == "all":
            infos = self._info(np.ones(self.num_envs, np.bool_)) | infos
        return self._handed_out(obs, out), rewards, gem, done & ~gem, infos

    def pop_episodes(self) -> FinishedEpisodes:
        """The episodes that ended since the last call (or reset), in order of completion."""
        return self._counter.pop()

    def observe(self, out: np.ndarray | None = None) -> np.ndarray:
        """The current observations once more, for instance after `load_state`."""
        self._check_out(out)
        self._require_begun("observe")
        return self._handed_out(self._games.observe(), out)

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Large pictures of all games."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() returns nothing without render_mode='rgb_array'")
            return None
        self._require_begun("render")
        return tuple(self._games.frames())

    def save_state(self) -> bytes:
        """Everything needed to continue exactly here, in this or another process."""
        states = [self._games.save(i) for i in range(self.num_envs)]
        header = {
            "made_for": self._made_for(),
            "seeds": self._seeds,
            "begun": self._begun,
            "placed": self._watch.placed.tolist(),
            "counter": self._counter.as_dict(),
            "sizes": [len(state) for state in states],
        }
        return arrays.seal(_KIND, _VERSION, header, zlib.compress(b"".join(states), 1))

    def load_state(self, data: bytes) -> None:
        """Continues where `save_state` was called, on an environment with as many games."""
        header, body = arrays.unseal(_KIND, _VERSION, self._made_for(), data)
        try:
            seeds = arrays.sub_seeds(header["seeds"], self.num_envs)
            counter = self._counter.from_dict(header["counter"])
            begun = bool(header["begun"])
            placed = np.array(header["placed"], np.int64).reshape(self.num_envs)
            ends = np.cumsum(header["sizes"]).reshape(self.num_envs)
            joined = zlib.decompress(body)
            states = [joined[end - size : end] for end, size in zip(ends, header["sizes"], strict=True)]
            for state in states:
                read(state)
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise ValueError(f"the saved state cannot be read: {error}") from None
        for i, state in enumerate(states):
            self._games.load(i, state)
        self._seeds, self._counter, self._begun = seeds, counter, begun
        if begun:
            self._watch_all(self._games.observe())
            self._watch.placed[:] = placed

    def close_extras(self, **kwargs: Any) -> None:
        self._games.close()

    def _made_for(self) -> dict[str, Any]:
        return {"num_envs": self.num_envs}

    def _watch_all(self, obs: np.ndarray) -> None:
        for i in range(self.num_envs):
            self._watch.begin(i, obs)
        self._shown = None if self._infos == "none" else obs.copy()

    def _handed_out(self, obs: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if self._shown is not None:
            np.copyto(self._shown, obs)
        if out is None:
            return obs
        np.copyto(out, obs)
        return out

    def _check_out(self, out: np.ndarray | None) -> None:
        if out is not None:
            arrays.check_out(out, (self.num_envs, SIZE, SIZE, 3))

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise RuntimeError(f"the episodes have not begun: call reset() before {what}()")

    def _info(self, rows: np.ndarray) -> dict[str, Any]:
        """Infos of the games in the mask ``rows``, as Gymnasium's vector environments give them."""
        info: dict[str, Any] = {
            "achievements": arrays.achievement_info(ACHIEVEMENTS, self._counter.achievements, rows),
            "locks": np.where(rows, self._watch.placed, 0),
            "level_seed": np.where(rows, self._watch.level_seed, 0),
        }
        return info | {f"_{name}": rows.copy() for name in info}

    def _final_infos(self, done: np.ndarray) -> dict[str, Any]:
        final_obs = np.full(self.num_envs, None, dtype=object)
        assert self._shown is not None
        for i in np.flatnonzero(done):
            final_obs[i] = self._shown[i].copy()
        return {
            "final_obs": final_obs,
            "_final_obs": done.copy(),
            "final_info": self._info(done),
            "_final_info": done.copy(),
        }
