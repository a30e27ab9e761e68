"""What a command is doing: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from achieve.run.progress import duration

INTERVAL = 10.0
"""Seconds between two lines."""


class Show:
    """Is told what is being done, and the share that is done where it is known: ``show("playing", 0.4)``."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.what = ""
        self.share: float | None = None

    def __call__(self, what: str, share: float | None = None) -> None:
        self.what, self.share = what, share

    def line(self) -> str:
        """Return the state as one plain line."""
        done = "" if self.share is None else f", {self.share:.0%}"
        return f"{self.what}{done} ({duration(time.monotonic() - self._began)})"


class _Bar(Show):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def __call__(self, what: str, share: float | None = None) -> None:
        if what != self.what:
            self._progress.reset(self._task)
        super().__call__(what, share)
        self._progress.update(
            self._task, description=what, total=None if share is None else 1.0, completed=share or 0.0
        )


@contextmanager
def showing(console: Console | None = None, interval: float | None = None) -> Iterator[Show]:
    """Show progress within the block, on stderr so that results can be piped."""
    console = console or Console(stderr=True, highlight=False)
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24))
        with Progress(*columns, TaskProgressColumn(), TimeElapsedColumn(), console=console, transient=True) as progress:
            yield _Bar(progress)
        return
    show, over = Show(), threading.Event()

    def tell() -> None:
        while not over.wait(INTERVAL if interval is None else interval):
            console.print(show.line(), markup=False, soft_wrap=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield show
    finally:
        over.set()
        teller.join()
