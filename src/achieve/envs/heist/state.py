"""Read the states that Procgen saves of a Heist game.

A state is a sequence of little-endian 4-byte words. A string is a length word and its bytes; a random generator is a
word and a string, the decimal text in which C++ writes its Mersenne Twister. Procgen aborts the process on a state that
it cannot read, so `read` checks all of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

WORLD_DIM = 13
"""Cells along each side of the world, hard mode."""
COLOURS = ("blue", "green", "red")
"""Of keys and locks, in the order of Procgen's themes."""

PLAYER, LOCK, KEY, GEM = 0, 1, 2, 9
WALL, SPACE = 51, 100

MAX_SIZE = 2**20
"""Procgen's own bound on the bytes of a state."""

_ENTITY_WORDS = 31
_X, _Y, _TYPE, _IMAGE, _THEME = 0, 1, 6, 7, 8
_TIMEOUT, _LEVEL_SEED, _TIME = 4, 5, 13  # of the 15 words after the generators
_REALS = (*range(6), 12, 13, 14, 21, *range(25, 31))  # place, speed, size, angles and the like
_END = 0xCAFECAFE
_TWISTER_WORDS = 625
_OUTSIDE = 2  # of the 9 words before the grid: what lies beyond it
_OWN_KEY = 11  # a key in hand, shown in a corner


@dataclass(frozen=True)
class HeistState:
    """What a saved state says about its game. Positions are in cells from the lower left corner."""

    level_seed: int
    time: int
    timeout: int
    player: tuple[float, float]
    gem: tuple[float, float]
    locks: dict[int, tuple[float, float]]
    """Locks still closed, by colour."""
    keys: dict[int, tuple[float, float]]
    """Keys not collected yet, by colour."""
    held: tuple[bool, ...]
    """Whether the key of each colour has been collected, for as many keys as the level has."""
    walls: np.ndarray
    """bool[13, 13], rows upwards."""
    level_generator: slice
    """Where the text of the generator that draws the levels is, its length word included."""


class Locks(NamedTuple):
    """The part of a `HeistState` that is needed while games are played."""

    level_seed: int
    locks: dict[int, tuple[float, float]]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def words(self, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}i", self.data, self._advance(4 * count))

    def string(self) -> bytes:
        (size,) = self.words(1)
        start = self._advance(size)
        return self.data[start : start + size]

    def generator(self) -> slice:
        self.words(1)
        start = self.position
        text = self.string()
        if text.count(b" ") != _TWISTER_WORDS - 1 or not text.replace(b" ", b"").isdigit():
            raise ValueError("a saved state of Heist has a random generator that is none")
        return slice(start, self.position)

    def _advance(self, size: int) -> int:
        start = self.position
        if size < 0 or start + size > len(self.data):
            raise ValueError("a saved state of Heist ends too early")
        self.position = start + size
        return start


def read(data: bytes) -> HeistState:
    """Return the game in a saved state; a ValueError if it is not one of Heist in hard mode."""
    reader = _Reader(data)
    (version,) = reader.words(1)
    if version != 0 or reader.string() != b"heist":
        raise ValueError("this is not a saved state of Procgen's Heist")
    reader.words(12 + 5)  # options; range of levels, kind and number of the game
    level_generator = reader.generator()
    reader.generator()
    clock = reader.words(15)
    _, entities = reader.words(2)
    words = np.array(reader.words(entities * _ENTITY_WORDS), "<i4").reshape(entities, _ENTITY_WORDS)
    reader.words(19)
    reader.generator()
    around = reader.words(3 + 6)
    width, height, cells = reader.words(3)
    if (width, height, cells) != (WORLD_DIM, WORLD_DIM, WORLD_DIM**2):
        raise ValueError(f"a saved state of Heist has a world of {width}x{height}, not {WORLD_DIM}x{WORLD_DIM}")
    grid = np.array(reader.words(cells)).reshape(height, width)
    keys, dim, drawn = reader.words(3)
    if dim != WORLD_DIM or not 0 <= keys == drawn <= len(COLOURS):
        raise ValueError(f"a saved state of Heist has {keys} keys, of which {drawn} are counted")
    held = reader.words(drawn)
    (end,) = reader.words(1)
    if end & 0xFFFFFFFF != _END or reader.position != len(data):
        raise ValueError("a saved state of Heist does not end where it should")
    kinds, themes = words[:, _TYPE], words[:, _THEME]
    places = words[:, [_X, _Y]].view("<f4")
    # Procgen ends the process when it has to draw what it does not know.
    if not (np.isin(grid, (WALL, SPACE)).all() and around[_OUTSIDE] == WALL):
        raise ValueError("a saved state of Heist has cells that are neither wall nor floor")
    known = np.isin(kinds, (PLAYER, LOCK, KEY, GEM, _OWN_KEY)) & np.isin(words[:, _IMAGE], (PLAYER, LOCK, KEY, GEM))
    finite = np.isfinite(words[:, _REALS].view("<f4")).all(1)
    if not (known & (themes >= 0) & (themes < len(COLOURS)) & finite).all():
        raise ValueError("a saved state of Heist has things that are not in the game")

    def by_colour(kind: int) -> dict[int, tuple[float, float]]:
        return {int(themes[i]): (float(places[i, 0]), float(places[i, 1])) for i in np.flatnonzero(kinds == kind)}

    outside = ((places < 0) | (places > WORLD_DIM)).any(1)
    if (outside & (kinds != _OWN_KEY)).any():
        raise ValueError("a saved state of Heist has things outside the world")
    locks, player, gem = by_colour(LOCK), by_colour(PLAYER), by_colour(GEM)
    if len(player) != 1 or len(gem) != 1 or any(not 0 <= colour < len(COLOURS) for colour in locks):
        raise ValueError("a saved state of Heist has not one player, one gem and locks of three colours")
    return HeistState(
        level_seed=clock[_LEVEL_SEED],
        time=clock[_TIME],
        timeout=clock[_TIMEOUT],
        player=next(iter(player.values())),
        gem=next(iter(gem.values())),
        locks=locks,
        keys=by_colour(KEY),
        held=tuple(bool(key) for key in held),
        walls=grid == WALL,
        level_generator=level_generator,
    )


def read_locks(data: bytes) -> Locks:
    """Return the locks still closed in a state that Procgen has just saved, without checking all of it as `read`."""
    reader = _Reader(data)
    reader.words(1)
    reader.string()
    reader.words(12 + 5)
    for _ in range(2):
        reader.words(1)
        reader.string()
    clock = reader.words(15)
    _, entities = reader.words(2)
    words = np.frombuffer(data, "<i4", entities * _ENTITY_WORDS, reader.position).reshape(entities, _ENTITY_WORDS)
    locks = words[words[:, _TYPE] == LOCK]
    places = locks[:, [_X, _Y]].view("<f4").tolist()
    return Locks(
        clock[_LEVEL_SEED], {theme: (x, y) for theme, (x, y) in zip(locks[:, _THEME].tolist(), places, strict=True)}
    )


def with_levels_of(data: bytes, seed: int) -> bytes:
    """Return the state with another level generator, which depends only on ``seed``."""
    twister = np.random.MT19937(np.random.SeedSequence(seed)).state["state"]
    text = " ".join(str(int(word)) for word in (*twister["key"], twister["pos"])).encode()
    place = read(data).level_generator
    return data[: place.start] + struct.pack("<i", len(text)) + text + data[place.stop :]
