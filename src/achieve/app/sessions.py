"""The games of one page, and the thread that steps them. It sleeps whenever nothing is to be done."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from achieve.agent import Agent
from achieve.app.human_log import HumanLog
from achieve.app.lanes import Lane, Point
from achieve.app.replays import Replay, replay_of
from achieve.app.shelf import WORLDS, Shelf, check_same, describe, worlds_for
from achieve.app.worlds import make_world
from achieve.config import EnvConfig
from achieve.envs import find_env_spec
from achieve.errors import AchieveError, ConfigError
from achieve.own_agent import PlayingAgent
from achieve.viz.graph import layout

log = logging.getLogger("achieve")

YOU = "you"
FASTEST = 60.0
MOST_WAITING = 256
"""Commands that may wait; a page that sends more is not ours."""


@dataclass(frozen=True)
class Offer:
    """What pages may choose from, and where episodes of people are logged."""

    shelf: Shelf
    envs: Mapping[str, EnvConfig]
    """Worlds to play by oneself, by name."""
    runs: Path = Path("runs")
    player: str | None = None
    """The name under which one's own episodes are logged."""
    seed: int = 0
    first: Sequence[str] = (YOU,)
    """Who plays when a page opens: one or two of ``you`` and the shelf's keys."""
    first_env: str = "crafter"
    first_world: int | None = None
    replay: Replay | None = None


@dataclass
class Update:
    """What a page has not seen yet."""

    header: dict[str, Any]
    pictures: list[bytes] = field(default_factory=list)


