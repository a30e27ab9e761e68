"""The live table: run, step, rate, score, time left. Plain lines where there is no terminal."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from achieve.reproduce.tail_metrics import Reading
from achieve.run.progress import duration

RATE_WINDOW = 60.0
_SHOWN_ENDED = 5


class Status(Enum):
    """What a run is doing now."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass
class Row:
    """One run in the table."""

    name: str
    total: int
    step: int = 0
    cost: float = 1.0
    """Seconds a step of it takes, to weigh runs of fast and slow steps against each other."""
    status: Status = Status.WAITING
    place: str = ""
    score: float | None = None
    attempts: int = 0
    began: float = 0.0
    began_step: int = 0
    moving: bool = False
    """Whether it has made steps since it was started: a start takes a while."""
    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def start(self, now: float, place: str) -> None:
        """Enter that the run was started."""
        self.status, self.place, self.began, self.began_step = Status.RUNNING, place, now, self.step
        self.attempts += 1
        self.moving = False
        self.marks = deque([(now, self.step)])

    def read(self, now: float, reading: Reading) -> None:
        """Take in what the run's log says."""
        self.score = reading.score
        if reading.step < self.step:  # a continued run starts from its checkpoint, before its last line
            self.began_step = reading.step
            self.marks = deque([(now, reading.step)])
        elif reading.step > self.step:
            self.moving = True
            self.marks.append((now, reading.step))
            while len(self.marks) > 2 and self.marks[1][0] < now - RATE_WINDOW:
                self.marks.popleft()
        self.step = reading.step

    def rate(self, now: float) -> float:
        """Return steps per second over the last minute."""
        then, before = self.marks[0] if self.marks else (now, self.step)
        return (self.step - before) / (now - then) if now > then and self.moving else math.nan

    def seconds_left(self, now: float) -> float:
        """Return the time left, by the rate since it was started, which evens out phases of unequal speed."""
        done = self.step - self.began_step
        if self.status is not Status.RUNNING or done <= 0:
            return math.nan
        return max(0, self.total - self.step) * (now - self.began) / done


class LiveTable:
    """Shows rows and events.

        with LiveTable(rows, console) as table:
            table.rows["ad-s0"].start(...)
            table.show()

    On a terminal the table renews itself in place. Elsewhere every event is a line, and every `interval` seconds there
    is one line on all that is running.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        console: Console,
        interval: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows = {row.name: row for row in rows}
        self.clock = clock
        self._console = console
        self._pause = 0.5 if console.is_terminal else interval
        self._shown = clock()
        self._ended: deque[str] = deque(maxlen=_SHOWN_ENDED)
        self._live: Live | None = None

    def __enter__(self) -> LiveTable:
        if self._console.is_terminal:
            self._live = Live(self.render(), console=self._console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            self._live.__exit__(None, None, None)
            self._live = None

    def say(self, text: str) -> None:
        """Print a line that stays: above the table, or among the lines."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self, row: Row, status: Status) -> None:
        """Enter that a run has ended."""
        row.status = status
        self._ended.append(row.name)

    def show(self) -> None:
        """Renew the table, or print a line, if it is time to."""
        now = self.clock()
        if now - self._shown < self._pause:
            return
        self._shown = now
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        else:
            self.say(self.line())

    def count(self, status: Status) -> int:
        return sum(row.status is status for row in self.rows.values())

    def summary(self) -> str:
        """Return `3 running, 12 waiting, 5 done; 6,512 steps/s in all; 1 h 05 min left`."""
        now = self.clock()
        counts = [f"{self.count(status)} {status.value}" for status in _ORDER if self.count(status)]
        rates = [row.rate(now) for row in self.rows.values() if row.status is Status.RUNNING]
        total = sum(rate for rate in rates if math.isfinite(rate))
        left = self.seconds_left()
        parts = [
            ", ".join(counts),
            f"{total:,.0f} steps/s in all" if total else "",
            f"about {duration(left)} left" if math.isfinite(left) else "",
        ]
        return "; ".join(part for part in parts if part)

    def seconds_left(self) -> float:
        """Return the time all need by the speed of what is running, but no less than any run of it needs."""
        now = self.clock()
        running = [row for row in self._running() if row.step > row.began_step]
        speed = sum(row.cost * (row.step - row.began_step) / (now - row.began) for row in running if now > row.began)
        if not speed:
            return math.nan
        to_do = [row for row in self.rows.values() if row.status in (Status.RUNNING, Status.WAITING)]
        work = sum(row.cost * max(0, row.total - row.step) for row in to_do)
        return max([work / speed, *(row.seconds_left(now) for row in running)])

    def line(self) -> str:
        """Return all that is running as one plain line."""
        running = [
            f"{row.name} {row.step / row.total:.0%}" + (f" score {row.score:.2f}" if row.score is not None else "")
            for row in self._running()
        ]
        return self.summary() + (": " + ", ".join(running) if running else "")

    def render(self) -> Group:
        now = self.clock()
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title, justify in _COLUMNS:
            table.add_column(title, justify=justify, no_wrap=True)
        ended = [self.rows[name] for name in self._ended if self.rows[name].status is not Status.RUNNING]
        for row in [*ended, *self._running()]:
            rate, left = row.rate(now), row.seconds_left(now)
            running = row.status is Status.RUNNING
            table.add_row(
                Text(row.name, "bold" if running else "dim"),
                f"{row.step:,}",
                f"{min(1.0, row.step / row.total):.0%}",
                f"{rate:,.0f}/s" if running and math.isfinite(rate) else "",
                Text("-" if row.score is None else f"{row.score:.2f}", "green"),
                duration(left) if math.isfinite(left) else "",
                Text(row.place if running else row.status.value, "red" if row.status is Status.FAILED else "dim"),
            )
        return Group(table, Text(self.summary(), "cyan"))

    def _running(self) -> list[Row]:
        return [row for row in self.rows.values() if row.status is Status.RUNNING]


_ORDER = (Status.RUNNING, Status.WAITING, Status.FINISHED, Status.STOPPED, Status.FAILED)
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("run", "left"),
    ("step", "right"),
    ("", "right"),
    ("rate", "right"),
    ("score", "right"),
    ("time left", "right"),
    ("where", "left"),
)
