"""Thousands of odd inputs: each is taken, or refused with one sentence and nothing changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from achieve.envs import make_vec
from achieve.envs.crafter import CrafterEnv
from achieve.errors import AchieveError
from tests.conftest import Optional
from tests.envs.test_threads_share import need

REFUSALS = (ValueError, TypeError, AchieveError)
ENVIRONMENTS: dict[str, tuple[dict[str, Any], int]] = {
    "crafter": ({"area": (12, 12), "length": 50}, 250),
    "minigrid": ({}, 250),
    "heist": ({}, 20),
    "tests.envs.gym.envs:Count": ({}, 250),
}
DTYPES = ("i1", "u1", "i4", "i8", "u8", "f2", "f8", "?", "c8", "O", "U3", "S2", "M8[s]", "m8[s]", ">i4", [("a", "i4")])
ODD = (
    None, True, 0, 1, -1, 16, 17, 255, 2**31, 2**63 - 1, -(2**63), 2**70, 10**5000, 1.5, float("nan"), 1j, "a", b"b",
    (), [], {}, {1}, object(), np.float64(2), np.int8(3), np.bool_(True), np.array(2), np.array([3]), np.ma.masked,
    range(3), slice(1), ..., type, memoryview(b"abc"), bytearray(3),
)  # fmt: skip


class Source:
    """Inputs of all kinds, from one seed."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.rng = np.random.default_rng(seed)

    def scalar(self) -> Any:
        return self.pick.choice(ODD)

    def several(self, count: int) -> Any:
        """Actions or seeds: right ones, and wrong in number, shape, type or value."""
        kind = self.pick.randrange(8)
        if kind == 0:
            return self.scalar()
        if kind == 1:
            return [self.scalar() for _ in range(count)]
        shape = self.pick.choice([(count,)] * 4 + [(count, 1), (1, count), (count + 1,), (0,), (), (2, 2, 2)])
        array = np.zeros(shape, self.pick.choice(DTYPES))
        if array.dtype.kind in "iufOc":
            array[...] = self.rng.integers(-1, 7, shape)
        if kind == 2:
            return array.tolist()
        if kind == 3 and array.ndim:
            return np.repeat(array, 2, 0)[::-2]
        if kind == 4:
            return np.ma.masked_array(array)
        array.flags.writeable = kind != 5
        return array

    def out(self, shape: tuple[int, ...]) -> Any:
        plain = np.zeros(shape, np.uint8)
        read_only = np.zeros(shape, np.uint8)
        read_only.flags.writeable = False
        return self.pick.choice(
            [
                plain, plain, read_only, self.scalar(), np.zeros(shape, self.pick.choice(DTYPES)), plain[::-1],
                np.zeros((*shape[:-1], 2 * shape[-1]), np.uint8)[..., ::2], np.asfortranarray(plain), plain[:0],
                np.ma.masked_array(plain), plain.view(np.recarray), np.broadcast_to(plain[0], shape), plain.T,
                np.frombuffer(bytearray(plain.size + 3), np.uint8, plain.size, 3).reshape(shape),
            ]
        )  # fmt: skip

    def state(self, good: bytes, others: list[bytes]) -> Any:
        first, last = sorted(self.rng.integers(0, len(good), 2))
        flipped = bytearray(good)
        for _ in range(self.pick.randrange(1, 4)):
            flipped[self.rng.integers(len(flipped))] ^= 1 << self.pick.randrange(8)
        return self.pick.choice(
            [
                good, bytearray(good), good[:first], good[first:], good[:first] + good[last:], good + b"\0", flipped,
                bytes(flipped), memoryview(good)[::-1], self.rng.bytes(200), self.scalar(), *others,
            ]
        )  # fmt: skip


def attempt(env: Any, call: Callable[[Any], Any], given: Any) -> bool:
    """Whether the input was taken; a refusal must be a sentence and leave the environment as it was."""
    before = env.save_state()
    try:
        call(given)
    except REFUSALS as error:
        said = str(error)
        assert said and "\n" not in said and len(said) < 500, said
        assert env.save_state() == before
        return False
    return True


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_vector_environment_takes_or_refuses_anything(environment: str, optional: Optional) -> None:
    need(environment, optional)
    arguments, rounds = ENVIRONMENTS[environment]
    envs, others = make_vec(environment, 3, 0, 1, **arguments), [CrafterEnv(area=(12, 12), seed=0).save_state()]
    if environment != "crafter":
        others.append(make_vec("crafter", 3, 0, 1).save_state())
    envs.reset()
    source = Source(0)
    taken = np.zeros((5, 2), int)
    for _ in range(rounds):
        shape = envs.observation_space.shape
        assert shape is not None
        for k, (call, given) in enumerate(
            [
                (envs.step, source.several(3)),
                (lambda out: envs.step([0, 1, 2], out=out), source.out(shape)),
                (lambda out: envs.observe(out=out), source.out(shape)),
                (lambda seed: envs.reset(seed=seed), source.several(3)),
                (envs.load_state, source.state(envs.save_state(), others)),
            ]
        ):
            taken[k, int(attempt(envs, call, given))] += 1
            if not envs._begun:
                envs.reset()
    assert taken.all(), "some of each kind were taken, and some refused"
    envs.close()


def test_a_single_environment_takes_or_refuses_anything() -> None:
    env, others = CrafterEnv(area=(12, 12), seed=0), [make_vec("crafter", 1, 0, 1, area=(12, 12)).save_state()]
    env.reset()
    source = Source(1)
    taken = np.zeros((3, 2), int)
    for _ in range(500):
        state = source.state(env.save_state(), others)
        for k, (call, given) in enumerate(
            [(env.step, source.scalar()), (lambda seed: env.reset(seed=seed), source.scalar()), (env.load_state, state)]
        ):
            taken[k, int(attempt(env, call, given))] += 1
            if env._status != 1:
                env.reset()
    assert taken.all()