class Session:
    """One page's games: one lane, or two side by side in the same world.

    Everything happens in its own thread, in the order in which it was asked for. ``changed`` is called from there
    whenever there is something to show.
    """

    def __init__(self, offer: Offer, changed: Callable[[], None] = lambda: None) -> None:
        self.offer, self.changed = offer, changed
        self.lanes: list[Lane] = []
        self.players: tuple[str, ...] = ()
        self.env_name = offer.first_env
        self.playing, self.fps = False, 10.0
        self.held: int | None = None
        self._pending: int | None = None
        self._number = -1
        self._note: dict[str, str] | None = None
        self._epoch = 0
        self._fresh = True
        self._pictures: list[bytes] = []
        self._logged = False
        self._lock = threading.RLock()
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="achieve-session", daemon=True)
        self._thread.start()

    def submit(self, command: dict[str, Any]) -> None:
        """Ask for something to be done; queue.Full means that far too much was asked for."""
        self._queue.put_nowait(command)

    def close(self) -> None:
        """End the thread and the games, whatever is left to be done."""
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._queue.put(None)
        self._thread.join(30)

    def show_all(self) -> None:
        """Have the next update tell everything, for a page that has just been opened."""
        with self._lock:
            self._fresh = True

    def collect(self) -> Update | None:
        """Return what changed since the last call; None where nothing has been set up yet."""
        with self._lock:
            if not self.lanes and self._note is None:
                return None
            header: dict[str, Any] = {"kind": "update", "playing": self.playing, "fps": self.fps}
            if self._fresh and self.lanes:
                header["setup"] = self._setup()
                for lane in self.lanes:
                    lane.changed_from = 0
                self._fresh = False
            header["epoch"] = self._epoch
            header["lanes"] = [self._progress(lane) for lane in self.lanes]
            if self._note is not None:
                header["note"], self._note = self._note, None
            return Update(header, list(self._pictures))

    def replay(self, lane: int) -> Replay:
        """Return an episode so far, as a file can hold it."""
        with self._lock:
            return replay_of(self._lane(lane))

    def episode(self, lane: int) -> Lane:
        """Return a lane, to be read only."""
        with self._lock:
            return self._lane(lane)

    def _lane(self, number: int) -> Lane:
        if not 0 <= number < len(self.lanes):
            raise ConfigError("there is no such game on this page")
        return self.lanes[number]

    # The thread

    def _run(self) -> None:
        due = 0.0
        while True:
            try:
                wait = max(0.0, due - time.monotonic()) if self.playing else None
                command = self._queue.get(timeout=wait)
            except queue.Empty:
                command = {"do": "tick"}
            if command is None:
                break
            command = self._newest(command)
            if command["do"] == "tick" or (command["do"] == "play" and not self.playing):
                # On time on average, and never in a hurry to make up for what was missed.
                due = max(due + 1 / self.fps, time.monotonic())
            with self._lock:
                try:
                    getattr(self, f"_do_{command['do']}")(**{k: v for k, v in command.items() if k != "do"})
                    self._pictures = [lane.picture() for lane in self.lanes]
                except AchieveError as error:
                    self.playing = False
                    self._note = {"level": "error", "text": str(error).partition("\n\n")[0]}
                except Exception as error:  # whatever an environment of the user's may raise: the page must hear of it
                    log.exception("a game failed")
                    self.playing = False
                    self._note = {"level": "error", "text": f"The game failed: {error!r}. Begin a new one."}
            self.changed()
        with self._lock:
            for lane in self.lanes:
                lane.close()
            self.lanes = []

    def _newest(self, command: dict[str, Any]) -> dict[str, Any]:
        """Skip places that a slider has moved on from already."""
        waiting = self._queue.queue
        while command["do"] == "seek" and waiting and waiting[0] is not None and waiting[0]["do"] == "seek":
            command = self._queue.get_nowait() or command
        return command

    def _do_tick(self) -> None:
        action = self._pending if self._pending is not None else self.held
        self._pending = None
        if not self._step_all(action, wait=True):
            self.playing = False
            if any(lane.driver == "human" and not lane.over and lane.world.noop is None for lane in self.lanes):
                self._note = {"level": "info", "text": "No action of this game waits, so it only moves when you do."}

    def _do_play(self) -> None:
        self.playing = True

    def _do_pause(self) -> None:
        self.playing = False

    def _do_step(self) -> None:
        self.playing = False
        self._step_all(None, wait=True)

    def _do_act(self, action: int) -> None:
        """A key was pressed: act at once or, in real time, at the next tick."""
        if self.playing:
            self._pending = action
        else:
            self._step_all(action, wait=False)

    def _do_hold(self, action: int | None) -> None:
        """A key is being held down, or no more; it counts in real time."""
        self.held = action

    def _do_seek(self, to: int) -> None:
        self.playing = False
        for lane in self.lanes:
            lane.go_to(to)

    def _do_speed(self, fps: float) -> None:
        self.fps = min(FASTEST, max(0.5, fps))

    def _do_hand(self, lane: int, to: str) -> None:
        self._lane(lane).hand_to(to)  # type: ignore[arg-type]
        self.held = self._pending = None

    def _do_discover(self, lane: int) -> None:
        """Show what an agent has discovered, now that it is known; the game begins again."""
        if self._lane(lane).mind is None:
            raise ConfigError("there is no agent in this game that could have discovered anything")
        if self.offer.shelf.find_again(self.players[lane]):
            self._begin(self.players, self.env_name, self.lanes[0].world.seed)

    def _do_new(self, players: Sequence[str] | None = None, env: str | None = None, world: int | None = None) -> None:
        if players is None and not self.players and self.offer.replay is not None:
            self._begin_replay(self.offer.replay)
            return
        if players is None and not self.lanes:
            players, env, world = self.offer.first, self.offer.first_env, self.offer.first_world
        self._begin(tuple(players or self.players), env or self.env_name, world)

    def _begin(self, players: tuple[str, ...], env_name: str, world: int | None) -> None:
        if not 1 <= len(players) <= 2 or players.count(YOU) > 1:
            raise ConfigError("one or two play, and at most one of them is you")
        shelf = self.offer.shelf
        agents: list[PlayingAgent] = [shelf.get(key).agent for key in players if key != YOU]
        check_same([agent.config.env for agent in agents])
        if agents:
            env = agents[0].config.env
        elif env_name in self.offer.envs:
            env = self.offer.envs[env_name]
        else:
            raise ConfigError(f"there is no world {env_name!r} here")
        if world is None:
            self._number += 1
            world = worlds_for([agent.config for agent in agents], self.offer.seed, self._number)
        if not 0 <= world < WORLDS:
            raise ConfigError(f"world is {world}; it must be from 0 to {WORLDS - 1}")
        # Alone, an agent can be taken over from; beside you, it plays its own game.
        minds = [
            None if key == YOU else shelf.mind(key, world, place - players[:place].count(YOU))
            for place, key in enumerate(players)
        ]
        made: list[Lane] = []
        try:
            for mind in minds:
                made.append(Lane(make_world(env, world), mind, "human" if mind is None else "agent"))
        except BaseException:
            for lane in made:
                lane.close()
            raise
        self._take(made, players, env.name if not agents else env_name)

    def _begin_replay(self, replay: Replay) -> None:
        lane = Lane(make_world(replay.env, replay.world), None, "recording", replay.actions)
        self._take([lane], (), replay.env.name)

    def _take(self, lanes: list[Lane], players: tuple[str, ...], env_name: str) -> None:
        for lane in self.lanes:
            lane.close()
        self.lanes, self.players, self.env_name = lanes, players, env_name
        self.playing, self.held, self._pending, self._logged = False, None, None, False
        self._fresh = True
        self._epoch += 1

    def _step_all(self, action: int | None, *, wait: bool) -> bool:
        """Step every lane: a person's with ``action`` or, to ``wait``, with none; returns whether any moved."""
        moved = False
        for lane in self.lanes:
            own = action if lane.driver == "human" else None
            if lane.driver == "human" and own is None and wait:
                own = lane.world.noop
            moved |= lane.step(own)
        for lane in self.lanes:
            if lane.over and lane.at == len(lane.points) - 1:
                self._log(lane)
        return moved

    def _log(self, lane: Lane) -> None:
        """Keep a person's finished episode, once; an episode that was helped along is nobody's."""
        if self._logged or lane.here.by != "human":
            return
        if not lane.by_hand():
            self._logged = True
            why = "you went back in it" if lane.rewound else "you did not play all of it"
            self._note = {"level": "info", "text": f"The episode is over. It is not logged, since {why}."}
            return
        log = HumanLog(self.offer.runs, lane.world.env, self.offer.player)
        count = log.append(lane)
        self._logged = True  # not before: what could not be written is tried again with the next key
        self._note = {"level": "info", "text": f"Episode {count} is logged in {log.path}."}

    # What pages are told

    def _setup(self) -> dict[str, Any]:
        world = self.lanes[0].world
        return {
            "env": self.env_name,
            "title": find_env_spec(world.env.name).title,
            "world": world.seed,
            "actions": list(world.actions),
            "achievements": list(world.achievements),
            "keys": world.keys,
            "threshold": world.env.threshold,
            "lanes": [self._about(number, lane) for number, lane in enumerate(self.lanes)],
        }

    def _about(self, number: int, lane: Lane) -> dict[str, Any]:
        about: dict[str, Any] = {"player": self.players[number] if self.players else "recording"}
        if lane.mind is None:
            return about | {"agent": None, "recorded": len(lane.recording)}
        agent, clusters = lane.mind.agent, lane.mind.clusters
        if not isinstance(agent, Agent):
            return about | {"agent": lane.mind.name, "trained": "of another library"}
        head: dict[str, Any] = {"predicts": agent.predicts, "remembers": agent.config.model.memory_size > 0}
        if clusters is not None:
            places = layout(clusters.names, clusters.edges)
            head["clusters"] = [
                {"name": name, "label": label, "x": places[name][0], "y": places[name][1]}
                for name, label in zip(clusters.names, clusters.labels, strict=True)
            ]
            head["edges"] = [[clusters.names.index(a), clusters.names.index(b)] for a, b in clusters.edges]
        return about | {"agent": lane.mind.name, "trained": describe(agent.config), "head": head}

    def _progress(self, lane: Lane) -> dict[str, Any]:
        first = lane.changed_from
        points = lane.points
        told = [self._point(points[n], points[n - 1] if n else None) for n in range(first, len(points))]
        lane.changed_from = len(points)
        known = {"at": lane.at, "from": first, "points": told, "driver": lane.driver, "over": lane.over}
        has = {name: count for name, count in lane.world.inventory.items() if count}
        return known | {"stuck": lane.stuck, "script": bool(lane.recording) and lane.on_script, "has": has}

    @staticmethod
    def _point(point: Point, before: Point | None) -> dict[str, Any]:
        told: dict[str, Any] = {"a": point.action, "by": point.by, "r": round(point.reward, 3)}
        told |= {"total": round(point.total, 3), "done": point.done}
        if before is not None and point.counts is not before.counts:
            new = [n for n, name in enumerate(point.counts) if point.counts[name] and not before.counts.get(name)]
            told |= {"new": new} if new else {}
        return told if point.thought is None else told | point.thought.as_dict()

