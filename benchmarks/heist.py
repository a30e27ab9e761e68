"""How fast Heist is here: bare Procgen, and with locks seen in the pixels or read from every state, in turns.

    python benchmarks/heist.py                       # a minute or two
    python benchmarks/heist.py --quick               # some seconds
    python benchmarks/heist.py --markdown heist.md

Random actions, resets included. Rates are of wall time; beside them stands how much of the processors the run got, for
on a machine with other work a rate says little, and the CPU time of a step, which other work changes less.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

_HERE = pathlib.Path(__file__).resolve().parent
if importlib.util.find_spec("achieve") is None:
    sys.path.insert(0, str(_HERE.parent / "src"))

from achieve.envs.heist.games import NUM_ACTIONS, Games, make_procgen  # noqa: E402
from achieve.envs.heist.vec import HeistVecEnv  # noqa: E402

PACKAGES = ("achieve", "procgen-mirror", "gym3", "numpy")
Row = tuple[str, str, str, str]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bare(num_envs: int, threads: int) -> Callable[[np.ndarray], object]:
    """Procgen's own step, without rewards for locks."""
    env = make_procgen(num_envs, 0 if threads == 1 else threads)
    env.observe()

    def step(actions: np.ndarray) -> None:
        env.act(actions)
        env.observe()

    return step


def watched(num_envs: int, threads: int) -> Callable[[np.ndarray], object]:
    """The vector environment as the learner uses it."""
    vec = HeistVecEnv(num_envs, list(range(num_envs)), threads, infos="none")
    out = np.empty(vec.observation_space.shape, np.uint8)
    vec.reset(out=out)
    return lambda actions: vec.step(actions, out=out)


def read(num_envs: int, threads: int) -> Callable[[np.ndarray], object]:
    """The obvious way: every game's whole state after every step."""
    games = Games(num_envs, threads)
    games.seed(list(range(num_envs)))
    games.start_over()

    def step(actions: np.ndarray) -> None:
        games.step(actions)
        for i in range(num_envs):
            games.read(i)

    return step


WAYS = {"bare Procgen": bare, "locks seen in the pixels": watched, "every state read": read}


def rates(num_envs: int, threads: int, steps: int, rounds: int) -> list[Row]:
    """Steps per second of each way, in turns, so that all see the same machine."""
    actions = np.random.default_rng(0).integers(0, NUM_ACTIONS, (steps, num_envs))
    runs = {name: make(num_envs, threads) for name, make in WAYS.items()}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, step in runs.items():
            begun, used = time.perf_counter(), time.process_time()
            for chosen in actions:
                step(chosen)
            if turn:  # the first warms up
                wall[name].append(time.perf_counter() - begun)
                cpu[name].append(time.process_time() - used)
    taken = steps * num_envs
    rows = []
    for name in runs:
        rate = sorted(taken / seconds for seconds in wall[name])
        share = sum(cpu[name]) / sum(wall[name])
        rows.append(
            (
                f"{name}, {num_envs} games, {threads} thread{'s' * (threads > 1)}",
                f"{statistics.median(rate):,.0f} ({rate[0]:,.0f} to {rate[-1]:,.0f})",
                f"{share:.2f} of {min(threads, cores())}",
                f"{statistics.median(cpu[name]) / taken * 1e6:.1f}",
            )
        )
    return rows


def beginnings(num_envs: int = 64) -> tuple[float, float]:
    """Microseconds of CPU time to draw a new level, and to read where its locks are."""
    games = Games(num_envs, 1)
    begun = time.process_time()
    for _ in range(5):
        games.start_over()
    drawn = time.process_time()
    for i in [*range(num_envs)] * 5:
        games.read(i)
    scale = 1e6 / (5 * num_envs)
    return (drawn - begun) * scale, (time.process_time() - drawn) * scale


def report(quick: bool) -> str:
    steps, rounds = (60, 2) if quick else (300, 6)
    busy = os.getloadavg()[0]
    table = [("way", "steps/s (range)", "processors", "CPU µs a step")]
    for num_envs, threads in ((64, 2), (64, 1), (8, 1)):
        table += rates(num_envs, threads, steps * 64 // num_envs if num_envs < 64 else steps, rounds)
    level, locks = beginnings()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return "\n".join(
        [
            f"{platform.system()} {platform.machine()}, {cores()} cores, Python {platform.python_version()}; "
            f"{versions}; load before the run {busy:.1f}.",
            "",
            "| " + " | ".join(table[0]) + " |",
            "| --- | ---: | ---: | ---: |",
            *("| " + " | ".join(row) + " |" for row in table[1:]),
            "",
            f"An episode's start: {level:.0f} µs for the level, {locks:.0f} µs to read where its locks are.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--markdown", metavar="FILE", help="write the report there too")
    arguments = parser.parse_args()
    text = report(arguments.quick)
    print(text)
    if arguments.markdown:
        pathlib.Path(arguments.markdown).write_text(text + "\n")


if __name__ == "__main__":
    main()
