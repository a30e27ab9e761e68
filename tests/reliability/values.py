"""What wrong inputs are made of: odd values, and valid ones with something changed."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import torch

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 16, 17, 64, 255, 256, 1000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, 2**63,
    2**64, -(2**63), 10**30, 0.5, -0.5, 1e-300, 1e308, -0.0, math.nan, math.inf, -math.inf,
)  # fmt: skip
MUST_NOT_RUN = "tests.reliability.fuzz:must_not_run"
WORDS = (
    "", "a", " ", "\0", "a\0b", "\n", "é", "\u202e", "\U0001f600", "nan", "null", "1e6", "-1", "../../x", "/", ".", "~",
    "ppo", "qrdqn", "residual", "strided", "frozen", "cpu", "cuda:7", "meta", "auto", "crafter", "minigrid", "heist",
    "CartPole-v1", MUST_NOT_RUN, "no_such_module:f", "length=3", "length=-1", "length=nan",
    "area=[1,1]", "size=64", "view=9", "depth=2", "depth=99", "a=b=c", "=", f"rules={MUST_NOT_RUN}",
    "x" * 3000, "%s%n", "{}", "[]", "__class__", "weights", "format",
)  # fmt: skip
LONG_TEXTS = (
    b"[" * 100_000, b'{"a":' * 20_000, b"9" * 5000, b"1e999", b"-", b"NaN", b"Infinity", b"\xff\xfe", b"\0",
    b"\xef\xbb\xbf", b'"\\ud800"', b"null", b"{}", b"[]", b",", b":", b'"', b"}", b"]", b"true", b"1.", b"0x10", b"\n",
    b"\\u0000",
)  # fmt: skip


def anything(rng: Random, depth: int = 0) -> Any:
    """Any value that JSON has."""
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(NUMBERS)
    if roll < 0.65:
        return rng.choice(WORDS)
    if roll < 0.8 or depth > 3:
        return rng.choice((None, True, False))
    if roll < 0.9:
        return [anything(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 40)))]
    return {rng.choice(WORDS): anything(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))}


def changed(rng: Random, tree: Any, times: int | None = None) -> Any:
    """A tree of JSON values with one or a few things changed; the original stays."""
    for _ in range(rng.choice((1, 1, 1, 2, 4)) if times is None else times):
        tree = _changed(rng, tree)
    return tree


def _changed(rng: Random, tree: Any) -> Any:
    roll = rng.random()
    if isinstance(tree, dict) and tree and roll < 0.95:
        key, new = rng.choice(list(tree)), dict(tree)
        if roll < 0.05:
            del new[key]
        elif roll < 0.08:
            new[rng.choice(WORDS)] = anything(rng)
        elif roll < 0.1:
            new[rng.choice(list(tree))] = new[key]
        else:
            new[key] = _changed(rng, tree[key])
        return new
    if isinstance(tree, list) and tree and roll < 0.9:
        at, items = rng.randrange(len(tree)), list(tree)
        if roll < 0.08:
            del items[at]
        elif roll < 0.16:
            items.insert(at, anything(rng))
        elif roll < 0.2:
            items = items * rng.choice((0, 2, 50))
        else:
            items[at] = _changed(rng, tree[at])
        return items
    return _changed_leaf(rng, tree)


def _changed_leaf(rng: Random, value: Any) -> Any:
    if rng.random() < 0.4:
        return anything(rng)
    if rng.random() < 0.15:
        return rng.choice(([value], {"a": value}, str(value), [value] * 3))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        step = rng.choice((1, -1, 8, 100, 2**20, -value, -2 * value, value, 10**6 * value))
        return value + step
    if isinstance(value, float):
        return value * rng.choice((-1.0, 0.0, 2.0, 1e-30, 1e30, math.nan, math.inf)) + rng.choice((0, 1e-9, 1, -1))
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice((rng.choice(WORDS), chr(rng.randrange(1, 0x300)), "")) + value[at + 1 :]
    return anything(rng)


def torn(rng: Random, data: bytes, others: Sequence[bytes] = (), *, in_place: bool = False) -> bytes:
    """Bytes with one or a few things changed: cut, flipped, overwritten, spliced; `in_place` keeps their number."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        size = max(1, len(made))
        at = rng.randrange(size)
        roll = rng.choice((2, 3, 4, 7)) if in_place else rng.randrange(9)
        if roll == 0:
            del made[at:]
        elif roll == 1:
            made += rng.randbytes(rng.choice((1, 8, 100)))
        elif roll == 2 and made:
            made[at % len(made)] ^= 1 << rng.randrange(8)
        elif roll == 3 and made:
            made[at % len(made)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif roll == 4:
            at = min(at // 8 * 8, max(0, size - 8))
            made[at : at + 8] = _word(rng)
        elif roll == 5:
            made[at : at + rng.choice((1, 4, 64))] = b""
        elif roll == 6:
            other = rng.choice(others) if others else data
            to = min(len(other), at + rng.choice((8, 64, 4096)))
            made[at:to] = other[at:to]
        elif roll == 7:
            end = at + rng.choice((4, 32, 1000))
            made[at:end] = bytes(len(made[at:end]))
        elif others:
            made[at:] = rng.choice(others)[at:]
    return bytes(made)


def _word(rng: Random) -> bytes:
    number = rng.choice(NUMBERS)
    if isinstance(number, float) or rng.random() < 0.2:
        return struct.pack("<d", float(number))
    return struct.pack("<q", number % 2**64 - (2**64 if number % 2**64 >= 2**63 else 0))


def torn_text(rng: Random, data: bytes) -> bytes:
    """Text with one or a few things changed."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((0, 1, 1, 5, 50, 10**6)))
        data = data[:at] + rng.choice((b"", rng.choice(LONG_TEXTS), rng.randbytes(2), data[at:to] * 2)) + data[to:]
    return data


# Saved states of environments

_PREFIX = struct.Struct("<16sHxxI")
_DIGEST = 32


def torn_state(rng: Random, data: bytes, others: Sequence[bytes], *, packed: bool = False) -> bytes:
    """A saved state with something changed in its header, its body or anywhere; mostly with a checksum that fits.

    `packed` says that its body is compressed.
    """
    roll = rng.random()
    if roll < 0.02:
        return rng.choice((b"", b"\0", data[: rng.randrange(len(data))], rng.choice(others)))
    if roll < 0.15:
        return torn(rng, data, others)
    if roll < 0.25:
        return _sealed(torn(rng, data[:-_DIGEST], others))
    magic, version, size = _PREFIX.unpack_from(data)
    header = json.loads(data[_PREFIX.size : _PREFIX.size + size])
    body = data[_PREFIX.size + size : -_DIGEST]
    if roll < 0.55:
        header = changed(rng, header)
    else:
        in_place = rng.random() < 0.8
        plain = zlib.decompress(body) if packed else body
        body = torn(rng, plain, in_place=in_place)
        body = zlib.compress(body, 1) if packed else body
    text = json.dumps(header).encode()
    return _sealed(_PREFIX.pack(magic, version, len(text)) + text + body)


def _sealed(data: bytes) -> bytes:
    return data + hashlib.blake2b(data, digest_size=_DIGEST).digest()


# Arrays and what may be taken for them

DTYPES = (
    "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i8", "f2", "f4", "f8", "c8", "?", "O", "S3", "U3", "M8[s]",
    "m8[s]", "V4",
)  # fmt: skip


class Index:
    """An object that is a whole number."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value


class ArrayLike:
    """An object that says it is an array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Endless:
    """A sequence that is shorter than it says."""

    def __init__(self, claimed: int) -> None:
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed

    def __getitem__(self, at: int) -> int:
        if at >= 2:
            raise IndexError(at)
        return 0


def array(rng: Random, shape: tuple[int, ...], limit: int) -> np.ndarray:
    """An array of that shape, of any type, in any order, with values about the limit."""
    dtype = np.dtype(rng.choice(DTYPES))
    size = math.prod(shape)
    numbers = [rng.choice((rng.randrange(limit), rng.randrange(limit), limit, -1, 127)) for _ in range(min(size, 64))]
    values = np.resize(np.array(numbers or [0], np.int64), shape)
    with np.errstate(all="ignore"):
        made = np.zeros(shape, dtype) if dtype.kind in "VM" else values.astype(dtype)
    roll = rng.random()
    if roll < 0.1 and made.ndim:
        made = np.repeat(made, 2, axis=0)[::2]
    elif roll < 0.15 and made.ndim:
        made = made[::-1]
    elif roll < 0.2:
        made = np.asfortranarray(made)
    elif roll < 0.25:
        made.flags.writeable = False
    elif roll < 0.3 and made.ndim:
        made = np.broadcast_to(made[:1], made.shape)
    elif roll < 0.35:
        made = made.view(np.ma.MaskedArray) if dtype.kind != "V" else made
    elif roll < 0.37 and dtype.kind != "V":
        made = made.view(np.recarray)
    return made


def shape_near(rng: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """That shape, or one much like it."""
    roll = rng.random()
    if roll < 0.5:
        return shape
    made = list(shape)
    if roll < 0.7 and made:
        made[rng.randrange(len(made))] = rng.choice((0, 1, 2, 5, 63, 65))
    elif roll < 0.8:
        made = made[1:]
    elif roll < 0.9:
        made.insert(rng.randrange(len(made) + 1), rng.choice((0, 1, 2)))
    else:
        made = list(reversed(made))
    return tuple(made)


def scalar(rng: Random, limit: int) -> Any:
    """What someone may take for one action."""
    number = rng.choice((rng.randrange(limit), rng.choice(NUMBERS)))
    roll = rng.randrange(12)
    if roll == 0:
        return rng.choice(WORDS)
    if roll == 1:
        return array(rng, shape_near(rng, ()), limit)
    if roll == 2:
        return Index(number)
    if roll == 3:
        return ArrayLike(rng.choice((number, np.zeros(1, int), ValueError("no"), TypeError("no"))))
    if roll == 4:
        return anything(rng)
    if roll == 5:
        return rng.choice((object(), type, print, {1, 2}, b"\1", bytearray(b"\2"), memoryview(b"\3"), 1j, range(3)))
    if roll == 6:
        return torch.tensor(number if isinstance(number, float) else number % 100)
    if roll == 7:
        return array(rng, (), limit)[()]
    return number


def actions(rng: Random, num_envs: int, limit: int) -> Any:
    """What someone may take for the actions of several environments."""
    roll = rng.randrange(12)
    if roll < 3:
        return array(rng, shape_near(rng, (num_envs,)), limit)
    if roll == 3:
        return [scalar(rng, limit) for _ in range(rng.choice((num_envs, num_envs, 0, 1, 7)))]
    if roll == 4:
        return [[scalar(rng, limit)] * rng.choice((1, 2)) for _ in range(num_envs)]
    if roll == 5:
        return tuple(rng.randrange(limit) for _ in range(num_envs))
    if roll == 6:
        return rng.choice((iter([0] * num_envs), Endless(num_envs), dict.fromkeys(range(num_envs), 0), range(num_envs)))
    if roll == 7:
        return ArrayLike(rng.choice((array(rng, (num_envs,), limit), ValueError("no"), [0] * num_envs)))
    if roll == 8:
        numbers = np.resize([rng.randrange(-1, limit + 1) for _ in range(8)], shape_near(rng, (num_envs,)))
        return torch.from_numpy(numbers).to(rng.choice((torch.int64, torch.uint8, torch.float32)))
    if roll == 9:
        return scalar(rng, limit)
    if roll == 10:
        return rng.choice((b"\0\1\2", "012", memoryview(bytes(num_envs)), np.arange(num_envs).view("i4")))
    return [rng.randrange(limit) for _ in range(num_envs)]


FENCE = 4096
"""Bytes before and after a buffer that nobody may write into."""


def buffer(rng: Random, shape: tuple[int, ...]) -> tuple[Any, np.ndarray | None]:
    """Something to write observations into, and the larger array it lies in, if it is fit for that."""
    if rng.random() < 0.3:
        size = math.prod(shape)
        ground = np.full(size + 2 * FENCE, 0xA5, np.uint8)
        offset = FENCE + rng.randrange(8)
        return ground[offset : offset + size].reshape(shape), ground
    roll = rng.randrange(8)
    near = shape_near(rng, shape)
    if roll == 0:
        return rng.choice((0, True, "", b"", [], {}, object(), bytearray(math.prod(shape)), memoryview(b"abcd"))), None
    if roll == 1:
        return np.zeros(near, rng.choice(("i1", "?", "f4", "u2", "u8", "O", "S1", "V1"))), None
    if roll == 2:
        return np.zeros(near, np.uint8, order="F"), None
    if roll == 3:
        return np.zeros((*near[:-1], 2 * (near or (1,))[-1]), np.uint8)[..., ::2], None
    if roll == 4:
        made = np.zeros(near, np.uint8)
        made.flags.writeable = False
        return made, None
    if roll == 5:
        return np.broadcast_to(np.zeros((1,) * len(near), np.uint8), near), None
    if roll == 6:
        return torch.zeros(near, dtype=torch.uint8), None
    return np.zeros(near, np.uint8)[::-1] if near else np.zeros((), np.uint8), None


# Tensors of weight files and checkpoints


def changed_tensors(rng: Random, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by name with one or a few of them changed: gone, renamed, of another size or type, not finite."""
    made = dict(tensors)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not made:
            break
        name = rng.choice(list(made))
        tensor = made[name]
        roll = rng.randrange(10)
        if roll == 0:
            del made[name]
        elif roll == 1:
            made[rng.choice((name + "x", "", *[word for word in WORDS if "\0" not in word]))] = made.pop(name)
        elif roll == 2:
            made[name] = tensor.reshape(-1)
        elif roll == 3:
            made[name] = tensor.reshape(-1)[: rng.randrange(tensor.numel() + 1)].clone()
        elif roll == 4:
            made[name] = tensor[None].clone()
        elif roll == 5:
            types = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
            made[name] = tensor.nan_to_num().to(rng.choice(types))
        elif roll in (6, 7) and tensor.numel():
            flat = tensor.clone().reshape(-1)
            real = flat.is_floating_point()
            extremes = (math.nan, math.inf, -math.inf, 1e38, 0.0) if real else (0, 1, -1, 127, 2**31 - 1)
            value = torch.tensor(rng.choice(extremes)).to(flat.dtype)
            flat[rng.randrange(len(flat)) :: rng.choice((1, 1000))] = value
            made[name] = flat.reshape(tensor.shape)
        elif roll == 8:
            made[name] = tensor.transpose(0, -1).contiguous() if tensor.dim() > 1 else tensor * 2
        else:
            made[name] = made[rng.choice(list(made))].clone()
    return made
