"""Many games of Procgen's Heist, each with a seed of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from typing import Any

import numpy as np

from .state import HeistState, Locks, read, read_locks, with_levels_of

NUM_ACTIONS = 15
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
    """``num`` games in Procgen environments: one for each of ``parts``, with ``threads`` threads of its own.

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
        self.parts = tuple(slice(num * k // parts, num * (k + 1) // parts) for k in range(parts))
        """The games of each part; they can be stepped apart."""
        levels = {"num_levels": num_levels, "start_level": start_level}
        self._envs = [_make(module, part.stop - part.start, threads, levels, frames=frames) for part in self.parts]
        self._buffer_size = module.MAX_STATE_SIZE
        self._ffi = cffi.FFI()
        self._buffer = self._ffi.new(f"char[{self._buffer_size}]")
        for env in self._envs:
            env.observe()
        self._template = self.save(0)

    def seed(self, seeds: list[int]) -> None:
        """Give every game its levels; `start_over` begins the first."""
        for i, seed in enumerate(seeds):
            self.load(i, with_levels_of(self._template, seed))

    def start_over(self) -> list[np.ndarray]:
        """Start every game's next level; return the observations of each part."""
        for k, part in enumerate(self.parts):
            self.begin(k, np.full(part.stop - part.start, _START_OVER))
        return self.observe()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all games, if they are in one part, and return what :meth:`end` does."""
        self.begin(0, actions)
        return self.end(0)

    def begin(self, part: int, actions: np.ndarray) -> None:
        """Step the games of a part: Procgen's threads do, if there are any, while the caller goes on."""
        self._envs[part].act(actions)

    def end(self, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the games of a part. Returns observations, Procgen's rewards, and which games have begun a new
        level, until the next step changes these arrays.
        """
        rewards, observations, first = self._envs[part].observe()
        return observations["rgb"], rewards, first

    def observe(self) -> list[np.ndarray]:
        """Return the observations of each part."""
        return [env.observe()[1]["rgb"] for env in self._envs]

    def frames(self) -> list[np.ndarray]:
        """Return large images of the games, which must have been made with ``frames``."""
        return [info["rgb"].copy() for env in self._envs for info in env.get_info()]

    def save(self, i: int) -> bytes:
        env, at = self._find(i)
        size = env.call_c_func("get_state", at, self._buffer, self._buffer_size)
        return bytes(self._ffi.buffer(self._buffer, size))

    def load(self, i: int, state: bytes) -> None:
        env, at = self._find(i)
        env.call_c_func("set_state", at, state, len(state))

    def _find(self, i: int) -> tuple[Any, int]:
        """Return game i's environment, and its place there."""
        k = next(k for k, part in enumerate(self.parts) if i < part.stop)
        return self._envs[k], i - self.parts[k].start

    def read(self, i: int) -> HeistState:
        return read(self.save(i))

    def locks(self, i: int) -> Locks:
        return read_locks(self.save(i))

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _make(module: Any, num: int, threads: int, levels: dict[str, int], *, frames: bool) -> Any:
    """Return a Procgen environment."""
    try:
        env = module.ProcgenGym3Env(
            num=num,
            env_name="heist",
            distribution_mode="hard",
            rand_seed=0,
            **levels,
            num_threads=0 if threads == 1 else threads,  # none of its own: they run in the caller's
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
