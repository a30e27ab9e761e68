"""The live table: run, step, rate, score, time left. Plain lines where there is no terminal."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from achieve.reproduce.tail_metrics import Reading
from achieve.run.progress import duration

_SHOWN_ENDED = 5


class Status(Enum):
    """What a run is doing now."""

    RUNNING = "running"
    WAITING = "waiting"
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

    def start(self, now: float, place: str) -> None:
        """Enter that the run was started."""
        self.status, self.place, self.began, self.began_step = Status.RUNNING, place, now, self.step
        self.attempts += 1

    def read(self, reading: Reading) -> None:
        """Take in what the run's log says."""
        if reading.step < self.step:  # a continued run starts from its checkpoint, before its last line
            self.began_step = reading.step
        self.step, self.score = reading

    def rate(self, now: float) -> float:
        """Return steps per second since it was started, which evens out phases of unequal speed."""
        made = self.step - self.began_step if self.status is Status.RUNNING else 0
        return made / (now - self.began) if made > 0 and now > self.began else math.nan

    def seconds_left(self, now: float) -> float:
        """Return the time left at that rate."""
        return max(0, self.total - self.step) / self.rate(now)


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
        self._ended: deque[Row] = deque(maxlen=_SHOWN_ENDED)
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
        self._ended.append(row)

    def show(self) -> None:
        """Renew the table, or print a line, if it is time to."""
        now = self.clock()
        if now - self._shown < self._pause:
            return
        self._shown = now
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        else:
            running = [
                f"{row.name} {row.step / row.total:.0%}" + (f" score {row.score:.2f}" if row.score is not None else "")
                for row in self._of(Status.RUNNING)
            ]
            self.say(self.summary() + (": " + ", ".join(running) if running else ""))

    def summary(self) -> str:
        """Return `3 running, 12 waiting, 5 done; 6,512 steps/s in all; about 1 h 05 min left`."""
        now = self.clock()
        counts = [f"{len(self._of(status))} {status.value}" for status in Status if self._of(status)]
        total = sum(rate for row in self.rows.values() if math.isfinite(rate := row.rate(now)))
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
        moving = [row for row in self.rows.values() if math.isfinite(row.rate(now))]
        if not moving:
            return math.nan
        work = sum(row.cost * max(0, row.total - row.step) for row in self._of(Status.RUNNING, Status.WAITING))
        speed = sum(row.cost * row.rate(now) for row in moving)
        return max([work / speed, *(row.seconds_left(now) for row in moving)])

    def render(self) -> Group:
        now = self.clock()
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("run", "step", "", "rate", "score", "time left", "where"):
            table.add_column(title, justify="left" if title in ("run", "where") else "right", no_wrap=True)
        running = self._of(Status.RUNNING)
        for row in [*(row for row in self._ended if row not in running), *running]:
            rate, left = row.rate(now), row.seconds_left(now)
            where = row.place if row in running else row.status.value
            table.add_row(
                Text(row.name, "bold" if row in running else "dim"),
                f"{row.step:,}",
                f"{min(1.0, row.step / row.total):.0%}",
                f"{rate:,.0f}/s" if math.isfinite(rate) else "",
                Text("-" if row.score is None else f"{row.score:.2f}", "green"),
                duration(left) if math.isfinite(left) else "",
                Text(where, "red" if row.status is Status.FAILED else "dim"),
            )
        return Group(table, Text(self.summary(), "cyan"))

    def _of(self, *statuses: Status) -> list[Row]:
        return [row for row in self.rows.values() if row.status in statuses]
