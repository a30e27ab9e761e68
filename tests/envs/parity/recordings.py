"""Action sequences of the scripted player, kept as data so that replaying them costs no planning.

The comparison is always with the live reference; only the choice of actions is stored. After a
change to the scripted player make them anew with

    python -m tests.envs.parity.recordings
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from .repertoire import PLAYS

PATH = pathlib.Path(__file__).parent / "data" / "plays.jsonl"
_LETTERS = "abcdefghijklmnopq"  # one for each action, in order

# (play, seed, most steps): chosen so that few steps meet every event and achievement.
SHORT: tuple[tuple[str, int, int], ...] = (
    ("complete", 1, 1200),
    ("complete", 8, 1200),
    ("clumsy", 1, 150),
    ("edge", 3, 300),
    ("mason", 7, 200),
    ("archery", 4, 800),
    ("target", 7, 70),
    ("gardener", 5, 260),
    ("gardener", 7, 125),
    ("gardener", 12, 182),
    ("hermit", 7, 310),
    ("night_watch", 1, 230),
    ("settler", 3, 1000),
    ("sleeper", 8, 40),
    ("boxer", 8, 215),
    ("diver", 1, 40),
)
# The rest of the full comparison: every play in other worlds, worlds where the player completes all
# achievements, and one in which it lives to the default time limit of 10,000 steps.
LONG: tuple[tuple[str, int, int], ...] = (
    *((play, seed, 1200) for play in PLAYS for seed in range(20, 26)),
    *(("complete", seed, 1200) for seed in (14, 15, 32)),
    ("settler", 36, 10_000),
)


@dataclasses.dataclass(frozen=True)
class Recording:
    """The actions of one episode from the first reset of an environment with this seed."""

    play: str
    seed: int
    actions: tuple[int, ...]

    def to_json(self) -> str:
        letters = "".join(_LETTERS[action] for action in self.actions)
        return json.dumps({"play": self.play, "seed": self.seed, "actions": letters})

    @classmethod
    def from_json(cls, line: str) -> Recording:
        fields = json.loads(line)
        actions = tuple(_LETTERS.index(letter) for letter in fields["actions"])
        return cls(fields["play"], fields["seed"], actions)


def load() -> dict[tuple[str, int], Recording]:
    """All recordings by play and seed."""
    recordings = map(Recording.from_json, PATH.read_text().splitlines())
    return {(recording.play, recording.seed): recording for recording in recordings}


def record(env: Any, play: str, seed: int, max_steps: int) -> Recording:
    """Lets the scripted player play one episode of a Gymnasium environment with that seed."""
    player = PLAYS[play].player()
    env.reset(seed=seed)
    info: dict[str, Any] | None = None
    actions: list[int] = []
    ended = False
    while not ended and len(actions) < max_steps:
        actions.append(player.act(info))
        _, _, terminated, truncated, info = env.step(actions[-1])
        ended = terminated or truncated
    return Recording(play, seed, tuple(actions))


def record_all() -> Iterator[Recording]:
    """Plays everything listed above."""
    from achieve.envs.crafter import CrafterEnv

    env = CrafterEnv()
    for play, seed, max_steps in (*SHORT, *LONG):
        yield record(env, play, seed, max_steps)


def main() -> None:
    PATH.parent.mkdir(exist_ok=True)
    lines = [recording.to_json() for recording in record_all()]
    PATH.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
