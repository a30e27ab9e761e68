"""Parity of the drop-in for `crafter.Env`, past an episode's end too, and of frames at any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from achieve.envs.crafter import CrafterEnv, Env

from .parity import recordings
from .parity.players import RandomPlayer
from .parity.reference import make_reference


def assert_same_step(expected: tuple[Any, ...], got: tuple[Any, ...]) -> None:
    """Compares two results of the four-value `step`."""
    np.testing.assert_array_equal(got[0], expected[0])
    assert type(got[1]) is type(expected[1])
    assert got[1] == expected[1]
    assert type(got[2]) is type(expected[2])
    assert got[2] == expected[2]
    assert list(got[3]) == list(expected[3])
    for key, value in expected[3].items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(got[3][key], value)
            assert got[3][key].dtype == value.dtype
        else:
            assert got[3][key] == value


@pytest.mark.parametrize(("play", "seed"), [("diver", 1), ("boxer", 8), ("hermit", 7)])
def test_drop_in_agrees_beyond_death(play: str, seed: int) -> None:
    """The original lets one go on after death; whoever did so sees the same things here."""
    actions = list(recordings.load()[play, seed].actions)
    reference, ours = make_reference(seed=seed), Env(seed=seed)
    np.testing.assert_array_equal(ours.reset(), reference.reset())
    player = RandomPlayer(1)
    actions += [player.act({}) for _ in range(150)]
    deaths = 0
    for action in actions:
        expected = reference.step(action)
        assert_same_step(expected, ours.step(action))
        deaths += expected[2]
    assert deaths, "nobody died: choose another recording"


@pytest.mark.parametrize("length", [3, 0, None])
def test_drop_in_agrees_beyond_the_time_limit(length: int | None) -> None:
    """`done` has the original's value and type, whatever `length` is."""
    reference, ours = make_reference(seed=2, length=length), Env(seed=2, length=length)
    reference.reset()
    ours.reset()
    for action in (1, 1, 2, 3, 5, 5, 0):
        assert_same_step(reference.step(action), ours.step(action))


def test_drop_in_has_the_attributes_of_the_original() -> None:
    reference, ours = make_reference(seed=0), Env(seed=0)
    assert list(ours.action_names) == list(reference.action_names)
    assert getattr(ours.action_space, "n", None) == reference.action_space.n
    assert ours.observation_space.shape == tuple(map(int, reference.observation_space.shape))
    assert ours.observation_space.dtype == reference.observation_space.dtype
    assert (ours.reward_range, ours.metadata) == (reference.reward_range, reference.metadata)


def test_frames_of_any_size_agree() -> None:
    """`render(size)` shows the moment of the last observation as the original would have drawn it.

    The original draws fresh night noise at every call, which moves the game on. For the comparison
    its generator is put back to where it was before the observation, and restored afterwards.
    """
    actions = recordings.load()["night_watch", 1].actions
    reference, ours = make_reference(seed=1), CrafterEnv(seed=1)
    world = reference._world
    before: list[Any] = []
    observe = reference._obs

    def remember() -> np.ndarray:
        before[:] = [world.random.get_state()]
        return observe()

    reference._obs = remember
    reference.reset()
    ours.reset()
    compared = {"day": 0, "night": 0, "asleep": 0}
    for step, action in enumerate(actions):
        done = reference.step(action)[2]
        ours.step(action)
        if step % 8 == 0:
            after = world.random.get_state()
            for size in ((64, 64), (45, 63), (100, 77), (144, 288)):
                world.random.set_state(before[0])
                np.testing.assert_array_equal(ours.render(size=size), reference.render(size))
            world.random.set_state(after)
            compared["night" if world.daylight < 0.5 else "day"] += 1
            compared["asleep"] += reference._player.sleeping
        if done:
            break
    assert min(compared.values()) >= 3, compared
