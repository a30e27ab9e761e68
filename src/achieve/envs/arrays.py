"""Building blocks of vector environments: argument checks, episode counts, infos and saved states."""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
import reprlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_COUNT = 2**62
"""No saved counter is larger, so that it cannot overflow later."""
FEW = 32
"""So many numbers are checked faster in Python than by NumPy."""


def is_unlock(rewards: Any, threshold: float) -> Any:
    """Return whether rewards are above the unlock threshold, both as float32: learners have no others.

    So Crafter's 0.1 is not above 0.1, whatever type it comes as.
    """
    return np.asarray(rewards, np.float32) > np.float32(threshold)


class StateError(ValueError):
    """A saved state that cannot be loaded here; the message says why."""


class FinishedEpisodes(NamedTuple):
    """Episodes that have ended, in order of completion (vector step, then environment).

    After ``tick`` vector steps, ``tick * num_envs`` environment steps have been taken.
    """

    env: np.ndarray  # int64[k]: which sub-environment
    tick: np.ndarray  # int64[k]: vector steps taken when it ended
    length: np.ndarray  # int64[k]
    episode_return: np.ndarray  # float64[k]
    achievements: np.ndarray  # int64[k, achievements]: how often each was done


def short(value: Any) -> str:
    """Return a value as errors show it: on one line, abbreviated."""
    return " ".join(reprlib.repr(value).split())


def sub_seeds(seed: Any, num_envs: int, *, negative: bool = False) -> list[int]:
    """Return a seed for each environment: as given (negative ones only if ``negative``), or spread from one number."""
    several = (isinstance(seed, np.ndarray) and seed.ndim > 0) or isinstance(seed, Sequence)
    if not several or isinstance(seed, str | bytes):
        entropy = None if seed is None else check_seed(seed)
        words = np.random.SeedSequence(entropy).generate_state(num_envs, np.uint64)
        return [int(word >> np.uint64(1)) for word in words]
    if len(seed) != num_envs:
        raise ValueError(f"{num_envs} environments need {num_envs} seeds, got {len(seed)}")
    return [check_seed(one, negative=negative) for one in seed]


def check_seed(seed: Any, *, negative: bool = False) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"a seed must be a whole number, got {short(seed)}") from None
    if number < 0 and not negative:
        raise ValueError(f"a seed must not be negative, got {short(number)}")
    if number.bit_length() > 1024:
        raise ValueError("a seed must have at most 1024 bits")
    return number


def check_whole(name: str, value: Any, least: int, most: int | None = None, but: str = "") -> int:
    """Return an integer argument; a ValueError, which mentions the alternative ``but``, if it is out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {bounds}{but}, got {short(value)}")
    return number


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be true or false, got {short(value)}")
    return bool(value)


def choose_threads(threads: int | None, num_envs: int, envs_each: int = 1, most: int | None = None) -> int:
    """Return how many threads or workers to use; by default one per ``envs_each`` environments, up to the cores."""
    most = num_envs if most is None else min(num_envs, most)
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(cores, num_envs // envs_each, most))
    return min(check_whole("threads", threads, 1, but=" or None"), most)


def check_actions(actions: Any, num_envs: int, num_actions: int) -> np.ndarray:
    """Return a copy of the actions as int64[num_envs], each from 0 to ``num_actions`` - 1."""
    array = np.asarray(actions)
    if array.dtype == np.int64 and array.shape == (num_envs,) and num_envs <= FEW:
        copy = array.copy()
        values = copy.tolist()
        if min(values) >= 0 and max(values) < num_actions:
            return copy
    if array.shape != (num_envs,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"actions must be {num_envs} whole numbers, shape ({num_envs},), "
            f"got {array.dtype} of shape {array.shape}: {short(actions)}"
        )
    wrong = (array < 0) | (array >= num_actions)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(f"an action is a whole number from 0 to {num_actions - 1}, got {array[i]} for environment {i}")
    return array.astype(np.int64)


def check_out(out: Any, shape: tuple[int, ...], dtype: Any, *, needed: bool = False) -> None:
    """Refuse an ``out`` into which observations of that shape cannot be written; None is fine unless one is needed."""
    if (needed or out is not None) and (
        type(out) not in (np.ndarray, np.memmap)  # what is written past a masked array's mask would not be seen
        or out.dtype != dtype
        or out.shape != shape
        or not out.flags.c_contiguous
        or not out.flags.writeable
    ):
        given = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out must be a writeable C-contiguous {dtype} array of shape {shape}, got {given}")


class EpisodeCounter:
    """Lengths, returns and achievements of the episodes in progress, and of those that ended since the last `pop`."""

    def __init__(self, num_envs: int, num_achievements: int) -> None:
        self.length = np.zeros(num_envs, np.int64)
        self.episode_return = np.zeros(num_envs)
        self.achievements = np.zeros((num_envs, num_achievements), np.int64)
        self.tick = 0
        self._ended: list[FinishedEpisodes] = []

    def abandon(self) -> None:
        """Forget the episodes in progress."""
        self._clear(np.arange(len(self.length)))

    def restart(self) -> None:
        """Forget everything, as after a reset."""
        self.abandon()
        self.tick = 0
        self._ended.clear()

    def add(self, rewards: np.ndarray, first: int = 0) -> None:
        """Count one step of every environment; its achievements are written into ``achievements`` directly.

        Rewards of a part are those of environments from ``first`` on; the parts of a step come in order.
        """
        part = slice(first, first + len(rewards))
        self.tick += first == 0
        self.length[part] += 1
        self.episode_return[part] += rewards

    def finish(self, which: np.ndarray) -> None:
        """Move the episodes of these environments to the finished ones."""
        if len(which):
            self.add_finished(which, self.length[which], self.episode_return[which], self.achievements[which])
            self._clear(which)

    def add_finished(
        self, which: np.ndarray, length: np.ndarray, episode_return: np.ndarray, achievements: np.ndarray
    ) -> None:
        """Add episodes that the games have counted themselves; the arrays are kept."""
        tick = np.full(len(which), self.tick, np.int64)
        self._ended.append(FinishedEpisodes(which.astype(np.int64), tick, length, episode_return, achievements))

    @property
    def has_finished(self) -> bool:
        return bool(self._ended)

    def pop(self) -> FinishedEpisodes:
        ended, self._ended = self._joined(), []
        return ended

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "tick": self.tick,
            "length": self.length.tolist(),
            "return": self.episode_return.tolist(),
            "achievements": self.achievements.tolist(),
            "ended": [column.tolist() for column in self._joined()],
        }

    def from_dict(self, saved: dict[str, Any]) -> EpisodeCounter:
        """Return a counter of this one's shape with what `as_dict` gave; a ValueError if it does not fit."""
        num_envs, num_achievements = self.achievements.shape
        new = EpisodeCounter(num_envs, num_achievements)
        new.tick = operator.index(saved["tick"])
        if not 0 <= new.tick < MAX_COUNT:
            raise ValueError("its number of steps is impossible")
        new.length[:] = _column(saved["length"], np.int64, (num_envs,))
        new.episode_return[:] = _column(saved["return"], np.float64, (num_envs,))
        new.achievements[:] = _column(saved["achievements"], np.int64, (num_envs, num_achievements))
        *columns, achievements = saved["ended"]
        k = len(columns[0])
        dtypes = (np.int64, np.int64, np.int64, np.float64)
        arrays = [_column(values, dtype, (k,)) for values, dtype in zip(columns, dtypes, strict=True)]
        ended = FinishedEpisodes._make([*arrays, _column(achievements, np.int64, (k, num_achievements))])
        if not np.all((ended.env >= 0) & (ended.env < num_envs)):
            raise ValueError("its finished episodes do not fit")
        new._ended = [ended] if k else []
        return new

    def _joined(self) -> FinishedEpisodes:
        if not self._ended:
            none = np.zeros(0, np.int64)
            return FinishedEpisodes(none, none.copy(), none.copy(), np.zeros(0), self.achievements[:0].copy())
        return FinishedEpisodes(*(np.concatenate(column) for column in zip(*self._ended, strict=True)))

    def _clear(self, which: np.ndarray) -> None:
        self.length[which] = 0
        self.episode_return[which] = 0
        self.achievements[which] = 0


