"""The original game, with the one change that makes it reproducible.

`crafter` keeps the objects of each chunk in a `set`. Objects hash by identity, so the order in
which balancing sees them depends on memory addresses, and two runs with the same seed and actions
diverge. Here those sets iterate in insertion order. Nothing else differs from the package.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any
from unittest import mock

import crafter


class InsertionOrderedSet:
    """The part of `set` that `crafter` uses, iterating in insertion order.

    An element that is removed and added again comes last.
    """

    def __init__(self) -> None:
        self._items: dict[Any, None] = {}

    def add(self, item: Any) -> None:
        self._items[item] = None

    def remove(self, item: Any) -> None:
        del self._items[item]

    def __contains__(self, item: Any) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class InsertionOrderedWorld(crafter.engine.World):
    """`crafter.engine.World` whose chunks are insertion-ordered sets."""

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._chunks: dict[Any, InsertionOrderedSet] = collections.defaultdict(InsertionOrderedSet)


def make_reference(**kwargs: Any) -> crafter.Env:
    """`crafter.Env(**kwargs)` over an `InsertionOrderedWorld`."""
    with mock.patch.object(crafter.engine, "World", InsertionOrderedWorld):
        return crafter.Env(**kwargs)
