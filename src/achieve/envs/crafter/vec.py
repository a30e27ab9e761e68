"""Many Crafters at once, as a Gymnasium vector environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import arrays
from ..base import AchievementVecEnv, Outcome
from . import snapshot
from .advance import MAX_HELPERS
from .batch import Batch, Config
from .compiler import Program
from .data import ACHIEVEMENTS, ACTIONS, ITEMS
from .state import Worlds
from .thread_pool import ThreadPool


class SpareArrays:
    """Arrays returned earlier that nobody refers to any more.

    The system provides fresh memory page by page, which for many environments takes as long as drawing into it. A loop
    that lets go of its observations gets the same few arrays in turn.
    """

    KEPT = 3

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        for array in self._arrays:
            # Looking at an array refers to it, so two threads cannot both find it free.
            if sys.getrefcount(array) == _UNUSED:
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


_UNUSED = _references([np.empty(0, np.uint8)])


class CrafterVecEnv(AchievementVecEnv):
    """``num_envs`` environments; number i is identical to ``CrafterEnv(seed=seeds[i])``.

    ``num_envs``, ``seed``, ``threads`` and ``infos`` are as in `make_vec`, the other arguments as in `CrafterEnv`.
    """

    metadata: dict[str, Any] = AchievementVecEnv.metadata | {"render_modes": ["rgb_array"], "render_fps": 10}
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
        percept: bool = False,
    ) -> None:
        self._check_arguments(num_envs, seed, infos, render_mode)
        config = Config.make(area, view, size, reward, length)
        self.threads = arrays.choose_threads(threads, self.num_envs, envs_each=4, most=MAX_HELPERS + 1)
        wanted = infos != "none"
        self._batch = Batch(config, self.num_envs, rules=rules, autoreset=True, semantic=wanted, final_obs=wanted)
        self._lock = self._batch.lock
        self._seed()
        self._pool = ThreadPool(self._batch, self.threads)
        self._spare = SpareArrays()
        self._percept = None
        if percept:
            from .percept import Percept, SIZE
            self._percept = Percept(self.num_envs, len(ACTIONS))
            self._set_spaces((SIZE,), len(ACTIONS), ACHIEVEMENTS)
        else:
            self._set_spaces(config.image_shape, len(ACTIONS), ACHIEVEMENTS)

    @property
    def view(self) -> tuple[int, int]:
        """Cells across and down the image, those of the inventory included."""
        return self._batch.config.view

    @property
    def sleeping(self) -> np.ndarray:
        """Whether each player is asleep, bool[num_envs]; the infos, which are the original's, do not say."""
        with self._lock:
            return self._batch.worlds.var["sleeping"] != 0

    def close_extras(self, **kwargs: Any) -> None:
        with self._lock:
            self._pool.close()

    def _new_obs(self) -> np.ndarray:
        return self._spare.take(self._obs_shape)

    def _seed(self) -> None:
        self._batch.seed(self._seeds)

    def _reset(self, obs: np.ndarray) -> dict[str, Any]:
        if self._percept is not None:
            self._pool.reset(self._percept.images)
            self._percept(np.full(self.num_envs, -1), np.ones(self.num_envs, np.bool_), obs)
        else:
            self._pool.reset(obs)
        return self._all_infos(None, None) if self._infos == "all" else {}

    def _step(self, actions: np.ndarray, obs: np.ndarray) -> Outcome:
        ended = self._pool.step(actions, obs if self._percept is None else self._percept.images)
        if self._percept is not None:
            r = self._batch.results
            self._percept(actions, r["terminated"] | r["truncated"], obs)
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
            # The games do their own counting; the counter only hears of episodes that have ended.
            self._counter.add_finished(
                which, last["length"].copy(), last["episode_return"].copy(), last["achievements"].copy()
            )
            if self._infos == "final":
                infos = self._ended_infos(done)
        if self._infos == "all":
            infos = self._all_infos(reward, done)
        if not self._batch.config.reward:
            reward = np.zeros_like(reward)
        return reward, terminated, truncated, infos

    def _observe(self, obs: np.ndarray) -> None:
        for i in range(self.num_envs):
            obs[i] = self._batch.draw(i)

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        return tuple(self._batch.draw(i, size) for i in range(self.num_envs))

    def _made_for(self) -> dict[str, Any]:
        return snapshot.made_for(self._batch)

    def _save(self) -> tuple[dict[str, Any], bytes]:
        return {}, snapshot.save(self._batch)

    def _read(self, header: dict[str, Any], body: bytes) -> Worlds:
        return snapshot.read(self._batch, body)

    def _restore(self, games: Worlds) -> None:
        snapshot.restore(self._batch, games)

    def _ended_infos(self, done: np.ndarray) -> dict[str, Any]:
        batch, results = self._batch, self._batch.results
        discount = 1 - results["terminated"].astype(np.float64)
        info = _info(done, results, discount, batch.semantic, results["player_pos"], results["reward"])
        return self._final_infos(done, batch.final_obs, info)

    def _all_infos(self, reward: np.ndarray | None, done: np.ndarray | None) -> dict[str, Any]:
        """Return the infos after a step or, with ``reward`` None, after a reset."""
        batch, n = self._batch, self.num_envs
        fresh = np.full(n, reward is None) if done is None else done
        player = batch.worlds.objects[:, 0]
        semantic = np.where(fresh[:, None, None], batch.first_semantic, batch.semantic)
        position = np.stack([player["x"], player["y"]], 1)
        rewards = np.zeros(n) if reward is None else np.where(fresh, 0.0, reward)
        info = _info(np.ones(n, np.bool_), batch.worlds.var, np.ones(n), semantic, position, rewards)
        return info if done is None else info | self._ended_infos(done)


def _info(
    rows: np.ndarray,
    counts: np.ndarray,
    discount: np.ndarray,
    semantic: np.ndarray,
    player_pos: np.ndarray,
    reward: np.ndarray,
) -> dict[str, Any]:
    """Return the infos of the environments in ``rows``; ``counts`` has their inventories and achievements."""
    values = {
        "inventory": dict(zip(ITEMS, counts["inventory"].T, strict=True)),
        "achievements": dict(zip(ACHIEVEMENTS, counts["achievements"].T, strict=True)),
        "discount": discount,
        "semantic": semantic,
        "player_pos": player_pos,
        "reward": reward,
    }
    return arrays.vector_info(rows, values)
