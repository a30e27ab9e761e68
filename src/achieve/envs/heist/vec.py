"""Procgen Heist as a vector environment, with the paper's reward."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import arrays
from ..base import AchievementVecEnv, Outcome
from .games import NUM_ACTIONS, Games, divide
from .locks import SIZE, LockWatch
from .state import COLOURS, MAX_SIZE, read

ACHIEVEMENTS = (*(f"{colour}_lock" for colour in COLOURS), "gem")
LOCK_REWARD = 2.0
GEM_REWARD = 10.0  # Procgen's own
LEVELS = 2**31 - 1
LARGE = 128
"""Games from which on there are several parts."""
PARTS = 3
"""One whose games run, one that a device acts for, and one that the learner is busy with."""
GAMES_A_THREAD = 8


class HeistVecEnv(AchievementVecEnv):
    """``num_envs`` games in hard mode: 2 for each lock opened, 10 for the gem.

    Game i depends only on its own seed. An episode ends at the gem (terminated) or after 1,000 steps (truncated).
    Procgen resets within the step that ends an episode and does not show its last frame: a lock opened in that very
    step goes unnoticed, and ``final_obs`` is the observation before it.

    Args:
        num_levels: play this many levels only, drawn at random anew for each episode; 0 for all 2^31.
        start_level: the first of them.
        render_mode: "rgb_array" makes `render` return Procgen's large frames; they are then drawn at every step.

    The other arguments are those of `make_vec`.
    """

    metadata: dict[str, Any] = AchievementVecEnv.metadata | {"render_modes": ["rgb_array"], "render_fps": 15}
    kind = "heist"

    def __init__(
        self,
        num_envs: int = 8,
        seed: int | Sequence[int] | None = 0,
        threads: int | None = None,
        *,
        num_levels: int = 0,
        start_level: int = 0,
        infos: str = "final",
        render_mode: str | None = None,
    ) -> None:
        self._check_arguments(num_envs, seed, infos, render_mode)
        self._levels = _check_levels(num_levels, start_level)
        self.threads = arrays.choose_threads(threads, self.num_envs, GAMES_A_THREAD)
        # A learner that wants no infos may step many games in parts, and act for one while another steps.
        parts = len(self.parts_of(self.num_envs, threads)) if infos == "none" and render_mode is None else 1
        self._games = Games(self.num_envs, self.threads, parts=parts, frames=render_mode is not None, **self._levels)
        self._under_way: list[tuple[int, np.ndarray]] = []
        self._seed()
        self._watch = LockWatch(self._games.locks, self._games.tables)
        self._shown: np.ndarray | None = None
        self._set_spaces((SIZE, SIZE, 3), NUM_ACTIONS, ACHIEVEMENTS)

    def close_extras(self, **kwargs: Any) -> None:
        with self._lock:
            self._games.close()

    def _seed(self) -> None:
        self._games.seed(self._seeds)

    @staticmethod
    def parts_of(num_envs: int, threads: int | None) -> tuple[slice, ...]:
        """Return the parts in which a learner steps so many environments."""
        several = num_envs >= LARGE and arrays.choose_threads(threads, num_envs, GAMES_A_THREAD) > 1
        return divide(num_envs, PARTS if several else 1)

    @property
    def parts(self) -> tuple[slice, ...]:
        """The environments in parts, for `begin_step` and `end_step`; just one unless there are many."""
        return self._games.parts

    def begin_step(self, part: int, actions: Any, out: np.ndarray) -> None:
        """Let a part of the environments step, by its number; the games go on while the caller does something else.

        They write observations to the part's place in ``out``, which is for all, until :meth:`end_step` returns.
        """
        here = self.parts[part]
        chosen = arrays.check_actions(actions, here.stop - here.start, self._num_actions)
        arrays.check_out(out, self._obs_shape, self._obs_dtype, needed=True)
        with self._lock:
            self._require_open()
            self._require_begun("step")
            if any(part == one for one, _ in self._under_way):
                raise RuntimeError(f"part {part} is stepping: call end_step() before the next begin_step()")
            self._games.begin(part, chosen, out)
            self._under_way.append((part, out))

    def end_step(self, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the part that began first. Returns its rewards, terminations and truncations."""
        with self._lock:
            if [one for one, _ in self._under_way[:1]] != [part]:
                raise RuntimeError(f"part {part} is not the next to end its step: parts end in the order they began")
            _, out = self._under_way.pop(0)
            return self._end(part, out, {})

    def _abandon_steps(self) -> None:
        """Wait for parts whose steps nobody will end, such as after an interruption."""
        for part, _ in self._under_way:
            self._games.end(part)
        self._under_way.clear()

    def _require_ended(self, what: str) -> None:
        if self._under_way:
            raise RuntimeError(f"a part of the environments is stepping: call end_step() before {what}()")

    def _reset(self, obs: np.ndarray) -> dict[str, Any]:
        self._abandon_steps()
        self._games.start_over(obs)
        self._watch_all(obs)
        return self._info(np.ones(self.num_envs, np.bool_)) if self._infos == "all" else {}

    def _step(self, actions: np.ndarray, obs: np.ndarray) -> Outcome:
        self._require_ended("step")
        for k, part in enumerate(self.parts):
            self._games.begin(k, actions[part], obs)
        infos: dict[str, Any] = {}
        outcomes = [self._end(k, obs, infos) for k in range(len(self.parts))]
        if self._infos == "all":
            infos = self._info(np.ones(self.num_envs, np.bool_)) | infos
        if self._shown is not None:
            np.copyto(self._shown, obs)
        rewards, terminated, truncated = (np.concatenate(column) for column in zip(*outcomes, strict=True))
        return rewards, terminated, truncated, infos

    def _end(self, k: int, obs: np.ndarray, infos: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Wait for a part's games and count what happened there."""
        part, counter = self.parts[k], self._counter
        native, done = self._games.end(k)
        shown, gem = obs[part], native > 0
        opened = self._watch.opened(shown, done, part.start)
        rewards = LOCK_REWARD * opened.sum(1) + GEM_REWARD * gem
        counter.add(rewards, part.start)
        counter.achievements[part, :-1] += opened
        counter.achievements[part, -1] += gem
        ended = np.flatnonzero(done)
        if len(ended):
            if self._infos != "none":  # there is just one part then
                infos.update(self._final_infos(done, self._shown, self._info(done)))
            counter.finish(part.start + ended)
            for i in ended:
                self._watch.begin(part.start + int(i), shown[i])
        return rewards, gem, done & ~gem

    def _observe(self, obs: np.ndarray) -> None:
        self._games.observe(obs)

    def _render(self, size: Any) -> tuple[np.ndarray, ...]:
        return tuple(self._games.frames())

    def _made_for(self) -> dict[str, Any]:
        return {"num_envs": self.num_envs, **self._levels}

    def _save(self) -> tuple[dict[str, Any], bytes]:
        self._require_ended("save_state")
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

    def _restore(self, games: tuple[np.ndarray, list[bytes]]) -> None:
        placed, states = games
        self._abandon_steps()
        for i, state in enumerate(states):
            self._games.load(i, state)
        if self._begun:
            obs = self._new_obs()
            self._observe(obs)
            self._watch_all(obs)
            self._watch.placed[:] = placed

    def _watch_all(self, obs: np.ndarray) -> None:
        for i in range(self.num_envs):
            self._watch.begin(i, obs[i])
        self._shown = None if self._infos == "none" else obs.copy()

    def _info(self, rows: np.ndarray) -> dict[str, Any]:
        achievements = dict(zip(ACHIEVEMENTS, self._counter.achievements.T, strict=True))
        watch = self._watch
        values = {"achievements": achievements, "locks": watch.placed, "level_seed": watch.level_seed}
        return arrays.vector_info(rows, values)


def _check_levels(num_levels: int, start_level: int) -> dict[str, int]:
    """Return the range of levels for Procgen, which ends the process on one it cannot play."""
    for name, value in (("num_levels", num_levels), ("start_level", start_level)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LEVELS:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from 0 to {LEVELS - 1:,}")
    if start_level and not num_levels:
        raise ValueError(f"start_level is {start_level} with all levels in play; give num_levels too")
    if start_level + num_levels > LEVELS:
        raise ValueError(f"start_level + num_levels is {start_level + num_levels:,}; there are {LEVELS:,} levels")
    return {"num_levels": num_levels, "start_level": start_level}
