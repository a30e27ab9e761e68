"""Wrong inputs: what makes one, and how it is known that nothing but a refusal came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

SAMPLE = 1 / 16
"""Share of refusals after which it is looked whether anything has changed."""


class Broken(Exception):
    """What was accepted or refused is not as it should be."""


class Kind:
    """A kind of input: how one is made, and what it is given to."""

    block: ClassVar[int] = 1000
    refusals: tuple[type[Exception], ...] = (ValueError, TypeError)

    def prepare(self, folder: Path) -> None:
        """Once, before processes are forked: valid inputs, and room for files."""
        self.folder = folder

    def begin(self, seed: int) -> None:
        """At the beginning of a block, in a process of its own."""

    def attempt(self, rng: Random) -> None:
        """Make an input and use it; raises one of `refusals`, or `Broken`, or what must not be raised."""
        raise NotImplementedError


@contextlib.contextmanager
def untouched(rng: Random, look: Callable[[], Any]) -> Iterator[None]:
    """A refusal within the block leaves everything as it was; looked at now and then."""
    before = look() if rng.random() < SAMPLE else None
    try:
        yield
    except (ValueError, TypeError) as error:
        if before is not None and look() != before:
            raise Broken(f"refused, and yet changed ({error})") from error
        raise
