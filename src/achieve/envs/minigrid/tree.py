"""Which room's key opens which door: the same in every episode, wherever the rooms are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..arrays import check_whole

FIRST_DOOR = "grey"
KEY_COLOURS = ("red", "blue", "purple", "yellow", "green")
"""The remaining five of MiniGrid's six colours; green comes last because the goal is green too."""

MAX_ROOMS = 63
"""A cell of the compiled game is a byte, and a room takes four of its values."""


@dataclass(frozen=True)
class Tree:
    """Rooms and the rooms that hold their keys.

    Room 0 is not locked. Room r holds a key if it is another's parent, the goal if it is the last, and a ball
    otherwise: something to collect that opens nothing.
    """

    parents: tuple[int | None, ...]
    """For each room, the room whose key opens it: None for the first, an earlier room for the others."""

    @classmethod
    def make(cls, depth: Any = 5, branching: Any = 1, parents: Sequence[int | None] | None = None) -> Tree:
        """Return the tree with ``parents``, or one ``depth`` rooms deep in which each key opens ``branching`` doors."""
        if parents is not None:
            return cls(_check_parents(parents))
        depth, branching = check_whole("depth", depth, 1), check_whole("branching", branching, 1)
        keys = sum(branching**level for level in range(min(depth - 1, len(KEY_COLOURS) + 1)))
        if keys > len(KEY_COLOURS):
            raise ValueError(
                f"a tree of depth {depth} and branching {branching} needs a key in each room but the deepest ones, "
                f"and there are colours for {len(KEY_COLOURS)} keys"
            )
        found: list[int | None] = [None]
        level = [0]
        for _ in range(depth - 1):
            start = len(found)
            found += [parent for parent in level for _ in range(branching)]
            level = list(range(start, len(found)))
            if len(found) > MAX_ROOMS:
                raise ValueError(f"a tree has at most {MAX_ROOMS} rooms; branching {branching} makes more")
        return cls(tuple(found))

    @property
    def rooms(self) -> int:
        return len(self.parents)

    @property
    def goal(self) -> int:
        """The room with the green square."""
        return self.rooms - 1

    @cached_property
    def key_colours(self) -> dict[int, str]:
        """The colour of the key in each room that holds one."""
        return dict(zip(sorted({p for p in self.parents if p is not None}), KEY_COLOURS, strict=False))

    @cached_property
    def door_colours(self) -> tuple[str, ...]:
        """A locked door has the colour of its key."""
        return tuple(FIRST_DOOR if parent is None else self.key_colours[parent] for parent in self.parents)

    @cached_property
    def items(self) -> tuple[tuple[str, str], ...]:
        """Kind and colour of what each room holds; a ball has the colour of its door."""
        held = [
            ("key", self.key_colours[room]) if room in self.key_colours else ("ball", self.door_colours[room])
            for room in range(self.rooms - 1)
        ]
        return (*held, ("goal", "green"))

    @cached_property
    def achievement_names(self) -> tuple[str, ...]:
        """Two per room: its door opened, and its content collected or reached."""
        names: list[str] = []
        for door, (kind, colour) in zip(self.door_colours, self.items, strict=True):
            names += [f"open_{door}_door", "reach_goal" if kind == "goal" else f"collect_{colour}_{kind}"]
        total, seen = Counter(names), Counter[str]()
        for i, name in enumerate(names):
            seen[name] += 1
            if total[name] > 1:
                names[i] = f"{name}_{seen[name]}"
        return tuple(names)

    @cached_property
    def requirements(self) -> tuple[tuple[str, str], ...]:
        """The achievement graph: pairs of an achievement and one that cannot come before it."""
        names = self.achievement_names
        edges: list[tuple[str, str]] = []
        for room, parent in enumerate(self.parents):
            if parent is not None:
                edges.append((names[2 * parent + 1], names[2 * room]))
            edges.append((names[2 * room], names[2 * room + 1]))
        return tuple(edges)


def _check_parents(parents: Sequence[int | None]) -> tuple[int | None, ...]:
    if isinstance(parents, str) or not isinstance(parents, Sequence) or len(parents) == 0:
        raise ValueError(f"tree must list each room's parent, such as (None, 0, 1), got {parents!r}")
    if parents[0] is not None:
        raise ValueError(f"the first room of a tree has no parent: it must be None, got {parents[0]!r}")
    if len(parents) > MAX_ROOMS:
        raise ValueError(f"a tree has at most {MAX_ROOMS} rooms, got {len(parents)}")
    found: list[int | None] = [None]
    for room, parent in enumerate(parents[1:], 1):
        if isinstance(parent, bool) or not isinstance(parent, int) or not 0 <= parent < room:
            raise ValueError(f"the parent of room {room} must be an earlier room, 0 to {room - 1}, got {parent!r}")
        found.append(parent)
    keys = len({parent for parent in found if parent is not None})
    if keys > len(KEY_COLOURS):
        raise ValueError(f"this tree needs {keys} keys, and there are colours for {len(KEY_COLOURS)}")
    return tuple(found)
