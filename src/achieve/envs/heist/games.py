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
from .stepping import Stepper

NUM_ACTIONS = 15
IMAGE = (64, 64, 3)
GRAIN = 16
"""Of many games, parts have a multiple of this many: GPU kernels compiled for all are then those of a part, too, and
threads, often 8 or 16, have equally many each."""
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
    """``num`` games in Procgen environments: each thread plays one of each part, and with one thread the caller does.

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
        self.parts = divide(num, parts)
        """The games of each part; they can be stepped apart."""
        self._shards = [_split(part, threads) for part in self.parts]
        """The games of each environment, by part."""
        levels: dict[str, Any] = {"num_levels": num_levels, "start_level": start_level, "frames": frames}
        self._envs = [
            [make_procgen(shard.stop - shard.start, **levels) for shard in shards] for shards in self._shards
        ]
        self._places = [
            (part, env, i) for part, (envs, shards) in enumerate(zip(self._envs, self._shards, strict=True))
            for env, shard in zip(envs, shards, strict=True) for i in range(shard.stop - shard.start)
        ]  # fmt: skip
        self._buffer_size = module.MAX_STATE_SIZE
        self._ffi = cffi.FFI()
        self._buffer = self._ffi.new(f"char[{self._buffer_size}]")
        self._stepper = Stepper(self._envs, num)
        self.tables = self._stepper.tables
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
            self.begin(k, actions[part], out)
        rewards, first = zip(*(self.end(k) for k in range(len(self.parts))), strict=True)
        return out, np.concatenate(rewards), np.concatenate(first)

    def begin(self, part: int, actions: np.ndarray, out: np.ndarray) -> None:
        """Step the games of a part: threads do, if there are any, while the caller goes on.

        They write its observations into ``out``, a contiguous array for all games, until :meth:`end` returns.
        """
        self._stepper.begin(part, self.parts[part], actions, out)

    def end(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the games of a part. Returns Procgen's rewards, and which games have begun a new level."""
        return self._stepper.end(part, self.parts[part])

    def observe(self, out: np.ndarray) -> None:
        """Write the current observations into ``out``."""
        for part, (envs, shards) in enumerate(zip(self._envs, self._shards, strict=True)):
            self._stepper.wait(part)
            for env, shard in zip(envs, shards, strict=True):
                _, observations, _ = env.observe()
                np.copyto(out[shard], observations["rgb"])

    def frames(self) -> list[np.ndarray]:
        """Return large images of the games, which must have been made with ``frames``."""
        for part in range(len(self.parts)):
            self._stepper.wait(part)
        return [info["rgb"].copy() for envs in self._envs for env in envs for info in env.get_info()]

    def _place(self, i: int) -> tuple[Any, int]:
        """Return the environment of game i, once no thread steps it, and its number there.

        One still does after an interruption of the caller, who did not wait for the end of a step.
        """
        part, env, at = self._places[i]
        self._stepper.wait(part)
        return env, at

    def save(self, i: int) -> bytes:
        env, at = self._place(i)
        size = env.call_c_func("get_state", at, self._buffer, self._buffer_size)
        return bytes(self._ffi.buffer(self._buffer, size))

    def load(self, i: int, state: bytes) -> None:
        env, at = self._place(i)
        self.tables.sizes[i] = 0
        env.call_c_func("set_state", at, state, len(state))

    def read(self, i: int) -> HeistState:
        return read(self.save(i))

    def locks(self, i: int) -> Locks:
        """Return the locks of game i, from its state as the last step saved it, if it did."""
        size = self.tables.sizes[i]
        return read_locks(self.tables.states[i, :size].tobytes() if size else self.save(i))

    def close(self) -> None:
        self._stepper.close()
        for envs in self._envs:
            for env in envs:
                env.close()


def divide(num: int, parts: int) -> tuple[slice, ...]:
    """Return the games of each part: nearly as many in each as in another."""
    grain = GRAIN if num >= 2 * GRAIN * parts else 1
    bounds = [round(num * k / parts / grain) * grain for k in range(parts)]
    return tuple(slice(a, b) for a, b in pairwise([*bounds, num]))


def _split(games: slice, count: int) -> list[slice]:
    """Return the games in this many runs of nearly the same length, none of them empty."""
    size = games.stop - games.start
    bounds = [games.start + size * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]


def make_procgen(
    num: int, threads: int = 0, *, num_levels: int = 0, start_level: int = 0, frames: bool = False
) -> Any:
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
