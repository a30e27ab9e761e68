"""Threads that step Procgen's games while the learner's thread does something else, and what is compiled for Heist.

Procgen's own threads are woken for every step, and Python asks each of them in turn: with sixteen, that took longer
than their games. Here a thread runs compiled code that looks for its next order in shared memory, calls Procgen and
copies what it finds, so that a step costs the learner's thread a few microseconds. A thread that has looked in vain for
some milliseconds sleeps in between.

All compiled code is in this one file, because Numba's cache only notices edits to the file that a function is in.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

IMAGE_BYTES = 64 * 64 * 3
PLACES, PIXELS = 3, 4
"""Locks of a game that can be watched, and pixels of each."""
HANDLE, GAMES, FIRST, ACTION, IMAGE, REWARD, BEGUN = range(7)
"""Columns of a table of shards: Procgen's handle, how many games, the first of them, where Procgen keeps theirs."""
STATE_BYTES = 2**16
"""Room for a state of Procgen, which has 23,000 bytes, most of them of its random generators."""
LOOKS = 5000
"""Looks for an order before a thread sleeps in between: about two milliseconds."""
NAP, NAPS, SLEEP = 100, 2000, 2000
"""Microseconds at first, how often, and microseconds from then on, where nothing may be ordered for a minute."""
PATIENCE = 200_000
"""Looks for the end of a step before Python may handle signals: about a tenth of a second."""
CACHE_LINE = 8
"""Numbers that processors share as one; each thread writes to a line of its own."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call and cache the machine code, if there is a folder for it."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # Numba found no folder that it may write to
        return numba.njit(nogil=True)(function)


def _c_call(typing_context: Any, address: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """Call the C function at an address with up to four whole numbers or addresses; more than it takes do no harm."""
    integer = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * 4)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return integer(*[integer] * 5), generate


def _memory_fence(typing_context: Any) -> Any:
    """Keep what is read and written before this apart from what comes after, for compilers and processors alike.

    On x86 it is no instruction: processors there keep that order, and only the compiler has to be told.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return numba.types.void(), generate


_call: Any = intrinsic(_c_call)
_fence: Any = intrinsic(_memory_fence)


class Functions(NamedTuple):
    """Addresses of C functions: Procgen's three, and the system's."""

    act: int
    observe: int
    save: int
    copy: int
    give_way: int
    sleep: int


class Tables(NamedTuple):
    """What threads and the learner's thread share, by game."""

    actions: np.ndarray
    rewards: np.ndarray
    begun: np.ndarray
    """Whether the last step began a new level."""
    pixels: np.ndarray
    """int64 [N, PLACES, PIXELS]: where to look in an image."""
    looks: np.ndarray
    """uint8 [N, PLACES, PIXELS, 3]: what was seen there."""
    watched: np.ndarray
    """bool [N, PLACES]: whether to look."""
    states: np.ndarray
    """uint8 [N, most bytes]: Procgen's state after the last step, if it began a level or changed what is watched."""
    sizes: np.ndarray
    """int64 [N]: bytes of it, 0 where it was not saved."""

    @classmethod
    def empty(cls, num: int, state_size: int) -> Tables:
        shape = (num, PLACES, PIXELS)
        return cls(
            np.zeros(num, np.int32), np.zeros(num, np.float32), np.zeros(num, np.bool_), np.zeros(shape, np.int64),
            np.zeros((*shape, 3), np.uint8), np.zeros(shape[:2], np.bool_), np.zeros((num, state_size), np.uint8),
            np.zeros(num, np.int64),
        )  # fmt: skip


@compiled
def _differs(image: Any, pixels: Any, looks: Any) -> bool:
    """Whether the pixels of a place of an image [H * W * 3] do not look as they did."""
    for k in range(len(pixels)):
        for channel in range(3):
            if image[3 * pixels[k] + channel] != looks[k, channel]:
                return True
    return False


@compiled
def find_changed(images: Any, pixels: Any, looks: Any, watched: Any) -> Any:
    """Return which of the watched places of images [N, H * W * 3] look different, bool [N, PLACES]."""
    changed = np.zeros(watched.shape, np.bool_)
    for i in range(len(images)):
        for place in range(watched.shape[1]):
            changed[i, place] = watched[i, place] and _differs(images[i], pixels[i, place], looks[i, place])
    return changed


@compiled
def play(shard: Any, images: Any, out: int, tables: Any, functions: Any) -> None:
    """Step the games of a shard, whose ``images`` Procgen draws, and copy them to all games' at the address ``out``.

    States are saved here because the learner's thread will want them, and one takes as long as three steps.
    """
    games, first = shard[GAMES], shard[FIRST]
    if games == 0:
        return
    _call(functions.copy, shard[ACTION], tables.actions[first:].ctypes.data, 4 * games, 0)
    _call(functions.act, shard[HANDLE], 0, 0, 0)
    _call(functions.observe, shard[HANDLE], 0, 0, 0)
    _call(functions.copy, out + IMAGE_BYTES * first, shard[IMAGE], IMAGE_BYTES * games, 0)
    _call(functions.copy, tables.rewards[first:].ctypes.data, shard[REWARD], 4 * games, 0)
    _call(functions.copy, tables.begun[first:].ctypes.data, shard[BEGUN], games, 0)
    for i in range(games):
        game = first + i
        wanted = tables.begun[game]
        for place in range(PLACES):
            if tables.watched[game, place] and not wanted:
                wanted = _differs(images[i], tables.pixels[game, place], tables.looks[game, place])
        tables.sizes[game] = 0
        if wanted:
            state = tables.states[game]
            tables.sizes[game] = _call(functions.save, shard[HANDLE], i, state.ctypes.data, len(state)) & 0x7FFFFFFF


