"""Many door-key trees at once, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import FinishedEpisodes, WorldVecEnv
from . import snapshot
from .engine import NUM_ACTIONS, Layout, Results, draw_all, prepare, reset_all, step_all
from .env import IMAGE, check_keep_keys, check_layout
from .tiles import tile_table
from .tree import Tree


class DoorKeyTreeVecEnv(WorldVecEnv):
    """``num_envs`` environments; number i plays the episodes of ``pixel_env()`` reset once with ``seed=seeds[i]``.

    An environment whose episode ends is reset in the same step: the observation returned is the
    next episode's first. Finished episodes are counted in arrays, see `pop_episodes`.

    Args:
        seed: one number, from which each environment's seed is drawn; a sequence with a seed for
            each; or None for fresh ones.
        threads: accepted for the sake of the other worlds; one thread does all the work, because a step is
            shorter than waking another would take.
        infos: "final" reports ``final_obs`` and ``final_info`` when an episode ended, "all" every
            environment's info at every step, "none" nothing.

    The other arguments are those of `DoorKeyTreeEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        infos: str = "final",
        depth: int = 5,
        branching: int = 1,
        tree: Sequence[int | None] | None = None,
        room_size: int = 5,
        num_rows: int | None = None,
        max_steps: int | None = None,
        keep_keys: bool = True,
    ) -> None:
        self.num_envs = n = arrays.check_num_envs(num_envs)
        self._infos = arrays.check_infos(infos)
        arrays.choose_workers(threads, n)  # for its check alone
        self.tree = Tree.make(depth, branching, tree)
        room_size, num_rows, max_steps = check_layout(self.tree, room_size, num_rows, max_steps)
        parents = np.array([-1 if parent is None else parent for parent in self.tree.parents], np.int64)
        keep = check_keep_keys(keep_keys)
        self._layout = Layout(parents, room_size, num_rows, max_steps, keep, tile_table(self.tree))
        self._worlds = snapshot.allocate(self._layout, n)
        self._results = Results(
            reward=np.zeros(n),
            terminated=np.zeros(n, np.bool_),
            truncated=np.zeros(n, np.bool_),
            length=np.zeros(n, np.int64),
            unlocked=np.zeros_like(self._worlds.unlocked),
        )
        prepare(self._layout, self._worlds, self._results)
        self._final_obs = np.zeros((n if infos != "none" else 0, IMAGE, IMAGE, 3), np.uint8)
        self._set_seeds(arrays.sub_seeds(seed, n))
        self._begun = False
        # The games count for themselves: this hears of an episode only when it has ended.
        self._counter = arrays.EpisodeCounter(n, len(self.achievement_names))
        self.render_mode = None
        self._offer((IMAGE, IMAGE, 3), NUM_ACTIONS)

    @property
    def achievement_names(self) -> tuple[str, ...]:
        return self.tree.achievement_names

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts every environment's next level; with ``seed``, their first."""
        obs = self._obs_array(out)
        if seed is not None:
            self._set_seeds(arrays.sub_seeds(seed, self.num_envs))
        reset_all(self._layout, self._worlds, _rows(obs))
        self._begun = True
        self._counter.restart()
        everyone = np.ones(self.num_envs, np.bool_)
        return obs, self._info(everyone, self._worlds.unlocked) if self._infos == "all" else {}

    def step(
        self, actions: Any, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step everywhere. ``out`` receives the observations, which are otherwise a copy."""
        chosen = arrays.check_actions(actions, self.num_envs, NUM_ACTIONS)
        obs = self._obs_array(out)
        self._require_begun("step")
        results = self._results
        ended = step_all(self._layout, self._worlds, results, chosen, _rows(obs), _rows(self._final_obs))
        self._counter.tick += 1
        infos: dict[str, Any] = {}
        if self._infos == "all":
            infos = self._info(np.ones(self.num_envs, np.bool_), self._worlds.unlocked)
        if ended:
            done = results.terminated | results.truncated
            self._count(np.flatnonzero(done))
            if self._infos != "none":
                infos |= self._final_infos(done)
        return obs, results.reward.copy(), results.terminated.copy(), results.truncated.copy(), infos

    def pop_episodes(self) -> FinishedEpisodes:
        """The episodes that ended since the last call (or reset), in order of completion."""
        return self._counter.pop()

    def observe(self, out: np.ndarray | None = None) -> np.ndarray:
        """The current observations once more, for instance after `load_state`."""
        obs = self._obs_array(out)
        self._require_begun("observe")
        draw_all(self._layout, self._worlds, _rows(obs))
        return obs

    def save_state(self) -> bytes:
        """Everything needed to continue exactly here, in this or another process."""
        extra = {"seeds": self._seeds, "begun": self._begun, "episodes": self._counter.as_dict()}
        return snapshot.save(self._layout, self._worlds, extra)

    def load_state(self, data: bytes) -> None:
        """Continues where `save_state` was called, on an environment of the same configuration."""
        worlds, header = snapshot.load(self._layout, self.num_envs, data)
        try:
            counter = self._counter.from_dict(header["episodes"])
            seeds = arrays.sub_seeds(list(header["seeds"]), self.num_envs)
            begun = bool(header["begun"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the saved state's header cannot be read: {error}") from None
        for old, new in zip(self._worlds, worlds, strict=True):
            old[:] = new
        self._seeds, self._begun, self._counter = seeds, begun, counter

    def _set_seeds(self, seeds: list[int]) -> None:
        """Gives each environment the generator that Gymnasium makes of its seed."""
        low = 2**64 - 1
        for row, seed in zip(self._worlds.random, seeds, strict=True):
            state: Any = np.random.PCG64(np.random.SeedSequence(seed)).state
            value, increment = state["state"]["state"], state["state"]["inc"]
            words = (value >> 64, value & low, increment >> 64, increment & low)
            row[:] = np.array((*words, state["uinteger"], state["has_uint32"]), np.uint64)
        self._seeds = seeds

    def _count(self, which: np.ndarray) -> None:
        counter, unlocked = self._counter, self._results.unlocked[which]
        counter.length[which] = self._results.length[which]
        counter.achievements[which] = unlocked
        counter.episode_return[which] = unlocked.sum(1)
        counter.finish(which)

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise RuntimeError(f"the episodes have not begun: call reset() before {what}()")

    def _obs_array(self, out: np.ndarray | None) -> np.ndarray:
        shape = (self.num_envs, IMAGE, IMAGE, 3)
        return np.empty(shape, np.uint8) if out is None else arrays.check_out(out, shape)

    def _info(self, rows: np.ndarray, unlocked: np.ndarray) -> dict[str, Any]:
        """Infos as Gymnasium's vector environments give them: arrays, and masks of who has one."""
        table = arrays.achievement_info(self.achievement_names, unlocked.astype(np.int64), rows)
        return {"achievements": table, "_achievements": rows.copy()}

    def _final_infos(self, done: np.ndarray) -> dict[str, Any]:
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final_obs[i] = self._final_obs[i].copy()
        return {
            "final_obs": final_obs,
            "_final_obs": done.copy(),
            "final_info": self._info(done, self._results.unlocked),
            "_final_info": done.copy(),
        }


def _rows(images: np.ndarray) -> np.ndarray:
    """Images as rows of bytes, without copying."""
    return images.reshape(len(images), IMAGE, 3 * IMAGE)
