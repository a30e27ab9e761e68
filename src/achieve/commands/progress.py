"""What a command is doing: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from achieve.run.progress import duration

INTERVAL = 10.0
"""Seconds between two lines."""


class Show(Protocol):
    """Is told what is being done, and the share that is done where it is known: ``show("playing", 0.4)``."""

    def __call__(self, what: str, share: float | None = None) -> None: ...


@contextmanager
def showing(console: Console | None = None, interval: float | None = None) -> Iterator[Show]:
    """Show progress within the block, on stderr so that results can be piped."""
    console = console or Console(stderr=True, highlight=False)
    over = threading.Event()
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *(BarColumn(24), TaskProgressColumn(), TimeElapsedColumn()),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task("", total=None)

        def show(what: str, share: float | None = None) -> None:
            total = None if share is None else 1.0
            if (what, total) != (progress.tasks[-1].description, progress.tasks[-1].total):
                old = progress.tasks[-1].id
                progress.add_task(what, total=total)
                progress.remove_task(old)
            progress.update(progress.tasks[-1].id, completed=share or 0.0)

        def print_lines() -> None:
            while not over.wait(INTERVAL if interval is None else interval):
                task = progress.tasks[-1]
                if not task.description:
                    continue
                share = "" if task.total is None else f", {task.completed:.0%}"
                text = f"{task.description}{share} ({duration(task.elapsed or 0.0)})"
                console.print(text, markup=False, soft_wrap=True)

        lines = threading.Thread(target=print_lines, daemon=True)
        if progress.disable:
            lines.start()
        try:
            yield show
        finally:
            over.set()
            if progress.disable:
                lines.join()
