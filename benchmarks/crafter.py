"""How fast Crafter is here: our environment and the original, side by side in one run.

    python benchmarks/crafter.py                     # some minutes
    python benchmarks/crafter.py --quick             # a minute
    python benchmarks/crafter.py --many              # all cores, up to 1,024 environments
    python benchmarks/crafter.py --json crafter.json --markdown crafter.md

Single-thread figures are CPU time, vector figures wall time. Nothing else should be running.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from report import Table, machine, options, publish, rate, usable_cores

_HERE = pathlib.Path(__file__).resolve().parent
# Python puts a script's folder first on its path, where this file would pass for `crafter` itself.
sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != _HERE]
if importlib.util.find_spec("achieve") is None:
    sys.path.insert(0, str(_HERE.parent / "src"))

import crafter  # noqa: E402

from achieve.envs import make_vec  # noqa: E402
from achieve.envs.crafter import CrafterEnv  # noqa: E402
from achieve.envs.crafter.batch import RENDER  # noqa: E402

NUM_ACTIONS = 17
PACKAGES = ("achieve", "crafter", "opensimplex", "numpy", "numba", "pillow", "gymnasium")


def play_single(env: CrafterEnv, actions: Iterator[int], steps: int) -> int:
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()
    return steps


def play_original(env: Any, actions: Iterator[int], steps: int) -> int:
    for _ in range(steps):
        if env.step(next(actions))[2]:
            env.reset()
    return steps


def random_actions(seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.integers(0, NUM_ACTIONS, 4096).tolist()


class VectorPlay:
    """Random play of a vector environment into one observation buffer, as a learner uses it: without infos."""

    def __init__(self, num_envs: int, threads: int, seed: int = 0, **kwargs: Any) -> None:
        kwargs.setdefault("infos", "none")
        self.vec: Any = make_vec("crafter", num_envs=num_envs, seed=seed, threads=threads, **kwargs)
        self.num_envs = num_envs
        self.out, _ = self.vec.reset()
        self.actions = np.random.default_rng(seed).integers(0, NUM_ACTIONS, (512, num_envs))
        self.tick = 0
        self.ended = 0

    def steps(self, ticks: int) -> int:
        for _ in range(ticks):
            self.vec.step(self.actions[self.tick % 512], out=self.out)
            self.tick += 1
        self.ended = len(self.vec.pop_episodes().env)
        return ticks * self.num_envs


def single_thread(rounds: int, seconds: float) -> Table:
    """Ours and the original in turns, so that both see the same machine."""
    original, original_actions = crafter.Env(seed=0), random_actions(0)
    original.reset()
    ours, actions = CrafterEnv(seed=0), random_actions(0)
    ours.reset()
    vector = VectorPlay(8, threads=1)
    contestants: dict[str, Callable[[], int]] = {
        "crafter.Env": lambda: play_original(original, original_actions, 50),
        "CrafterEnv": lambda: play_single(ours, actions, 500),
        "make_vec, 8 environments": lambda: vector.steps(64),
    }
    for work in contestants.values():
        work()
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            rates[name].append(rate(work, seconds))
    reference = rates["crafter.Env"]
    rows: list[tuple[Any, ...]] = []
    for name, values in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(values, reference, strict=True)]
        rows.append(
            (name, statistics.median(values), min(values), max(values), statistics.median(ratios))
        )
    return Table(
        "One thread, random actions, resets included",
        ("environment", "steps/s", "slowest round", "fastest round", "times crafter"),
        rows,
        f"CPU time; {rounds} rounds of {seconds:g} s each, in turns; medians. `crafter` runs with "
        "numba installed. `CrafterEnv` and `crafter.Env` build the full infos at every step.",
    )


def time_breakdown(seconds: float) -> Table:
    """Microseconds per reset, per update and per frame, by day and by night."""
    ours = _our_phases(seconds)
    original = _original_phases(seconds)
    rows = [(phase, ours[phase], original[phase], original[phase] / ours[phase]) for phase in ours]
    env = CrafterEnv(seed=1)
    env.reset()
    moments: list[float] = []
    for action, _ in zip(random_actions(4), range(100), strict=False):
        begin = time.perf_counter()
        env.step(action)
        moments.append(time.perf_counter() - begin)
    extra = 1e6 * statistics.median(moments) - ours["update"] - ours["drawing by day"]
    return Table(
        "Where the time goes",
        ("phase", "ours, us", "crafter, us", "times"),
        rows,
        "CPU time per environment: ours within a vector environment on one thread, the original's "
        f"in `crafter.Env`. `CrafterEnv.step` adds about {extra:.0f} us of Python, most of it for "
        "the infos.",
    )


def _our_phases(seconds: float) -> dict[str, float]:
    """Many worlds kept at the same time of day, so that each phase can be timed by itself."""
    play = VectorPlay(64, threads=1, infos="none")
    batch = play.vec._batch
    context, no_actions = batch.workspace.context, np.zeros(0, np.int64)

    def draw_all() -> int:
        batch.program.advance(RENDER, context, no_actions, play.out, 0, play.num_envs)
        return play.num_envs

    reset = 1 / rate(lambda: len(play.vec.reset(out=play.out)[0]), seconds)
    # Steps of the day or night, and frames of the same moments, in turns.
    spent = {"step by day": 0.0, "frame by day": 0.0, "step by night": 0.0}
    turns = 0
    while sum(spent.values()) < 3 * seconds:
        turns += 1
        for when, first_step in (("day", 10), ("night", 180)):
            play.vec.reset(out=play.out)
            play.steps(10)
            batch.worlds.var["step"][:] = first_step
            play.steps(1)
            begin = time.process_time()
            play.steps(20)
            # An episode that ended meanwhile has cost a reset besides.
            spent[f"step by {when}"] += time.process_time() - begin - reset * play.ended
            if when == "day":
                begin = time.process_time()
                for _ in range(20):
                    draw_all()
                spent["frame by day"] += time.process_time() - begin
    play.vec.close()
    cost = {name: seconds / (20 * turns * play.num_envs) for name, seconds in spent.items()}
    update = cost["step by day"] - cost["frame by day"]
    return {
        "reset": 1e6 * reset,
        "update": 1e6 * update,
        "drawing by day": 1e6 * cost["frame by day"],
        "drawing by night": 1e6 * (cost["step by night"] - update),
    }


def _original_phases(seconds: float) -> dict[str, float]:
    env = crafter.Env(seed=1)
    env.reset()
    totals = {phase: [0.0, 0.0] for phase in _PHASES}
    actions = random_actions(2)
    spent = 0.0
    while spent < 4 * seconds:
        moments = [time.process_time()]
        done = env.step(next(actions))[2]
        moments.append(time.process_time())
        env.render()
        moments.append(time.process_time())
        when = "night" if env._world.daylight < 0.5 else "day"
        drawing = moments[2] - moments[1]
        _add(totals[f"drawing by {when}"], drawing)
        _add(totals["update"], moments[1] - moments[0] - drawing)
        if done:
            env.reset()
            moments.append(time.process_time())
            _add(totals["reset"], moments[3] - moments[2])
        spent += moments[-1] - moments[0]
    return {phase: 1e6 * t / n if n else float("nan") for phase, (n, t) in totals.items()}


_PHASES = ("reset", "update", "drawing by day", "drawing by night")


def _add(slot: list[float], seconds: float) -> None:
    slot[0] += 1
    slot[1] += seconds


def vector_rates(
    sizes: tuple[int, ...], thread_counts: tuple[int, ...], rounds: int, seconds: float
) -> Table:
    """Steps per second of wall time for each number of environments and threads, in turns."""
    rows: list[tuple[Any, ...]] = []
    for num_envs in sizes:
        plays = {threads: VectorPlay(num_envs, threads) for threads in thread_counts}
        ticks = max(1, 512 // num_envs)
        rates: dict[int, list[float]] = {threads: [] for threads in thread_counts}
        for play in plays.values():
            play.steps(ticks)
        for _ in range(rounds):
            for threads, play in plays.items():
                work = functools.partial(play.steps, ticks)
                rates[threads].append(rate(work, seconds, time.perf_counter))
        base = rates[thread_counts[0]]
        for threads in thread_counts:
            gains = [rate / one for rate, one in zip(rates[threads], base, strict=True)]
            rows.append(
                (num_envs, threads, statistics.median(rates[threads]), statistics.median(gains))
            )
            plays[threads].vec.close()
    return Table(
        "Vector environment, random actions, resets included",
        ("environments", "threads", "steps/s", f"times {thread_counts[0]} thread"),
        rows,
        f"Wall time; {rounds} rounds of {seconds:g} s for each thread count in turns; medians.",
    )


def growth(seconds: float) -> Table:
    """Reset, step and state for several areas and views."""
    settings: list[dict[str, Any]] = [
        {"area": (32, 32)},
        {},
        {"area": (128, 128)},
        {"area": (256, 256)},
        {"view": (15, 15), "size": (120, 120)},
        {"view": (31, 31), "size": (248, 248)},
        {"size": (256, 256)},
    ]
    rows: list[tuple[Any, ...]] = []
    for kwargs in settings:
        env = CrafterEnv(seed=3, **kwargs)
        env.reset()
        resets = rate(lambda env=env: bool(env.reset()), seconds)  # type: ignore[misc]
        actions = random_actions(5)
        play_single(env, actions, 200)
        steps = rate(functools.partial(play_single, env, actions, 100), seconds)
        settings_text = ", ".join(f"{k} {v[0]}x{v[1]}" for k, v in kwargs.items()) or "defaults"
        rows.append((settings_text, 1e3 / resets, 1e6 / steps, len(env.save_state()) / 1024))
    return Table(
        "How the cost grows",
        ("setting", "reset, ms", "step with resets, us", "state, KiB"),
        rows,
        "`CrafterEnv`, CPU time, one thread; defaults: area 64x64, view 9x9, size 64x64.",
    )


def main(argv: list[str] | None = None) -> None:
    parser = options(__doc__, 3)
    parser.add_argument("--many", action="store_true", help="8, 64 and 1,024 environments on 1, 2, ... all cores")
    args = parser.parse_args(argv)
    rounds = args.rounds or (3 if args.quick else 7)
    seconds = args.seconds or (0.5 if args.quick else 3.0)
    if args.many:
        cores = usable_cores()
        thread_counts = (*(n for n in (1, 2, 4, 8, 16, 32) if n < cores), cores)
        sizes: tuple[int, ...] = (8, 64, 1024)
    else:
        thread_counts, sizes = (1, 2), (8, 64, 256)

    def tables() -> Iterator[Table]:
        yield machine(PACKAGES)
        yield single_thread(rounds, seconds)
        yield time_breakdown(seconds)
        yield vector_rates(sizes, thread_counts, rounds, seconds)
        yield growth(seconds)

    command = f"python benchmarks/crafter.py --rounds {rounds} --seconds {seconds:g}{' --many' if args.many else ''}"
    publish("Crafter", command, tables(), args)


if __name__ == "__main__":
    main()
