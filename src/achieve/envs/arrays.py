"""What vector environments have in common: seeds, arguments and their checks, counted episodes, sealed states."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import FinishedEpisodes

INFOS = ("none", "final", "all")


def sub_seeds(seed: int | Sequence[int] | None, num_envs: int) -> list[int]:
    """A seed for each environment: given, or spread from one number by a SeedSequence."""
    if not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str | bytes):
        entropy = None if seed is None else _check_seed(seed)
        words = np.random.SeedSequence(entropy).generate_state(num_envs, np.uint64)
        return [int(word >> np.uint64(1)) for word in words]
    seeds = [_check_seed(one) for one in seed]
    if len(seeds) != num_envs:
        raise ValueError(f"{num_envs} environments need {num_envs} seeds, got {len(seeds)}")
    return seeds


def _check_seed(seed: Any) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"a seed must be a whole number, got {seed!r}") from None
    if number < 0:
        raise ValueError(f"a seed must not be negative, got {seed!r}")
    return number


def check_num_envs(num_envs: Any) -> int:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ValueError(f"num_envs must be a whole number from 1, got {num_envs!r}")
    return int(num_envs)


def check_infos(infos: Any) -> str:
    if infos not in INFOS:
        raise ValueError(f"infos must be one of {', '.join(INFOS)}, got {infos!r}")
    return str(infos)


def choose_workers(threads: int | None, num_envs: int, envs_each: int = 1) -> int:
    """Workers to use; left to choose, one for every ``envs_each`` environments while there are cores."""
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(cores, num_envs // envs_each))
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise ValueError(f"threads must be a whole number from 1 or None, got {threads!r}")
    return min(int(threads), num_envs)


def check_actions(actions: Any, num_envs: int, num_actions: int) -> np.ndarray:
    """The actions as int64[num_envs], each from 0 to ``num_actions`` - 1."""
    array = np.asarray(actions)
    if array.shape != (num_envs,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"actions must be {num_envs} whole numbers, shape ({num_envs},), "
            f"got {array.dtype} of shape {array.shape}: {actions!r}"
        )
    wrong = (array < 0) | (array >= num_actions)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(f"an action is a whole number from 0 to {num_actions - 1}, got {array[i]} for environment {i}")
    return array.astype(np.int64)


def check_out(out: Any, shape: tuple[int, ...]) -> np.ndarray:
    """``out`` if observations of that shape can be written into it."""
    if (
        not isinstance(out, np.ndarray)
        or out.dtype != np.uint8
        or out.shape != shape
        or not out.flags.c_contiguous
        or not out.flags.writeable
    ):
        given = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out must be a writeable C-contiguous uint8 array of shape {shape}, got {given}")
    return out


class EpisodeCounter:
    """Lengths, returns and achievements of the episodes under way, and those that ended and were not collected."""

    def __init__(self, num_envs: int, num_achievements: int) -> None:
        self.length = np.zeros(num_envs, np.int64)
        self.episode_return = np.zeros(num_envs)
        self.achievements = np.zeros((num_envs, num_achievements), np.int64)
        self.tick = 0
        self._ended: list[FinishedEpisodes] = []

    def abandon(self) -> None:
        """Forgets the episodes under way."""
        self._clear(np.arange(len(self.length)))

    def restart(self) -> None:
        """Everything from the beginning, as after a reset."""
        self.abandon()
        self.tick = 0
        self._ended.clear()

    def add(self, rewards: np.ndarray) -> None:
        """Counts one step everywhere; what was achieved in it is written into ``achievements``."""
        self.tick += 1
        self.length += 1
        self.episode_return += rewards

    def finish(self, which: np.ndarray) -> None:
        """Moves the episodes of these environments to the ended ones."""
        if not len(which):
            return
        self._ended.append(
            FinishedEpisodes(
                env=which.astype(np.int64),
                tick=np.full(len(which), self.tick, np.int64),
                length=self.length[which],
                episode_return=self.episode_return[which],
                achievements=self.achievements[which],
            )
        )
        self._clear(which)

    def pop(self) -> FinishedEpisodes:
        ended, self._ended = self._joined(), []
        return ended

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return {
            "tick": self.tick,
            "length": self.length.tolist(),
            "return": self.episode_return.tolist(),
            "achievements": self.achievements.tolist(),
            "ended": [column.tolist() for column in self._joined()],
        }

    def from_dict(self, saved: dict[str, Any]) -> EpisodeCounter:
        """A counter of this one's shape with what `as_dict` gave; a ValueError if it does not fit."""
        num_envs, num_achievements = self.achievements.shape
        new = EpisodeCounter(num_envs, num_achievements)
        new.tick = operator.index(saved["tick"])
        new.length[:] = _column(saved["length"], np.int64, (num_envs,))
        new.episode_return[:] = _column(saved["return"], np.float64, (num_envs,))
        new.achievements[:] = _column(saved["achievements"], np.int64, (num_envs, num_achievements))
        env, tick, length, episode_return, achievements = saved["ended"]
        k = len(env)
        ended = FinishedEpisodes(
            _column(env, np.int64, (k,)),
            _column(tick, np.int64, (k,)),
            _column(length, np.int64, (k,)),
            _column(episode_return, np.float64, (k,)),
            _column(achievements, np.int64, (k, num_achievements)),
        )
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
    return array


def achievement_info(names: Sequence[str], counts: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Achievements as Gymnasium's vector infos hold a dictionary: an array and a mask for each name."""
    info: dict[str, np.ndarray] = {}
    for k, name in enumerate(names):
        info[name] = np.where(rows, counts[:, k], 0)
        info[f"_{name}"] = rows.copy()
    return info


_PREFIX = struct.Struct("<16sHxxI")
_DIGEST = 32


def seal(kind: str, version: int, header: dict[str, Any], body: bytes = b"") -> bytes:
    """A saved state: its kind and version, a JSON header, a body, and a digest of all that."""
    text = json.dumps(header).encode()
    data = _PREFIX.pack(f"achieve-{kind}".encode(), version, len(text)) + text + body
    return data + hashlib.blake2b(data, digest_size=_DIGEST).digest()


def unseal(kind: str, version: int, made_for: dict[str, Any], data: Any) -> tuple[dict[str, Any], bytes]:
    """Header and body of a saved state; a ValueError if it is damaged, foreign or of another environment.

    ``made_for`` is what the header's entry of that name must be.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a saved state is bytes, got {type(data).__name__}")
    data = bytes(data)
    if len(data) < _PREFIX.size + _DIGEST or data[:16].rstrip(b"\0") != f"achieve-{kind}".encode():
        raise ValueError(f"this is not a saved state of achieve's {kind}")
    _, found, size = _PREFIX.unpack_from(data)
    if found != version:
        raise ValueError(f"the saved state has format {found}, this version reads {version}")
    if hashlib.blake2b(data[:-_DIGEST], digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise ValueError("the saved state is truncated or damaged: its checksum does not match")
    try:
        header = json.loads(data[_PREFIX.size : _PREFIX.size + size])
        saved_for = dict(header["made_for"])
    except (ValueError, KeyError, TypeError):
        raise ValueError("the saved state's header cannot be read") from None
    different = [
        f"{key} {saved_for.get(key)!r} (here {value!r})"
        for key, value in made_for.items()
        if saved_for.get(key) != value
    ]
    if different:
        raise ValueError(f"the saved state is of another environment: {', '.join(different)}")
    return header, data[_PREFIX.size + size : -_DIGEST]
