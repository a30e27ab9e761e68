"""How fast MiniGrid is here: compiled, and as MiniGrid itself plays and draws it, side by side.

    python benchmarks/minigrid.py                    # two minutes
    python benchmarks/minigrid.py --quick            # some seconds
    python benchmarks/minigrid.py --json minigrid.json --markdown minigrid.md

Everything runs on one thread and is CPU time, so that other work on the machine matters little.
"""

from __future__ import annotations

import importlib.util
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from report import Table, machine, options, publish, rate

_HERE = pathlib.Path(__file__).resolve().parent
# Python puts a script's folder first on its path, where this file would pass for `minigrid` itself.
sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != _HERE]
if importlib.util.find_spec("achieve") is None:
    sys.path.insert(0, str(_HERE.parent / "src"))

from minigrid.wrappers import RGBImgPartialObsWrapper  # noqa: E402

from achieve.envs.minigrid import DoorKeyTreeEnv, DoorKeyTreeVecEnv  # noqa: E402
from achieve.envs.minigrid.engine import (  # noqa: E402
    CARRYING,
    DIRECTION,
    EMPTY,
    FIRST_DOOR,
    OPEN,
    STEPS,
    X,
    Y,
    draw_all,
    reset_all,
)

PACKAGES = ("achieve", "minigrid", "numpy", "numba", "gymnasium")
SKILLED = 83
"""Mean length of the episodes of a player who knows the level, which are the shortest and so need the most resets."""


class PlainPlay:
    """Random play of the plain environment through MiniGrid's own wrapper for images of the partial view."""

    def __init__(self) -> None:
        self.env = RGBImgPartialObsWrapper(DoorKeyTreeEnv(), tile_size=9)
        self.env.reset(seed=0)
        self.rng = np.random.default_rng(0)

    def steps(self, count: int) -> int:
        for action in self.rng.integers(0, 7, count).tolist():
            _, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                self.env.reset()
        return count


class VectorPlay:
    """Random play of the vector environment into one observation buffer, as a learner uses it: without infos."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        self.vec = DoorKeyTreeVecEnv(num_envs, seed=0, infos="none", **kwargs)
        self.out, _ = self.vec.reset()
        self.actions = np.random.default_rng(0).integers(0, 7, (512, num_envs))

    def steps(self, count: int) -> int:
        for tick in range(max(1, count // self.vec.num_envs)):
            self.vec.step(self.actions[tick % 512], out=self.out)
        self.vec.pop_episodes()
        return max(1, count // self.vec.num_envs) * self.vec.num_envs


def rates(rounds: int, seconds: float) -> Table:
    """Both in turns, so that both see the same machine."""
    plain = PlainPlay()
    contestants: dict[str, Callable[[], int]] = {"MiniGrid, one environment": partial(plain.steps, 50)}
    for num_envs in (1, 8, 64, 1024):
        contestants[f"vector environment of {num_envs:,}"] = partial(VectorPlay(num_envs).steps, 4096)
    skilled = VectorPlay(64, max_steps=SKILLED)
    contestants[f"the same of 64, a reset every {SKILLED} steps"] = partial(skilled.steps, 4096)
    for work in contestants.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            found[name].append(rate(work, seconds))
    reference = next(iter(found.values()))
    rows: list[tuple[Any, ...]] = []
    for name, values in found.items():
        times = [ours / theirs for ours, theirs in zip(values, reference, strict=True)]
        rows.append((name, statistics.median(values), min(values), max(values), statistics.median(times)))
    return Table(
        "One thread, random actions, resets and images included",
        ("environment", "steps/s", "slowest round", "fastest round", "times MiniGrid"),
        rows,
        f"CPU time; {rounds} rounds of {seconds:g} s each, in turns; medians. MiniGrid is `DoorKeyTreeEnv` with "
        "MiniGrid's `RGBImgPartialObsWrapper` at 9 pixels a tile, whose tiles are cached by MiniGrid too.",
    )


def time_breakdown(seconds: float) -> Table:
    """Microseconds per reset, per action and per image."""
    play, plain = VectorPlay(64), PlainPlay()
    vec, env = play.vec, plain.env.unwrapped
    images = play.out.reshape(64, 64, 192)

    def microseconds(call: Callable[[], Any], units: int = 1) -> float:
        def work() -> int:
            call()
            return units

        return 1e6 / rate(work, seconds)

    draw = microseconds(lambda: draw_all(vec._layout, vec._worlds, images), 64)
    reset = microseconds(lambda: reset_all(vec._layout, vec._worlds, images), 64) - draw
    step = microseconds(lambda: play.steps(4096), 4096) - draw
    image = microseconds(lambda: env.get_frame(tile_size=9, agent_pov=True))
    turn = microseconds(lambda: env.step(0))
    level = microseconds(env.reset)
    rows = [("reset", reset, level), ("action", step, turn), ("image", draw, image)]
    return Table(
        "Where the time goes",
        ("phase", "ours, us", "MiniGrid, us", "times"),
        [(*row, row[2] / row[1]) for row in rows],
        "CPU time per environment: ours in a vector environment of 64, its Python spread over them; its reset and "
        "action are differences of two measurements. MiniGrid's reset and action include the encoded view that it "
        "always computes.",
    )


def random_agent(episodes: int) -> Table:
    """How far random actions get: one episode in each of many environments."""
    vec = DoorKeyTreeVecEnv(episodes, seed=0, infos="none")
    vec.reset()
    achieved = play_at_random(vec)
    rows: list[tuple[Any, ...]] = [
        (name, 100 * float(share)) for name, share in zip(vec.achievement_names, achieved.mean(0), strict=True)
    ]
    note = f"{episodes:,} episodes, with a mean return of {achieved.sum(1).mean():.2f}."
    return Table("A random agent", ("achievement", "success, %"), rows, note)


def play_at_random(vec: DoorKeyTreeVecEnv) -> np.ndarray:
    """Random actions to the end of each environment's episode; [n, achievements], 1 for what was achieved."""
    rng, out = np.random.default_rng(0), vec.observe()
    for _ in range(vec._layout.max_steps):
        vec.step(rng.integers(0, 7, vec.num_envs), out=out)
    # Of an environment that ended early, only the first episode counts.
    ended = vec.pop_episodes()
    return ended.achievements[np.unique(ended.env, return_index=True)[1]]


