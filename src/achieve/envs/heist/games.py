"""Many games of Procgen's Heist, each with a seed of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from itertools import pairwise
from typing import Any

import numpy as np

from .state import HeistState, Locks, read, read_locks, with_levels_of

NUM_ACTIONS = 15
IMAGE = (64, 64, 3)
_START_OVER = -1  # Procgen takes this action for "end the episode here"


def import_procgen() -> tuple[Any, Any]:
    """Import Procgen and the package through which it is called, or say how to install them."""
    # Importing gym, which Procgen does for its registry, prints that gym is no longer maintained.
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("procgen.env"), importlib.import_module("cffi")
        except ImportError as error:
            raise ImportError(
                f"the environment heist needs Procgen, which cannot be imported ({error}); "
                "`make heist` installs it, with Python 3.11 or 3.12 on Linux"
            ) from error


class Games:
    """``num`` games in Procgen environments, whose threads each play some of the games of each part.

    All threads of one Procgen environment wait for the same lock and wake the caller after every game. So each has an
    environment of its own.

    Procgen draws the seeds of all its games from one number, so a game would depend on how many there are. Here every
    game starts from the same saved state with a level generator of its own.
    """

    def __init__(
        self,
        num: int,
        threads: int,
        *,
        parts: int = 1,
        num_levels: int = 0,
        start_level: int = 0,
        frames: bool = False,
    ) -> None:
        module, cffi = import_procgen()
        self.num = num
        self._shown = np.zeros((num, *IMAGE), np.uint8)
        self.parts = tuple(slice(num * k // parts, num * (k + 1) // parts) for k in range(parts))
        """The games of each part; they can be stepped apart."""
        self._shards = [_split(part, threads) for part in self.parts]
        """The games of each environment, by part."""
        levels: dict[str, Any] = {"num_levels": num_levels, "start_level": start_level, "frames": frames}
        alone = 0 if threads == 1 else 1
        self._envs = [
            [make_procgen(shard.stop - shard.start, alone, **levels) for shard in shards] for shards in self._shards
        ]
        self._places = [
            (env, i) for envs, shards in zip(self._envs, self._shards, strict=True)
            for env, shard in zip(envs, shards, strict=True) for i in range(shard.stop - shard.start)
        ]  # fmt: skip
        self._buffer_size = module.MAX_STATE_SIZE
        self._ffi = cffi.FFI()
        self._buffer = self._ffi.new(f"char[{self._buffer_size}]")
        self.observe(self._shown)
        self._template = self.save(0)

    def seed(self, seeds: list[int]) -> None:
        """Give every game its levels; `start_over` begins the first."""
        for i, seed in enumerate(seeds):
            self.load(i, with_levels_of(self._template, seed))

    def start_over(self, out: np.ndarray | None = None) -> None:
        """Start every game's next level; ``out`` receives the observations."""
        self.step(np.full(self.num, _START_OVER), out)

    def step(
        self, actions: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all games. Returns observations, in ``out`` or until the next step, and what :meth:`end` does."""
        out = self._shown if out is None else out
        for k, part in enumerate(self.parts):
            self.begin(k, actions[part])
        rewards, first = zip(*(self.end(k, out) for k in range(len(self.parts))), strict=True)
        return out, np.concatenate(rewards), np.concatenate(first)

    def begin(self, part: int, actions: np.ndarray) -> None:
        """Step the games of a part: Procgen's threads do, if there are any, while the caller goes on."""
        start = self.parts[part].start
        for env, shard in zip(self._envs[part], self._shards[part], strict=True):
            env.act(actions[shard.start - start : shard.stop - start])

    def end(self, part: int, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the games of a part and write its observations into ``out``, which is for all games.

        Returns Procgen's rewards, and which games have begun a new level.
        """
        rewards, firsts = [], []
        for env, shard in zip(self._envs[part], self._shards[part], strict=True):
            reward, observations, first = env.observe()
            np.copyto(out[shard], observations["rgb"])
            rewards.append(reward)
            firsts.append(first)
        return np.concatenate(rewards), np.concatenate(firsts)

    def observe(self, out: np.ndarray) -> None:
        """Write the current observations into ``out``."""
        for k in range(len(self.parts)):
            self.end(k, out)

    def frames(self) -> list[np.ndarray]:
        """Return large images of the games, which must have been made with ``frames``."""
        return [info["rgb"].copy() for envs in self._envs for env in envs for info in env.get_info()]

    def save(self, i: int) -> bytes:
        env, at = self._places[i]
        size = env.call_c_func("get_state", at, self._buffer, self._buffer_size)
        return bytes(self._ffi.buffer(self._buffer, size))

    def load(self, i: int, state: bytes) -> None:
        env, at = self._places[i]
        env.call_c_func("set_state", at, state, len(state))

    def read(self, i: int) -> HeistState:
        return read(self.save(i))

    def locks(self, i: int) -> Locks:
        return read_locks(self.save(i))

    def close(self) -> None:
        for envs in self._envs:
            for env in envs:
                env.close()


def _split(games: slice, count: int) -> list[slice]:
    """Return the games in this many runs of nearly the same length, none of them empty."""
    size = games.stop - games.start
    bounds = [games.start + size * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]


def make_procgen(num: int, threads: int, *, num_levels: int = 0, start_level: int = 0, frames: bool = False) -> Any:
    """Return a Procgen environment with this many threads of its own; without any, games run in the caller's."""
    module, _ = import_procgen()
    try:
        env = module.ProcgenGym3Env(
            num=num,
            env_name="heist",
            distribution_mode="hard",
            rand_seed=0,
            num_levels=num_levels,
            start_level=start_level,
            num_threads=threads,
            render_mode="rgb_array" if frames else None,
        )
    except OSError as error:  # the wheel relies on the system for OpenGL and GLib
        why = str(error).partition(".  Additionally")[0]  # where else it was looked for
        raise ImportError(
            f"Procgen's library cannot be loaded ({why}); "
            "on Debian and Ubuntu, `apt-get install libgl1 libglib2.0-0` brings what it needs"
        ) from error
    # An option of gym3 that Procgen does not pass on: fresh arrays would take longer than copying out of these.
    env._reuse_arrays = True
    return env
