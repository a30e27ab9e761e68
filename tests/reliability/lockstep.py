"""The original Crafter and ours side by side, on seeds nobody has tried before."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from tests.envs.parity.events import ACHIEVEMENTS, EventCounter
from tests.envs.parity.lockstep import LockStep, Mismatch, Player
from tests.envs.parity.players import RandomPlayer
from tests.envs.parity.repertoire import PLAYS
from tests.envs.test_parity_settings import SETTINGS
from tests.reliability.forks import Tally, spread

STEPS = 1000
"""Compared in one job."""
WORLDS: dict[str, dict[str, Any]] = {"default": {}, **SETTINGS}
DEFAULT_SHARE = 0.5


def _player(rng: Random) -> Player:
    if rng.random() < 0.5:
        return PLAYS[rng.choice(list(PLAYS))].player()
    return RandomPlayer(rng.randrange(2**32), stickiness=rng.choice((0.0, 0.5, 0.9)))


def compare(job: tuple[str, int, int, int], make: Callable[..., LockStep] = LockStep) -> dict[str, Any]:
    """Play one job: its world, the seed of all jobs, its number, and how many steps to compare."""
    name, base, number, steps = job
    rng = Random(f"lockstep:{name}:{base}:{number}")
    counter = EventCounter()
    game = make(seed=rng.randrange(2**31), counter=counter, **WORLDS[name])
    failures = []
    try:
        while counter.steps < steps:
            game.play(_player(rng), steps - counter.steps)
    except Mismatch as difference:
        what, _, rest = str(difference).partition("\n")
        failures = [{"id": f"{name}:{base}:{number}", "what": what, "where": rest[:300]}]
    unlocked = {f"achievement {n}": 1 for n in ACHIEVEMENTS if counter.achievements[n]}
    counts = {"steps": counter.steps, "episodes": counter.episodes, "differences": len(failures), **unlocked}
    return {"counts": {**counts, f"steps {name}": counter.steps}, "failures": failures}


def lockstep(
    count: int,
    seed: int = 0,
    *,
    workers: int = 2,
    only: str | None = None,
    make: Callable[..., LockStep] = LockStep,
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Compare `count` steps; `only` is the id of one job."""
    began = time.monotonic()
    tally = Tally()
    if only:
        name, base, number = only.rsplit(":", 2)
        jobs = [(name, int(base), int(number), STEPS)]
    else:
        rng = Random(seed)
        others = [name for name in WORLDS if name != "default"]
        jobs = []
        for number in range(-(-count // STEPS)):
            name = "default" if rng.random() < DEFAULT_SHARE else others[number % len(others)]
            jobs.append((name, seed, number, min(STEPS, count - STEPS * number)))
    for done, result in enumerate(spread(lambda job: compare(job, make), jobs, workers), 1):
        tally.merge(result)
        if done % 20 == 0:
            say(f"lockstep: {tally.counts['steps']:,} steps, {tally.counts['differences']} differences")
    tally.seconds = time.monotonic() - began
    return tally