def give_key(vec: DoorKeyTreeVecEnv, room: int) -> None:
    """Takes every episode to where the key of ``room`` was just picked up, and those before it were used up."""
    first_item = FIRST_DOOR + 3 * vec.tree.rooms
    for grid, agent, unlocked in zip(vec._worlds.grid, vec._worlds.agent, vec._worlds.unlocked, strict=True):
        (key_y,), (key_x,) = np.nonzero(grid == first_item + room)
        beside = [(key_x - 1, key_y, 0), (key_x, key_y - 1, 1), (key_x + 1, key_y, 2), (key_x, key_y + 1, 3)]
        agent[[X, Y, DIRECTION]] = next(pose for pose in beside if grid[pose[1], pose[0]] == EMPTY)
        agent[CARRYING], agent[STEPS] = room, 0
        for earlier in range(room + 1):
            door = FIRST_DOOR + 3 * earlier
            grid[(grid >= door) & (grid < door + 3)] = door + OPEN
            grid[grid == first_item + earlier] = EMPTY
            unlocked[2 * earlier : 2 * earlier + 2] = 1


def next_door(episodes: int) -> Table:
    """How often random actions open the door whose key is in hand: what there is to learn from at that stage."""
    rows: list[tuple[Any, ...]] = []
    for keep_keys in (True, False):
        for room_size in (5, 4):
            shares = []
            for room in (0, 3):
                vec = DoorKeyTreeVecEnv(episodes, seed=0, infos="none", room_size=room_size, keep_keys=keep_keys)
                vec.reset()
                give_key(vec, room)
                shares.append(100 * float(play_at_random(vec)[:, 2 * room + 2].mean()))
            rows.append((f"{'kept' if keep_keys else 'droppable'}, room_size {room_size}", *shares))
    return Table(
        "A random agent with a key in hand",
        ("keys", "red door, %", "yellow door, %"),
        rows,
        f"Episodes in which random actions open the door that the key fits, of {episodes:,} each, which begin where "
        "the key was just picked up, all doors before its own open and their keys gone. `keep_keys` is the default; "
        "by MiniGrid's own rules keys can be dropped.",
    )


def main(argv: list[str] | None = None) -> None:
    args = options(__doc__, 2).parse_args(argv)
    rounds = args.rounds or (3 if args.quick else 7)
    seconds = args.seconds or (0.5 if args.quick else 2.0)
    episodes = 1024 if seconds >= 0.5 else 64

    def tables() -> Iterator[Table]:
        yield machine(PACKAGES)
        yield rates(rounds, seconds)
        yield time_breakdown(seconds)
        yield random_agent(episodes)
        yield next_door(episodes)

    publish("MiniGrid", f"python benchmarks/minigrid.py --rounds {rounds} --seconds {seconds:g}", tables(), args)


if __name__ == "__main__":
    main()
