"""Plays the reference and our environment side by side and compares all they return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Protocol

import crafter
import numpy as np

from .events import EventCounter
from .reference import make_reference

ACTION_NAMES: tuple[str, ...] = tuple(crafter.constants.actions)


class Mismatch(AssertionError):
    """Our environment returned something the original did not."""


class Player(Protocol):
    """Chooses actions from what the game has shown so far."""

    def act(self, info: dict[str, Any] | None) -> int:
        """The next action; `info` is None before an episode's first step."""
        ...


@dataclasses.dataclass
class Episode:
    """How one compared episode went."""

    steps: int
    done: bool
    info: dict[str, Any]


class LockStep:
    """The reference and `CrafterEnv` with the same arguments, compared at every reset and step."""

    def __init__(self, *, seed: int, counter: EventCounter | None = None, **kwargs: Any) -> None:
        from achieve.envs.crafter import CrafterEnv

        self.kwargs = {"seed": seed, **kwargs}
        self.counter = counter if counter is not None else EventCounter()
        self.reference = make_reference(**self.kwargs)
        self.ours = CrafterEnv(**self.kwargs)
        self.actions: list[int] = []
        self.episode = 0

    def reset(self) -> np.ndarray:
        """Starts the next episode in both and returns its first observation."""
        self.episode += 1
        self.actions = []
        expected = self.reference.reset()
        observation, _ = self.ours.reset()
        self._compare_observation(expected, observation)
        self.counter.begin(self.reference)
        return expected

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        """Takes one step in both and returns what the reference returned."""
        self.actions.append(int(action))
        self.counter.before(self.reference, action)
        expected, reward, done, info = self.reference.step(action)
        self.counter.after(self.reference, done)
        our_observation, our_reward, terminated, truncated, our_info = self.ours.step(action)
        self._compare_scalar("reward", reward, our_reward)
        dead = info["discount"] == 0.0
        self._compare_scalar("terminated", dead, terminated)
        self._compare_scalar("truncated", bool(done) and not dead, truncated)
        self._compare_info(info, our_info)
        self._compare_observation(expected, our_observation)
        return expected, reward, bool(done), info

    def play(self, player: Player, max_steps: int | None = None) -> Episode:
        """Plays one episode to its end, or for `max_steps`."""
        self.reset()
        info: dict[str, Any] | None = None
        done = False
        steps = 0
        while not done and (max_steps is None or steps < max_steps):
            *_, done, info = self.step(player.act(info))
            steps += 1
        assert info is not None
        return Episode(steps, done, info)

    def replay(self, actions: Iterable[int]) -> Episode:
        """Plays the given actions, to the end of the episode at the latest."""
        self.reset()
        info: dict[str, Any] = {}
        done = False
        steps = 0
        for action in actions:
            *_, done, info = self.step(action)
            steps += 1
            if done:
                break
        return Episode(steps, done, info)

    def _fail(self, what: str, detail: str) -> None:
        last = "at reset"
        if self.actions:
            last = f"after step {len(self.actions)} ({ACTION_NAMES[self.actions[-1]]})"
        raise Mismatch(
            f"{what} differs {last} of episode {self.episode} with {self.kwargs}\n{detail}\n"
            f"actions so far: {self.actions}"
        )

    def _compare_scalar(self, what: str, expected: Any, got: Any) -> None:
        if type(got) is not type(expected) or got != expected:
            types = f"{type(expected).__name__}, {type(got).__name__}"
            self._fail(what, f"expected {expected!r}, got {got!r} (types: {types})")

    def _compare_array(self, what: str, expected: np.ndarray, got: Any) -> None:
        if not isinstance(got, np.ndarray):
            self._fail(what, f"expected an array, got {type(got).__name__}")
        if got.dtype != expected.dtype or got.shape != expected.shape:
            self._fail(
                what,
                f"expected {expected.dtype}{expected.shape}, got {got.dtype}{got.shape}",
            )
        if not np.array_equal(expected, got):
            self._fail(what, _describe_difference(expected, got))

    def _compare_observation(self, expected: np.ndarray, got: Any) -> None:
        self._compare_array("observation", expected, got)

    def _compare_info(self, expected: dict[str, Any], got: Any) -> None:
        if type(got) is not dict or list(got) != list(expected):
            self._fail("info", f"expected a dict of {list(expected)}, got {got!r}")
        for key, value in expected.items():
            if isinstance(value, np.ndarray):
                self._compare_array(f"info[{key!r}]", value, got[key])
            elif isinstance(value, dict):
                if type(got[key]) is not dict or list(got[key]) != list(value):
                    self._fail(f"info[{key!r}]", f"expected {value!r}, got {got[key]!r}")
                for name in value:
                    self._compare_scalar(f"info[{key!r}][{name!r}]", value[name], got[key][name])
            else:
                self._compare_scalar(f"info[{key!r}]", value, got[key])


def _describe_difference(expected: np.ndarray, got: np.ndarray) -> str:
    """Where two arrays of one shape differ: how often, within which box, and the first few."""
    where = np.argwhere(expected != got)
    box = f"from {where.min(axis=0).tolist()} to {where.max(axis=0).tolist()}"
    lines = [f"{len(where)} of {expected.size} entries, {box}"]
    for index in where[:12]:
        at = tuple(index)
        lines.append(f"  {list(map(int, at))}: expected {expected[at]}, got {got[at]}")
    return "\n".join(lines)
