"""Procgen Heist as a vector environment, with the paper's reward."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import Step, WorldVecEnv
from .games import NUM_ACTIONS, Games
from .locks import SIZE, LockWatch
from .state import COLOURS, MAX_SIZE, read

ACHIEVEMENTS = (*(f"{colour}_lock" for colour in COLOURS), "gem")
LOCK_REWARD = 2.0
GEM_REWARD = 10.0  # Procgen's own


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
    kind = "heist"

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        infos: str = "final",
        render_mode: str | None = None,
    ) -> None:
        self._prepare(num_envs, seed, infos, render_mode)
        self.threads = arrays.choose_threads(threads, self.num_envs, envs_each=8)
        self._games = Games(self.num_envs, self.threads, frames=render_mode is not None)
        self._games.seed(self._seeds)
        self._watch = LockWatch(self.num_envs, self._games.read)
        self._shown: np.ndarray | None = None
        self._offer((SIZE, SIZE, 3), NUM_ACTIONS, ACHIEVEMENTS)

    def close_extras(self, **kwargs: Any) -> None:
        with self._lock:
            self._games.close()

    def _reset(self, seeds: list[int] | None, out: np.ndarray | None) -> tuple[np.ndarray, dict[str, Any]]:
        if seeds is not None:
            self._seeds = seeds
            self._games.seed(seeds)
        obs = self._games.start_over()
        self._watch_all(obs)
        self._counter.restart()
        self._begun = True
        return self._handed_out(obs, out), self._info(np.ones(self.num_envs, np.bool_)) if self._infos == "all" else {}

    def _step(self, actions: np.ndarray, out: np.ndarray | None) -> Step:
        obs, native, done = self._games.step(actions)
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
                infos = self._final_infos(done, self._shown, self._info(done))
            self._counter.finish(ended)
            for i in ended:
                self._watch.begin(int(i), obs)
        if self._infos == "all":
            infos = self._info(np.ones(self.num_envs, np.bool_)) | infos
        return self._handed_out(obs, out), rewards, gem, done & ~gem, infos

    def _observe(self, out: np.ndarray | None) -> np.ndarray:
        return self._handed_out(self._games.observe(), out)

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        return tuple(self._games.frames())

    def _made_for(self) -> dict[str, Any]:
        return {"num_envs": self.num_envs}

    def _save(self) -> tuple[dict[str, Any], bytes]:
        states = [self._games.save(i) for i in range(self.num_envs)]
        own = {"placed": self._watch.placed.tolist(), "sizes": [len(state) for state in states]}
        return own, zlib.compress(b"".join(states), 1)

    def _read(self, header: dict[str, Any], body: bytes) -> tuple[np.ndarray, list[bytes]]:
        placed = np.array(header["placed"], np.int64).reshape(self.num_envs)
        ends = np.cumsum(np.array(header["sizes"], np.int64)).reshape(self.num_envs)
        unpacker = zlib.decompressobj()
        joined = unpacker.decompress(body, self.num_envs * MAX_SIZE)
        if not unpacker.eof or ends[-1] != len(joined):
            raise ValueError("its games are incomplete")
        states = [joined[end - size : end] for end, size in zip(ends, header["sizes"], strict=True)]
        for state in states:
            read(state)
        return placed, states

    def _put(self, games: tuple[np.ndarray, list[bytes]]) -> None:
        placed, states = games
        for i, state in enumerate(states):
            self._games.load(i, state)
        if self._begun:
            self._watch_all(self._games.observe())
            self._watch.placed[:] = placed

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

    def _info(self, rows: np.ndarray) -> dict[str, Any]:
        """Infos of the games in the mask ``rows``, as Gymnasium's vector environments give them."""
        info: dict[str, Any] = {
            "achievements": arrays.achievement_info(ACHIEVEMENTS, self._counter.achievements, rows),
            "locks": np.where(rows, self._watch.placed, 0),
            "level_seed": np.where(rows, self._watch.level_seed, 0),
        }
        return info | {f"_{name}": rows.copy() for name in info}
