"""Many door-key trees at once, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from .. import arrays
from ..base import Step, WorldVecEnv
from . import snapshot
from .engine import NUM_ACTIONS, Layout, Results, Worlds, draw_all, prepare, reset_all, step_all
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
        threads: None or 1: one thread does all the work, because a step is shorter than waking another would take.
        infos: "final" reports ``final_obs`` and ``final_info`` when an episode ended, "all" every
            environment's info at every step, "none" nothing.

    The other arguments are those of `DoorKeyTreeEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    kind = "minigrid"

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
        self._prepare(num_envs, seed, infos, None)
        n = self.num_envs
        if threads is not None and (isinstance(threads, bool) or threads != 1):
            raise ValueError(f"threads is {threads!r}, but the world minigrid runs in one thread; leave it out")
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
        self._set_seeds(self._seeds)
        self._offer((IMAGE, IMAGE, 3), NUM_ACTIONS, self.tree.achievement_names)

    def _reset(self, seeds: list[int] | None, out: np.ndarray | None) -> tuple[np.ndarray, dict[str, Any]]:
        obs = np.empty(self._obs_shape, np.uint8) if out is None else out
        if seeds is not None:
            self._set_seeds(seeds)
        reset_all(self._layout, self._worlds, _rows(obs))
        self._begun = True
        self._counter.restart()
        everyone = np.ones(self.num_envs, np.bool_)
        return obs, self._info(everyone, self._worlds.unlocked) if self._infos == "all" else {}

    def _step(self, actions: np.ndarray, out: np.ndarray | None) -> Step:
        obs = np.empty(self._obs_shape, np.uint8) if out is None else out
        results = self._results
        ended = step_all(self._layout, self._worlds, results, actions, _rows(obs), _rows(self._final_obs))
        self._counter.tick += 1
        infos: dict[str, Any] = {}
        if self._infos == "all":
            infos = self._info(np.ones(self.num_envs, np.bool_), self._worlds.unlocked)
        if ended:
            done = results.terminated | results.truncated
            which = np.flatnonzero(done)
            # The games count for themselves: the counter hears of an episode only when it has ended.
            unlocked = results.unlocked[which].astype(np.int64)
            self._counter.add_finished(which, results.length[which], unlocked.sum(1).astype(np.float64), unlocked)
            if self._infos != "none":
                infos |= self._final_infos(done, self._final_obs, self._info(done, results.unlocked))
        return obs, results.reward.copy(), results.terminated.copy(), results.truncated.copy(), infos

    def _observe(self, out: np.ndarray | None) -> np.ndarray:
        obs = np.empty(self._obs_shape, np.uint8) if out is None else out
        draw_all(self._layout, self._worlds, _rows(obs))
        return obs

    def _made_for(self) -> dict[str, Any]:
        return snapshot.made_for(self._layout, self.num_envs)

    def _save(self) -> tuple[dict[str, Any], bytes]:
        return {}, b"".join(array.tobytes() for array in self._worlds)

    def _read(self, header: dict[str, Any], body: bytes) -> Worlds:
        return snapshot.read(self._layout, self.num_envs, body, begun=bool(header["begun"]))

    def _put(self, games: Worlds) -> None:
        for old, new in zip(self._worlds, games, strict=True):
            old[:] = new

    def _set_seeds(self, seeds: list[int]) -> None:
        """Gives each environment the generator that Gymnasium makes of its seed."""
        low = 2**64 - 1
        for row, seed in zip(self._worlds.random, seeds, strict=True):
            state: Any = np.random.PCG64(np.random.SeedSequence(seed)).state
            value, increment = state["state"]["state"], state["state"]["inc"]
            words = (value >> 64, value & low, increment >> 64, increment & low)
            row[:] = np.array((*words, state["uinteger"], state["has_uint32"]), np.uint64)
        self._seeds = seeds

    def _info(self, rows: np.ndarray, unlocked: np.ndarray) -> dict[str, Any]:
        """Infos as Gymnasium's vector environments give them: arrays, and masks of who has one."""
        table = arrays.achievement_info(self.achievement_names, unlocked.astype(np.int64), rows)
        return {"achievements": table, "_achievements": rows.copy()}


def _rows(images: np.ndarray) -> np.ndarray:
    """Images as rows of bytes, without copying."""
    return images.reshape(len(images), IMAGE, 3 * IMAGE)