@compiled
def work(shards: Any, images: Any, out: Any, tables: Any, orders: Any, done: Any, functions: Any) -> None:
    """Carry out a thread's orders until told to stop: ``orders`` has the steps begun of each part, then whether to.

    Every look at them follows a call of unknown code, so that they are read from memory each time.
    """
    parts = len(shards)
    made = np.zeros(parts, np.int64)
    part = looks = 0
    while orders[parts] == 0:
        if orders[part] > made[part]:
            _fence()
            play(shards[part], images[part], out[part], tables, functions)
            made[part] += 1
            _fence()
            done[part] = made[part]
            looks = 0
        elif looks < LOOKS:
            _call(functions.give_way, 0, 0, 0, 0)
        elif part == 0:
            _call(functions.sleep, NAP if looks < LOOKS + NAPS * parts else SLEEP, 0, 0, 0)
        looks += 1
        part = (part + 1) % parts


@compiled
def order(orders: Any, part: int) -> None:
    """Order a step of a part, once all that it needs is written."""
    _fence()
    orders[part] += 1


@compiled
def await_all(done: Any, part: int, steps: int, functions: Any) -> bool:
    """Return whether all threads have made so many steps of a part, after some time at the latest."""
    for thread in range(len(done)):
        looks = 0
        while done[thread, part] < steps:
            looks += 1
            if looks == PATIENCE:
                return False
            _call(functions.give_way, 0, 0, 0, 0)
    _fence()
    return True


class Stepper:
    """Steps the games of Procgen environments that have no threads of their own.

    Args:
        envs: by part and thread.
        num: games of all.
    """

    def __init__(self, envs: Sequence[Sequence[Any]], num: int) -> None:
        self._envs = envs  # whose memory is used here
        parts, threads = len(envs), max(map(len, envs))
        self.tables = Tables.empty(num, STATE_BYTES)
        self._kept: list[Any] = [None] * parts
        self._out = np.zeros(parts, np.int64)
        shards = np.zeros((threads, parts, BEGUN + 1), np.int64)
        images = [[np.zeros((0, IMAGE_BYTES), np.uint8)] * parts for _ in range(threads)]
        first = 0
        for part, row in enumerate(envs):
            for thread, env in enumerate(row):
                handle = int(env._ffi.cast("uintptr_t", env._c_env))
                own = (env._ac["action"], env._ob["rgb"], env._rew, env._first)
                shards[thread, part] = handle, env.num, first, *(table.ctypes.data for table in own)
                images[thread][part] = env._ob["rgb"].reshape(env.num, IMAGE_BYTES)
                first += env.num
        self._orders = np.zeros(parts + 1, np.int64)
        self._done = np.zeros((threads, -(-parts // CACHE_LINE) * CACHE_LINE), np.int64)
        self._functions = _functions(envs[0][0])
        self._own = [(shards[k], tuple(images[k])) for k in range(threads)]
        self._threads: list[threading.Thread] = []
        # Also where nobody closes the environment, and before the interpreter gives up its memory.
        self.close = weakref.finalize(self, _stop, self._orders, self._threads)
        if threads > 1:
            self._start()

    def _start(self) -> None:
        def arguments(k: int, orders: np.ndarray) -> tuple[Any, ...]:
            return *self._own[k], self._out, self.tables, orders, self._done[k], self._functions

        # Compiled once, before all threads would: with the order to stop.
        work(*arguments(0, np.append(self._orders[:-1], 1)))
        await_all(self._done, 0, self._orders[0], self._functions)
        for k in range(len(self._own)):
            name, given = f"heist-{k}", arguments(k, self._orders)
            thread = threading.Thread(target=work, args=given, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def begin(self, part: int, games: slice, actions: np.ndarray, out: np.ndarray) -> None:
        """Step the games of a part; ``out``, for all games, receives its observations until :meth:`end` returns."""
        self.wait(part)  # for a step that an interruption left to itself
        self.tables.actions[games] = actions
        self._kept[part] = out
        self._out[part] = out.ctypes.data
        order(self._orders, part)
        if not self._threads:
            shards, images = self._own[0]
            play(shards[part], images[part], self._out[part], self.tables, self._functions)

    def wait(self, part: int) -> None:
        """Return once the games of a part are not being stepped."""
        while self._threads and not await_all(self._done, part, self._orders[part], self._functions):
            if not all(thread.is_alive() for thread in self._threads):
                raise RuntimeError(
                    "the threads that step Heist's games are gone, as after a fork of the process; "
                    "make the environment in the process that steps it"
                )

    def end(self, part: int, games: slice) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the games of a part; return Procgen's rewards and which have begun a new level."""
        self.wait(part)
        self._kept[part] = None
        return self.tables.rewards[games].copy(), self.tables.begun[games].copy()


def _stop(orders: np.ndarray, threads: list[threading.Thread]) -> None:
    """End the threads, which has to be before Procgen's memory goes."""
    orders[-1] = 1
    for thread in threads:
        thread.join()


def _functions(env: Any) -> Functions:
    procgen, system = env._c_lib, ctypes.CDLL(None)

    def of_procgen(name: str) -> int:
        return int(env._ffi.cast("uintptr_t", env._ffi.addressof(procgen, name)))

    def of_system(name: str) -> int:
        address = ctypes.cast(getattr(system, name), ctypes.c_void_p).value
        assert address is not None
        return address

    return Functions(
        *map(of_procgen, ("libenv_act", "libenv_observe", "get_state")),
        *map(of_system, ("memcpy", "sched_yield", "usleep")),
    )  # fmt: skip
