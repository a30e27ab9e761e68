"""Many Crafters at once, as a Gymnasium vector environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import Step, WorldVecEnv
from . import snapshot
from .batch import Batch, Config
from .data import ACHIEVEMENTS, ACTIONS, ITEMS
from .program import Program
from .sharing import MAX_HELPERS
from .state import Worlds
from .threads import Pool


class SpareArrays:
    """Arrays handed out earlier that nobody holds any more.

    Fresh memory is handed out by the system page by page, which for many environments takes as long as drawing
    into it. A loop that lets go of its observations gets the same few arrays in turn.
    """

    KEPT = 3

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        for array in self._arrays:
            # Whoever looks at an array holds it, so two threads cannot both find it free.
            if sys.getrefcount(array) == _UNHELD:
                return array
        array = np.empty(shape, np.uint8)
        if len(self._arrays) == self.KEPT:
            self._arrays.pop(0)
        self._arrays.append(array)
        return array


def _references(arrays: list[np.ndarray]) -> int:
    for array in arrays:
        return sys.getrefcount(array)
    return 0


_UNHELD = _references([np.empty(0, np.uint8)])


class CrafterVecEnv(WorldVecEnv):
    """``num_envs`` environments; number i is identical to ``CrafterEnv(seed=seeds[i])``.

    An environment whose episode ends is reset in the same step: the observation returned is the
    next episode's first. Finished episodes are counted in arrays, see `pop_episodes`.

    Args:
        seed: one number, from which each environment's seed is drawn; a sequence with a seed for
            each; or None for fresh ones.
        threads: how many threads share the work; None chooses by the number of environments.
        infos: "final" reports ``final_obs`` and ``final_info`` when an episode ended, "all" every
            environment's info at every step, "none" nothing.

    The other arguments are those of `CrafterEnv`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    kind = snapshot.KIND
    version = snapshot.VERSION
    negative_seeds = True

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        infos: str = "final",
        *,
        area: Any = (64, 64),
        view: Any = (9, 9),
        size: Any = (64, 64),
        reward: bool = True,
        length: int | None = 10000,
        render_mode: str | None = None,
        rules: Program | str | None = None,
    ) -> None:
        self._prepare(num_envs, seed, infos, render_mode)
        config = Config.make(area, view, size, reward, length)
        self.threads = arrays.choose_threads(threads, self.num_envs, envs_each=4, most=MAX_HELPERS + 1)
        wanted = infos != "none"
        self._batch = Batch(config, self.num_envs, rules=rules, autoreset=True, semantic=wanted, final_obs=wanted)
        self._lock = self._batch.lock
        self._batch.seed(self._seeds)
        self._pool = Pool(self._batch, self.threads)
        self._spare = SpareArrays()
        self._offer(config.image_shape, len(ACTIONS), ACHIEVEMENTS)

    def close_extras(self, **kwargs: Any) -> None:
        with self._lock:
            self._pool.close()

    def _reset(self, seeds: list[int] | None, out: np.ndarray | None) -> tuple[np.ndarray, dict[str, Any]]:
        obs = self._spare.take(self._obs_shape) if out is None else out
        if seeds is not None:
            self._seeds = seeds
            self._batch.seed(seeds)
        self._pool.reset(obs)
        self._begun = True
        self._counter.restart()
        return obs, self._all_infos(None, None) if self._infos == "all" else {}

    def _step(self, actions: np.ndarray, out: np.ndarray | None) -> Step:
        obs = self._spare.take(self._obs_shape) if out is None else out
        ended = self._pool.step(actions, obs)
        self._counter.tick += 1
        results = self._batch.results
        terminated, truncated = results["terminated"].copy(), results["truncated"].copy()
        reward = results["reward"].copy()
        infos: dict[str, Any] = {}
        done = None
        if ended:
            done = terminated | truncated
            which = np.flatnonzero(done)
            last = results[which]
            # The games count for themselves: the counter hears of an episode only when it has ended.
            self._counter.add_finished(
                which, last["length"].copy(), last["episode_return"].copy(), last["achievements"].copy()
            )
            if self._infos == "final":
                infos = self._ended_infos(done)
        if self._infos == "all":
            infos = self._all_infos(reward, done)
        if not self._batch.config.reward:
            reward = np.zeros_like(reward)
        return obs, reward, terminated, truncated, infos

    def _observe(self, out: np.ndarray | None) -> np.ndarray:
        obs = self._spare.take(self._obs_shape) if out is None else out
        for i in range(self.num_envs):
            obs[i] = self._batch.draw(i)
        return obs

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        return tuple(self._batch.draw(i, size) for i in range(self.num_envs))

    def _made_for(self) -> dict[str, Any]:
        return snapshot.made_for(self._batch)

    def _save(self) -> tuple[dict[str, Any], bytes]:
        return {}, snapshot.save(self._batch)

    def _read(self, header: dict[str, Any], body: bytes) -> Worlds:
        return snapshot.read(self._batch, body)

    def _put(self, games: Worlds) -> None:
        snapshot.put(self._batch, games)

    def _ended_infos(self, done: np.ndarray) -> dict[str, Any]:
        batch, results = self._batch, self._batch.results
        info = _vector_info(
            done,
            results["inventory"],
            results["achievements"],
            1 - results["terminated"].astype(np.float64),
            batch.semantic,
            results["player_pos"],
            results["reward"],
        )
        return self._final_infos(done, batch.final_obs, info)

    def _all_infos(self, reward: np.ndarray | None, done: np.ndarray | None) -> dict[str, Any]:
        """Infos after a step, or with ``reward`` None after a reset."""
        batch, n = self._batch, self.num_envs
        fresh = np.full(n, reward is None) if done is None else done
        players = batch.worlds.objects[:, 0]
        info = _vector_info(
            np.ones(n, np.bool_),
            batch.worlds.var["inventory"],
            batch.worlds.var["achievements"],
            np.ones(n),
            np.where(fresh[:, None, None], batch.first_semantic, batch.semantic),
            np.stack([players["x"], players["y"]], 1),
            np.zeros(n) if reward is None else np.where(fresh, 0.0, reward),
        )
        return info if done is None else info | self._ended_infos(done)


def _vector_info(
    rows: np.ndarray,
    inventory: np.ndarray,
    achievements: np.ndarray,
    discount: np.ndarray,
    semantic: np.ndarray,
    player_pos: np.ndarray,
    reward: np.ndarray,
) -> dict[str, Any]:
    """Infos as Gymnasium's vector environments give them: arrays, and masks of who has one."""

    def masked(values: np.ndarray, dtype: Any) -> np.ndarray:
        keep = rows.reshape(-1, *[1] * (values.ndim - 1))
        return np.where(keep, values, 0).astype(dtype)

    def table(names: tuple[str, ...], values: np.ndarray) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        for k, name in enumerate(names):
            columns[name] = masked(values[:, k], np.int64)
            columns[f"_{name}"] = rows.copy()
        return columns

    info: dict[str, Any] = {
        "inventory": table(ITEMS, inventory),
        "achievements": table(ACHIEVEMENTS, achievements),
        "discount": masked(discount, np.float64),
        "semantic": masked(semantic, np.uint8),
        "player_pos": masked(player_pos, np.int64),
        "reward": masked(reward, np.float64),
    }
    return info | {f"_{name}": rows.copy() for name in info}
