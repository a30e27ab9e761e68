"""The full comparison with the real package: over 100 episodes and 50,000 steps of mixed play."""

from __future__ import annotations

import pytest

from .parity import recordings
from .parity.events import ACHIEVEMENTS, ALL_EVENTS, EventCounter
from .parity.lockstep import LockStep
from .parity.players import RandomPlayer

pytestmark = pytest.mark.long


@pytest.mark.timeout(1800)
def test_full_comparison() -> None:
    counter = EventCounter()
    recorded = recordings.load()
    for play, seed, _ in (*recordings.SHORT, *recordings.LONG):
        LockStep(seed=seed, counter=counter).replay(recorded[play, seed].actions)
    assert counter.events["time limit"], "no player lived to the default time limit"
    for seed in range(1000, 1005):
        game = LockStep(seed=seed, counter=counter)
        for episode in range(10):
            stickiness = 0.0 if episode % 2 == 0 else 0.8
            game.play(RandomPlayer(10 * seed + episode, stickiness=stickiness))
    for seed in range(3):
        LockStep(seed=seed, length=150, counter=counter).play(RandomPlayer(seed))
    print(counter.report())
    missing = counter.missing(ALL_EVENTS, ACHIEVEMENTS)
    assert not missing, f"never compared: {missing}\n{counter.report()}"
    assert counter.episodes >= 100
    assert counter.steps >= 50_000
    assert counter.events["night"] >= 5_000
    assert counter.events["asleep"] >= 1_000


def test_many_worlds() -> None:
    """World generation alone, over many seeds: every cell and creature after one step."""
    for seed in range(5000, 5020):
        game = LockStep(seed=seed)
        for _ in range(10):
            game.reset()
            game.step(0)
