"""NumPy's legacy generator (``RandomState``): the Mersenne Twister, its uniform and its randint.

A world's record holds the generator's 624 words (``key``), the outputs they give (``ready``) and the number of outputs
already used (``pos``). Nothing may be drawn out of order or skipped: the whole game depends on the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .typing import Int, World

WORDS = 624
_M = 397
_UPPER = np.uint32(0x80000000)
_LOWER = np.uint32(0x7FFFFFFF)
_MATRIX = np.uint32(0x9908B0DF)
_TEMPER_B = np.uint32(0x9D2C5680)
_TEMPER_C = np.uint32(0xEFC60000)


def seed_generator(world: World, seed: int) -> None:
    """Seed as ``RandomState(seed)`` does, for an integer below 2**32."""
    key = world.key
    word = np.uint32(seed)
    for i in range(WORDS):
        key[i] = word
        mixed = np.uint64(word ^ (word >> np.uint32(30)))
        word = np.uint32(mixed * np.uint64(1812433253) + np.uint64(i + 1))
    world.pos = WORDS


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy element by element: a slice assignment would allocate a temporary."""
    for i in range(len(source)):
        target[i] = source[i]


def mix(upper: Any, lower: Any, other: Any) -> Any:
    word = (upper & _UPPER) | (lower & _LOWER)
    return other ^ (word >> np.uint32(1)) ^ (_MATRIX * (word & np.uint32(1)))


def temper(word: Any) -> Any:
    word = word ^ (word >> np.uint32(11))
    word = word ^ ((word << np.uint32(7)) & _TEMPER_B)
    word = word ^ ((word << np.uint32(15)) & _TEMPER_C)
    return word ^ (word >> np.uint32(18))


def next_words(world: World) -> None:
    """Replace all 624 words, and the outputs, by the next 624.

    Two loops and a last word, because a word depends on the new value of the one 227 before it: these are distances for
    which the compiler can use vector instructions.
    """
    key = world.key
    split = WORDS - _M
    for i in range(split):
        key[i] = mix(key[i], key[i + 1], key[i + _M])
    for i in range(split, WORDS - 1):
        key[i] = mix(key[i], key[i + 1], key[i - split])
    key[WORDS - 1] = mix(key[WORDS - 1], key[0], key[_M - 1])
    refresh(world)
    world.pos = 0


def refresh(world: World) -> None:
    """Compute the outputs from the words."""
    key, ready = world.key, world.ready
    for i in range(WORDS):
        ready[i] = temper(key[i])


def next_word(world: World) -> Any:
    if world.pos >= WORDS:
        next_words(world)
    word = world.ready[world.pos]
    world.pos += 1
    return word


def uniform(world: World) -> float:
    """Draw ``RandomState.uniform()``: 53 random bits in [0, 1)."""
    high = next_word(world) >> np.uint32(5)
    low = next_word(world) >> np.uint32(6)
    return (np.float64(high) * 67108864.0 + np.float64(low)) / 9007199254740992.0


def randint(world: World, high: Int) -> Int:
    """Draw ``RandomState.randint(0, high)``: masked rejection, and no draw when only 0 is possible."""
    top = np.uint32(high - 1)
    if top == np.uint32(0):
        return 0
    mask = top
    mask |= mask >> np.uint32(1)
    mask |= mask >> np.uint32(2)
    mask |= mask >> np.uint32(4)
    mask |= mask >> np.uint32(8)
    mask |= mask >> np.uint32(16)
    value = next_word(world) & mask
    while value > top:
        value = next_word(world) & mask
    return np.int64(value)


def fill_words(world: World, out: np.ndarray) -> None:
    """Write the next ``len(out)`` raw outputs."""
    done = 0
    while done < len(out):
        if world.pos >= WORDS:
            next_words(world)
        count = min(WORDS - world.pos, len(out) - done)
        copy(world.ready[world.pos : world.pos + count], out[done : done + count])
        world.pos += count
        done += count


def tuple_hash(first: int, second: int) -> Any:
    """Return CPython's ``hash((a, b))``, given the hashes of ``a`` and ``b``."""
    prime1 = np.uint64(11400714785074694791)
    prime2 = np.uint64(14029467366897019727)
    prime5 = np.uint64(2870177450012600261)
    total = prime5
    total += np.uint64(first) * prime2
    total = ((total << np.uint64(31)) | (total >> np.uint64(33))) * prime1
    total += np.uint64(second) * prime2
    total = ((total << np.uint64(31)) | (total >> np.uint64(33))) * prime1
    total += np.uint64(2) ^ (prime5 ^ np.uint64(3527539))
    value = np.int64(total)
    return np.int64(1546275796) if value == -1 else value


def world_seed(seed_hash: int, episode: int) -> int:
    """Return the seed of an environment's k-th world: ``hash((seed, k)) % (2**31 - 1)``."""
    return tuple_hash(seed_hash, episode) % np.int64(2**31 - 1)