def _column(values: Any, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.array(values, dtype).reshape(-1, *shape[1:]) if values == [] else np.array(values, dtype)
    if array.shape != shape:
        raise ValueError(f"an array of shape {array.shape} was saved where {shape} belongs")
    if not np.all((array > -MAX_COUNT) & (array < MAX_COUNT)):
        raise ValueError("its counters are impossible")
    return array


def vector_info(rows: np.ndarray, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return infos as Gymnasium's vector environments do: for each name an array and a mask of who has a value.

    Args:
        rows: bool[n], the environments that report; elsewhere the arrays are zero.
        values: arrays [n, ...] by name, or dictionaries of them.
    """
    info: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            info[name] = vector_info(rows, value)
        else:
            info[name] = np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, 0)
        info[f"_{name}"] = rows.copy()
    return info


_PREFIX = struct.Struct("<16sHxxI")
_DIGEST = 32


def seal(kind: str, version: int, header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return a saved state: its kind and version, a JSON header, a body, and a digest of all that."""
    text = json.dumps(header).encode()
    data = _PREFIX.pack(f"achieve-{kind}".encode(), version, len(text)) + text + body
    return data + hashlib.blake2b(data, digest_size=_DIGEST).digest()


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turn whatever is wrong with the contents of a state into a `StateError`."""
    try:
        yield
    except StateError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, zlib.error) as error:
        raise StateError(f"the saved state cannot be read: {error}") from None


def require(condition: Any, what: str) -> None:
    """Refuse a state that no game can reach."""
    if not np.all(condition):
        raise StateError(f"the saved state is not of a possible game: {what}")


def unseal(kind: str, version: int, made_for: dict[str, Any], data: Any) -> tuple[dict[str, Any], bytes]:
    """Return header and body of a saved state; a `StateError` if it is damaged, foreign or of another environment.

    The header's entry of that name must equal ``made_for``.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a saved state is bytes, got {type(data).__name__}")
    data = bytes(data)
    if len(data) < _PREFIX.size + _DIGEST or data[:16].rstrip(b"\0") != f"achieve-{kind}".encode():
        raise StateError(f"this is not a saved state of achieve's {kind}")
    _, found, size = _PREFIX.unpack_from(data)
    if found != version:
        raise StateError(f"the saved state has format {found}, this version reads {version}")
    if hashlib.blake2b(data[:-_DIGEST], digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise StateError("the saved state is truncated or damaged: its checksum does not match")
    with reading():
        header = json.loads(data[_PREFIX.size : _PREFIX.size + size])
        saved_for = dict(header["made_for"])
    different = [
        f"{key} {saved_for.get(key)!r} (here {value!r})"
        for key, value in made_for.items()
        if saved_for.get(key) != value
    ]
    if different:
        raise StateError(f"the saved state is of another environment: {', '.join(different)}")
    return header, data[_PREFIX.size + size : -_DIGEST]
