"""Stops and crashes at a chosen place: the n-th at which a run could stop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from achieve import train
from achieve.config import TrainConfig
from tests.system.runs import assert_same_run


class SimulatedCrashError(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a `kill -9`."""


class StopAfter:
    """Stands for a StopRequest: asks to stop, or crashes, once it has been looked at so many times."""

    def __init__(self, count: int, *, crash: bool = False) -> None:
        self.left = count
        self.crash = crash

    @property
    def requested(self) -> bool:
        self.left -= 1
        if self.left < 0 and self.crash:
            raise SimulatedCrashError
        return self.left < 0

    def __enter__(self) -> StopAfter:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def stopping(after: int, *, crash: bool = False) -> Iterator[StopAfter]:
    """Within the block, a run stops, or crashes, at the place after so many at which it could."""
    stop = StopAfter(after, crash=crash)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["achieve.train"], "StopRequest", lambda note: stop)
        yield stop


def assert_resumes(config: TrainConfig, folder: Path) -> None:
    """A run that crashes three times equals one that does not, bit for bit; they are `parts` and `whole`."""
    train(config, folder / "whole", quiet=True)
    for stop in (37, 60, 20):
        with pytest.raises(SimulatedCrashError), stopping(stop, crash=True):
            train(config, folder / "parts", quiet=True)
    train(config, folder / "parts", quiet=True)
    assert_same_run(folder / "parts", folder / "whole")
