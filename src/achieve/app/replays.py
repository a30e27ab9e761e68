"""Episodes as files that play again bit for bit: the world, the actions, and a check of every step."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import achieve
from achieve.app.lanes import Lane, digest
from achieve.app.worlds import make_world
from achieve.config import EnvConfig, from_dict
from achieve.errors import AchieveError, ConfigError, RunFolderError
from achieve.run.files import explained
from achieve.settings import NonNegativeInt, Range, UnfitError, convert, parse_json, shown
from achieve.trust import trusted

FORMAT = "achieve-replay"
VERSION = 1
LONGEST = 1_000_000
MOST_BYTES = 64 * 2**20


class ReplayError(RunFolderError):
    """A replay file that cannot be used."""


class DivergedReplayError(AchieveError):
    """A replay that did not come out as recorded."""


@dataclass(frozen=True)
class Replay:
    """An episode, or the beginning of one.

    Attributes:
        env: the environment, and what it was made with.
        world: its seed.
        actions: one for each step.
        checks: what :func:`achieve.app.lanes.digest` gives for the first observation and for each step.
        players: who took how many actions, one after the other.
        agent: the name of the agent, if there was one.
    """

    env: EnvConfig
    world: int
    actions: tuple[int, ...]
    checks: tuple[bytes, ...]
    players: tuple[tuple[str, int], ...] = ()
    agent: str | None = None

    def as_bytes(self) -> bytes:
        """Return the file's content."""
        env = {"name": self.env.name, "unlock_threshold": self.env.unlock_threshold, "options": list(self.env.options)}
        record = {
            "format": FORMAT,
            "version": VERSION,
            "made_with": f"achieve {achieve.__version__}",
            "env": env,
            "world": self.world,
            "agent": self.agent,
            "players": [list(part) for part in self.players],
            "actions": list(self.actions),
            "checks": [check.hex() for check in self.checks],
        }
        return (json.dumps(record) + "\n").encode()


def replay_of(lane: Lane) -> Replay:
    """Return what was played in a lane so far, up to its last step."""
    points = lane.points
    players = tuple((by or "", len(list(group))) for by, group in groupby(point.by for point in points[1:]))
    actions = tuple(point.action for point in points[1:] if point.action is not None)
    checks = tuple(point.check for point in points)
    agent = lane.mind.name if lane.mind is not None else None
    return Replay(lane.world.env, lane.world.seed, actions, checks, players, agent)


_HINTS = {
    "format": str,
    "version": NonNegativeInt,
    "env": dict[str, Any],
    "world": NonNegativeInt,
    "agent": str | None,
    "players": list[Annotated[list[Any], Range(2, 2)]],
    "actions": Annotated[list[NonNegativeInt], Range(0, LONGEST)],
    "checks": Annotated[list[str], Range(1, LONGEST + 1)],
}


def read_replay(path: Path, *, env: str | None = None, trust: bool = False) -> Replay:
    """Read a replay file. Code that it names is refused as in :func:`achieve.agent.load_agent`."""
    with explained(f"{path} cannot be read", ReplayError):
        if path.stat().st_size > MOST_BYTES:
            raise ReplayError(f"{path} has {path.stat().st_size:,} bytes; no replay is so large")
        data = path.read_bytes()
    try:
        record = parse_json(data)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ReplayError(f"{path} is not a replay; achieve play writes them")
        if record.get("version") != VERSION:
            raise ReplayError(
                f"{path} has format {shown(record.get('version'))}, this version of achieve reads {VERSION}; "
                "use the one that wrote it"
            )
        given = convert(_HINTS, {name: record[name] for name in _HINTS if name in record}, "replay")
        checks = tuple(bytes.fromhex(check) for check in given["checks"])
        config = from_dict({"env": {"num_envs": 1, **given["env"]}})
        players = tuple((str(by), int(count)) for by, count in given["players"])
    except ReplayError:
        raise
    except (ValueError, TypeError, OverflowError, UnfitError, ConfigError) as error:
        raise ReplayError(f"{path} is not a replay that can be used: {error}") from error
    if len(checks) != len(given["actions"]) + 1:
        raise ReplayError(f"{path} has checks for {len(checks) - 1} steps and {len(given['actions'])} actions")
    config = trusted(config, path, env=env, trust=trust)
    return Replay(config.env, given["world"], tuple(given["actions"]), checks, players, given["agent"])


def verify(replay: Replay, progress: Callable[[int], None] = lambda step: None) -> float:
    """Play it again and compare every step; return the return. A DivergedReplayError names the first that differs."""
    with closing(make_world(replay.env, replay.world)) as world:
        seen, total = world.reset(), 0.0
        _compare(replay, 0, digest(seen, 0.0, False))
        done = False
        for step, action in enumerate(replay.actions, 1):
            if done:
                raise DivergedReplayError(f"the episode ends at step {step - 1}, the recording has more steps")
            if action >= len(world.actions):
                raise DivergedReplayError(f"step {step} takes action {action}; there are {len(world.actions)}")
            seen, reward, done = world.step(action)
            total += reward
            _compare(replay, step, digest(seen, reward, done))
            progress(step)
    return total


def _compare(replay: Replay, step: int, check: bytes) -> None:
    if check != replay.checks[step]:
        where = "the first observation" if step == 0 else f"step {step} of {len(replay.actions)}"
        raise DivergedReplayError(
            f"{where} came out differently from what was recorded: the file was changed, or the environment has been "
            "since"
        )

