"""Many Crafters at once, as a Gymnasium vector environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import FinishedEpisodes, WorldVecEnv
from . import snapshot
from .batch import Batch, Config
from .data import ACHIEVEMENTS, ACTIONS, ITEMS
from .env import check_seed
from .program import Program
from .threads import Pool, choose_threads


def sub_seeds(seed: int | Sequence[int] | None, num_envs: int) -> list[int]:
    """A seed for each environment: given, or spread from one number by a SeedSequence."""
    if not isinstance(seed, Sequence | np.ndarray):
        entropy = None if seed is None else check_seed(seed)
        if entropy is not None and entropy < 0:
            raise ValueError(f"seed must not be negative, got {seed!r}")
        words = np.random.SeedSequence(entropy).generate_state(num_envs, np.uint64)
        return [int(word >> np.uint64(1)) for word in words]
    seeds = [check_seed(one) for one in seed]
    if len(seeds) != num_envs:
        raise ValueError(f"{num_envs} environments need {num_envs} seeds, got {len(seeds)}")
    return seeds


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
        rules: Program | None = None,
    ) -> None:
        self.num_envs = arrays.check_num_envs(num_envs)
        self._infos = arrays.check_infos(infos)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        config = Config.make(area, view, size, reward, length)
        self._threads = choose_threads(threads, self.num_envs)
        self._seeds = sub_seeds(seed, self.num_envs)
        wanted = infos != "none"
        self._batch = Batch(
            config,
            self.num_envs,
            rules=rules,
            autoreset=True,
            semantic=wanted,
            final_obs=wanted,
        )
        self._batch.seed(self._seeds)
        self._pool = Pool(self._batch, self._threads)
        self._spare = SpareArrays()
        self._begun = False
        self._tick = 0
        self._episodes: list[FinishedEpisodes] = []
        self.render_mode = render_mode
        self._offer(config.image_shape, len(ACTIONS))

    @property
    def achievement_names(self) -> tuple[str, ...]:
        return ACHIEVEMENTS

    @property
    def threads(self) -> int:
        return self._threads

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts every environment's next world; with ``seed``, their first."""
        obs = self._obs_array(out)
        if seed is not None:
            self._seeds = sub_seeds(seed, self.num_envs)
            self._batch.seed(self._seeds)
        self._pool.reset(obs)
        self._begun = True
        self._tick = 0
        self._episodes.clear()
        infos = self._all_infos(None, None) if self._infos == "all" else {}
        return obs, infos

    def step(
        self, actions: Any, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere. ``out`` receives the observations, which are otherwise a copy."""
        chosen = arrays.check_actions(actions, self.num_envs, len(ACTIONS))
        obs = self._obs_array(out)
        if not self._begun:
            raise RuntimeError("the episodes have not begun: call reset() before step()")
        ended = self._pool.step(chosen, obs)
        self._tick += 1
        results = self._batch.results
        terminated, truncated = results["terminated"].copy(), results["truncated"].copy()
        reward = results["reward"].copy()
        infos: dict[str, Any] = {}
        done = None
        if ended:
            done = terminated | truncated
            which = np.flatnonzero(done)
            self._episodes.append(self._finished(which, self._tick, results[which]))
            if self._infos == "final":
                infos = self._final_infos(done)
        if self._infos == "all":
            infos = self._all_infos(reward, done)
        if not self._batch.config.reward:
            reward = np.zeros_like(reward)
        return obs, reward, terminated, truncated, infos

    def pop_episodes(self) -> FinishedEpisodes:
        """The episodes that ended since the last call (or reset), in order of completion."""
        episodes, self._episodes = self._episodes, []
        if not episodes:
            return self._finished(np.zeros(0, np.int64), 0, self._batch.results[:0])
        return FinishedEpisodes(*(np.concatenate(column) for column in zip(*episodes, strict=True)))

    def observe(self, out: np.ndarray | None = None) -> np.ndarray:
        """The current observations once more, for instance after `load_state`."""
        obs = self._obs_array(out)
        self._require_begun("observe")
        for i in range(self.num_envs):
            obs[i] = self._batch.draw(i)
        return obs

    def render(self, size: Any = None) -> tuple[np.ndarray, ...] | None:
        """Images of all environments, at any size; never changes the games."""
        if size is None and self.render_mode is None:
            gymnasium.logger.warn("render() returns nothing without render_mode='rgb_array'")
            return None
        self._require_begun("render")
        return tuple(self._batch.draw(i, size) for i in range(self.num_envs))

    def save_state(self) -> bytes:
        """Everything needed to continue exactly here, in this or another process."""
        pending = [[column.tolist() for column in episodes] for episodes in self._episodes]
        extra = {
            "seeds": self._seeds,
            "tick": self._tick,
            "begun": self._begun,
            "pending": pending,
        }
        return snapshot.save(self._batch, extra)

    def load_state(self, data: bytes) -> None:
        """Continues where `save_state` was called, on an environment of the same configuration."""
        extra = snapshot.load(self._batch, data, check=self._read_extra)
        self._seeds, self._tick, self._begun, self._episodes = self._read_extra(extra)
        self._batch.longest = int(self._batch.worlds.var["step"].max())

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _finished(self, which: np.ndarray, tick: int, results: np.ndarray) -> FinishedEpisodes:
        return FinishedEpisodes(
            env=which.astype(np.int64),
            tick=np.full(len(which), tick, np.int64),
            length=results["length"].copy(),
            episode_return=results["episode_return"].copy(),
            achievements=results["achievements"].copy(),
        )

    def _read_extra(
        self, extra: dict[str, Any]
    ) -> tuple[list[int], int, bool, list[FinishedEpisodes]]:
        episodes = []
        for env, tick, length, episode_return, achievements in extra["pending"]:
            finished = FinishedEpisodes(
                np.array(env, np.int64),
                np.array(tick, np.int64),
                np.array(length, np.int64),
                np.array(episode_return, np.float64),
                np.array(achievements, np.int64),
            )
            count = len(finished.env)
            if (
                any(column.shape != (count,) for column in finished[:4])
                or finished.achievements.shape != (count, len(ACHIEVEMENTS))
                or not np.all((finished.env >= 0) & (finished.env < self.num_envs))
            ):
                raise ValueError("its finished episodes do not fit")
            episodes.append(finished)
        seeds = sub_seeds(extra["seeds"], self.num_envs)
        return seeds, int(extra["tick"]), bool(extra["begun"]), episodes

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise RuntimeError(f"the episodes have not begun: call reset() before {what}()")

    def _obs_array(self, out: np.ndarray | None) -> np.ndarray:
        shape = (self.num_envs, *self._batch.config.image_shape)
        if out is None:
            return self._spare.take(shape)
        return arrays.check_out(out, shape)

    def _final_infos(self, done: np.ndarray) -> dict[str, Any]:
        batch, results = self._batch, self._batch.results
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final_obs[i] = batch.final_obs[i].copy()
        info = _vector_info(
            done,
            results["inventory"],
            results["achievements"],
            1 - results["terminated"].astype(np.float64),
            batch.semantic,
            results["player_pos"],
            results["reward"],
        )
        return {
            "final_obs": final_obs,
            "_final_obs": done.copy(),
            "final_info": info,
            "_final_info": done.copy(),
        }

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
        return info if done is None else info | self._final_infos(done)


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
