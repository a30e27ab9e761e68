"""One game and whoever plays it, with every step so far: forwards, back, and on from anywhere."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from achieve.app.minds import Mind, Thought
from achieve.app.worlds import NotRepeatableError, World
from achieve.errors import ConfigError
from achieve.viz.players import Seen
from achieve.viz.video import Moment

Driver = Literal["human", "agent", "recording"]


@dataclass(frozen=True)
class Point:
    """A moment of an episode: what led to it, and what it takes to go on from it."""

    action: int | None
    """The action that led here, None at the beginning."""
    by: Driver | None
    """Who took it."""
    reward: float
    total: float
    done: bool
    counts: Mapping[str, int]
    thought: Thought | None
    check: bytes
    """A digest of what was seen, of reward and end."""
    state: Any
    picture: bytes | None
    """Where the world cannot draw it again."""


class Lane:
    """A world, its points so far, and a place among them.

    Acting anywhere but at the end drops what came after. An agent that plays on from there does the same again, since
    its random stream is part of every point.

    Attributes:
        driver: who acts next.
        rewound: whether anything was ever dropped: such an episode is nobody's result.
    """

    def __init__(
        self, world: World, mind: Mind | None = None, driver: Driver = "human", recording: Sequence[int] = ()
    ) -> None:
        self.world, self.mind, self.recording = world, mind, tuple(recording)
        self.rewound = False
        self.stuck: str | None = None
        """Why there is no going back, where there is none."""
        self.points: list[Point] = []
        self.at = 0
        seen = world.reset()
        if mind is not None:
            mind.agent.check_env(np.shape(seen), len(world.actions))
        self._add(None, None, 0.0, 0.0, False, seen)
        self.changed_from = 0
        """The first point that is new since somebody last set this."""
        self.driver: Driver = "human"
        self.hand_to(driver)

    @property
    def here(self) -> Point:
        return self.points[self.at]

    @property
    def over(self) -> bool:
        """Whether the episode has ended here."""
        return self.here.done

    def hand_to(self, driver: Driver) -> None:
        """Let somebody else act from now on."""
        if driver == "agent" and self.mind is None:
            raise ConfigError("there is no agent in this game to hand over to; choose one and begin again")
        if driver == "recording" and not self.on_script:
            raise ConfigError("the recording no longer fits this game, in which something else was done; go back first")
        self.driver = driver

    @property
    def on_script(self) -> bool:
        """Whether all that was done up to here is as recorded."""
        return tuple(point.action for point in self.points[1 : self.at + 1]) == self.recording[: self.at]

    @property
    def next_action(self) -> int | None:
        """What whoever drives will do here; None if that is for a person to say, or if there is nothing left."""
        if self.over:
            return None
        if self.driver == "agent" and self.here.thought is not None:
            return self.here.thought.action
        if self.driver == "recording" and self.at < len(self.recording):
            return self.recording[self.at]
        return None

    def step(self, action: int | None = None) -> bool:
        """Act: with a person's action, or as whoever drives would. Returns whether there was anything to do."""
        chosen = self.next_action if action is None else action
        if self.over or chosen is None:
            return False
        if not 0 <= chosen < len(self.world.actions):
            raise ConfigError(f"action is {chosen}; it must be from 0 to {len(self.world.actions) - 1}")
        by: Driver = self.driver if action is None else "human"
        before = self.here
        if self.at + 1 < len(self.points):
            self.rewound = True
            del self.points[self.at + 1 :]
        seen, reward, done = self.world.step(chosen)
        self.changed_from = min(self.changed_from, self.at + 1)
        self._add(chosen, by, reward, before.total + reward, done, seen)
        self.at += 1
        return True

    def go_to(self, place: int) -> None:
        """Go to a point there has been, or to the nearest."""
        place = min(max(0, place), len(self.points) - 1)
        if place == self.at:
            return
        if self.stuck is not None:
            raise ConfigError(self.stuck)
        point = self.points[place]
        try:
            self.world.load(point.state)
        except NotRepeatableError as error:
            self.stuck = str(error)
            raise
        if self.mind is not None and point.thought is not None:
            self.mind.return_to(point.thought)
        self.at = place

    def picture(self) -> bytes:
        """Return the game here, as PNG."""
        return self.here.picture or self.world.picture()

    def unlocked(self, place: int | None = None) -> dict[str, int]:
        """Return the steps at which achievements were first unlocked, up to here or to another place."""
        found: dict[str, int] = {}
        last: Mapping[str, int] = {}
        for step, point in enumerate(self.points[: (self.at if place is None else place) + 1]):
            if point.counts is not last:
                last = point.counts
                for name, count in last.items():
                    if count:
                        found.setdefault(name, step)
        return found

    def by_hand(self) -> bool:
        """Return whether one person played all of it, in one go."""
        return not self.rewound and all(point.by == "human" for point in self.points[1:])

    def moments(self) -> Iterator[Moment]:
        """Yield the whole episode for a video, in a world of its own so that the game can go on."""
        from achieve.app.worlds import make_world

        world = make_world(self.world.env, self.world.seed)
        points, names = list(self.points), self.world.achievements
        unlocked = self.unlocked(len(points) - 1)
        try:
            world.reset()
            for step, point in enumerate(points):
                if point.action is not None:
                    world.step(point.action)
                so_far = tuple((name, at) for name, at in unlocked.items() if at <= step)
                action = "start" if point.action is None else self.world.actions[point.action]
                yield Moment(world.frame(), step, action, so_far, point.total, names)
        finally:
            world.close()

    def close(self) -> None:
        self.world.close()

    def _add(
        self, action: int | None, by: Driver | None, reward: float, total: float, done: bool, seen: Seen
    ) -> None:
        # At the end there is nothing left to decide, and the agent's random stream is left alone.
        thinking = self.mind is not None and not done
        thought = self.mind.think(seen, None if action is None else reward) if thinking and self.mind else None
        picture = None if self.world.redraws else self.world.picture()
        check = digest(seen, reward, done)
        self.points.append(
            Point(action, by, reward, total, done, self.world.counts, thought, check, self.world.save(), picture)
        )


def digest(seen: Seen, reward: float, done: bool) -> bytes:
    """Return eight bytes that tell whether a step came out the same, to the bit."""
    data = np.ascontiguousarray(seen).tobytes() + struct.pack("<d?", reward, done)
    return hashlib.blake2b(data, digest_size=8).digest()
