"""Many door-key trees at once, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import arrays
from ..base import AchievementVecEnv, Outcome
from . import snapshot
from .engine import NUM_ACTIONS, Layout, Results, Worlds, draw_all, prepare, reset_all, step_all
from .env import IMAGE, check_layout
from .tiles import tile_table
from .tree import Tree


class DoorKeyTreeVecEnv(AchievementVecEnv):
    """``num_envs`` environments; number i plays the episodes of ``pixel_env()`` reset once with ``seed=seeds[i]``.

    It runs in one thread, because a step is shorter than waking another would take: ``threads`` must be None or 1.
    ``num_envs``, ``seed`` and ``infos`` are as in `make_vec`, the other arguments as in `DoorKeyTreeEnv`.
    """

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
        self._check_arguments(num_envs, seed, infos)
        n = self.num_envs
        if threads is not None and (isinstance(threads, bool) or threads != 1):
            raise ValueError(f"threads is {threads!r}, but the environment minigrid runs in one thread; leave it out")
        self.tree = Tree.make(depth, branching, tree)
        room_size, num_rows, max_steps = check_layout(self.tree, room_size, num_rows, max_steps)
        parents = np.array([-1 if parent is None else parent for parent in self.tree.parents], np.int64)
        keep = arrays.check_flag("keep_keys", keep_keys)
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
        self._seed()
        self._set_spaces((IMAGE, IMAGE, 3), NUM_ACTIONS, self.tree.achievement_names)

    def _seed(self) -> None:
        """Give each environment the generator that Gymnasium makes from its seed."""
        low = 2**64 - 1
        for row, seed in zip(self._worlds.random, self._seeds, strict=True):
            state: Any = np.random.PCG64(np.random.SeedSequence(seed)).state
            value, increment = state["state"]["state"], state["state"]["inc"]
            words = (value >> 64, value & low, increment >> 64, increment & low)
            row[:] = np.array((*words, state["uinteger"], state["has_uint32"]), np.uint64)

    def _reset(self, obs: np.ndarray) -> dict[str, Any]:
        reset_all(self._layout, self._worlds, _rows(obs))
        everyone = np.ones(self.num_envs, np.bool_)
        return self._info(everyone, self._worlds.unlocked) if self._infos == "all" else {}

    def _step(self, actions: np.ndarray, obs: np.ndarray) -> Outcome:
        results = self._results
        ended = step_all(self._layout, self._worlds, results, actions, _rows(obs), _rows(self._final_obs))
        self._counter.tick += 1
        infos: dict[str, Any] = {}
        if self._infos == "all":
            infos = self._info(np.ones(self.num_envs, np.bool_), self._worlds.unlocked)
        if ended:
            done = results.terminated | results.truncated
            which = np.flatnonzero(done)
            # The games do their own counting; the counter only hears of episodes that have ended.
            unlocked = results.unlocked[which].astype(np.int64)
            self._counter.add_finished(which, results.length[which], unlocked.sum(1).astype(np.float64), unlocked)
            if self._infos != "none":
                infos |= self._final_infos(done, self._final_obs, self._info(done, results.unlocked))
        return results.reward.copy(), results.terminated.copy(), results.truncated.copy(), infos

    def _observe(self, obs: np.ndarray) -> None:
        draw_all(self._layout, self._worlds, _rows(obs))

    def _made_for(self) -> dict[str, Any]:
        return snapshot.made_for(self._layout, self.num_envs)

    def _save(self) -> tuple[dict[str, Any], bytes]:
        return {}, b"".join(array.tobytes() for array in self._worlds)

    def _read(self, header: dict[str, Any], body: bytes) -> Worlds:
        return snapshot.read(self._layout, self.num_envs, body, begun=bool(header["begun"]))

    def _restore(self, games: Worlds) -> None:
        for old, new in zip(self._worlds, games, strict=True):
            old[:] = new

    def _info(self, rows: np.ndarray, unlocked: np.ndarray) -> dict[str, Any]:
        achievements = dict(zip(self.achievement_names, unlocked.T.astype(np.int64), strict=True))
        return arrays.vector_info(rows, {"achievements": achievements})


def _rows(images: np.ndarray) -> np.ndarray:
    """Return images as rows of bytes, without copying."""
    return images.reshape(len(images), IMAGE, 3 * IMAGE)
