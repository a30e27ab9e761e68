"""Parity away from the defaults: every area, view, size, length and seed is the original's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .parity.events import EventCounter
from .parity.lockstep import LockStep
from .parity.players import RandomPlayer
from .parity.repertoire import PLAYS

SETTINGS: dict[str, dict[str, Any]] = {
    "area with ragged chunks": {"area": (32, 48)},
    "area below one chunk": {"area": (11, 10)},
    "large area": {"area": (70, 61)},
    "even local view": {"view": (7, 9), "size": (63, 90)},
    "wide view": {"view": (9, 7), "size": (90, 70)},
    "large view": {"area": (40, 40), "view": (21, 17), "size": (168, 136)},
    "narrow view": {"view": (4, 11), "size": (64, 64)},
    "one row of items": {"view": (16, 9), "size": (160, 90)},
    "oblong units": {"size": (80, 96)},
    "size not divisible by view": {"size": (100, 77)},
    "tiny units": {"size": (18, 20)},
    "texture-sized units": {"size": (144, 144)},
    "large size": {"size": (270, 300)},
    "scalar view and size": {"view": 9, "size": 64},
    "no reward": {"reward": False},
    "short": {"length": 50},
    "one step": {"length": 1},
    "everything": {
        "area": (29, 37),
        "view": (11, 8),
        "size": (97, 83),
        "length": 260,
        "reward": False,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_agree(name: str) -> None:
    """Some play by day in every setting: a wanderer, and a builder who fills the inventory."""
    counter = EventCounter()
    game = LockStep(seed=11, counter=counter, **SETTINGS[name])
    game.play(PLAYS["complete"].player(), 90)
    game.play(RandomPlayer(3, stickiness=0.5), 30)
    length = SETTINGS[name].get("length", 90)
    assert counter.steps == min(90, length) + min(30, length), "a player died: choose another seed"


@pytest.mark.parametrize("name", ["even local view", "oblong units", "tiny units", "everything"])
def test_settings_agree_by_night_and_asleep(name: str) -> None:
    """Noise, vignette and the sleeper's view depend on the size of the canvas."""
    counter = EventCounter()
    settings = {**SETTINGS[name], "length": 230}
    seed = 0
    while counter.events["night"] < 60 or counter.events["asleep by night"] < 20:
        game = LockStep(seed=seed, counter=counter, **settings)
        game.play(PLAYS["night_watch"].player())
        seed += 1
        assert seed < 10, counter.report()


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**31, 2**32 + 5, 2**61 - 1, 2**61, 2**100])
def test_any_seed_gives_the_same_worlds(seed: int) -> None:
    game = LockStep(seed=seed)
    for _ in range(2):
        game.play(RandomPlayer(0), 3)


def test_endless_episode_agrees() -> None:
    """`length=None` never truncates; the original then says `done` is None."""
    counter = EventCounter()
    game = LockStep(seed=4, length=None, counter=counter)
    episode = game.play(PLAYS["complete"].player(), 60)
    assert not episode.done
    assert counter.steps == 60


def test_worlds_agree_without_stepping() -> None:
    """Many worlds as generated: every material and creature of the first frame."""
    game = LockStep(seed=123)
    areas = []
    for _ in range(12):
        game.reset()
        *_, info = game.step(0)
        areas.append(info["semantic"])
    assert len(np.unique(np.stack(areas))) > 12
