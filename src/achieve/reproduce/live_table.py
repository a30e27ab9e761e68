"""How far each run is: a table renewed in place on a terminal, elsewhere a line every minute."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn

from achieve.errors import AchieveError
from achieve.reproduce.plan import Planned
from achieve.reproduce.tail_metrics import read_progress
from achieve.run.folder import read_config
from achieve.run.progress import duration

RUNNING, WAITING, DONE, STOPPED, FAILED = STATES = ("running", "waiting", "done", "stopped", "failed")


class LiveTable:
    """Shows step, score, rate and time left of the runs under way, as read from their folders, and counts the others.

    with LiveTable(runs, rates, console) as table:
        table.update(runs)
    """

    def __init__(
        self,
        runs: Sequence[Planned],
        rates: Mapping[str, float],
        console: Console,
        interval: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take in what is to do; `rates` are steps per second by group, to weigh slow runs against fast ones."""
        columns = [TextColumn(f"{{task.fields[{name}]}}", justify="right") for name in ("step", "score", "rate")]
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            *(*columns, TaskProgressColumn(), TimeRemainingColumn()),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=2,
            speed_estimate_period=600,  # evens out phases of unequal speed
            get_time=clock,
        )
        self._interval, self._clock, self._shown = interval, clock, clock()
        self.rows: dict[str, Task] = {}
        for planned in runs:
            rate = rates[planned.run.group]
            about = {"state": WAITING, "cost": 1 / rate if math.isfinite(rate) else 1.0}
            row = self._add(planned.run.name, planned.run.steps, planned.step, visible=False, start=False, **about)
            self.rows[planned.run.name] = row
            row.fields["starts"] = _starts(planned.folder)
        self._all = self._add("", 0, 0)

    def _add(self, name: str, total: int, completed: int, **fields: Any) -> Task:
        self.progress.add_task(name, total=total, completed=completed, step="", score="", rate="", **fields)
        return self.progress.tasks[-1]

    def __enter__(self) -> LiveTable:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        """Print a line that stays: above the table, or among the lines."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, runs: Sequence[Planned]) -> None:
        """Read how far these runs are. Without a terminal, print a line if it is time to."""
        for planned in runs:
            self._read(planned)
        rows = self.rows.values()
        counts = Counter(row.fields["state"] for row in rows)
        text = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        done = sum(row.fields["cost"] * row.completed for row in rows)
        to_do = [row for row in rows if row.fields["state"] in (RUNNING, WAITING)]
        left = sum(row.fields["cost"] * (row.remaining or 0) for row in to_do)
        # Whole, as rich forgets the speed when the total changes, be it in the last digit.
        self.progress.update(self._all.id, description=text, total=round(done + left), completed=done)
        if self.progress.disable and self._clock() - self._shown >= self._interval:
            self._shown = self._clock()
            time_left = f"; about {duration(seconds)} left" if (seconds := self._all.time_remaining) else ""
            running = [row for row in rows if row.fields["state"] == RUNNING]
            shares = [f"{row.description} {row.percentage:.0f}% {row.fields['score']}".rstrip() for row in running]
            self.say(f"{text}{time_left}: {', '.join(shares)}")

    def end(self, name: str, state: str) -> float:
        """Enter that a run has ended; return the seconds it took."""
        row = self.rows[name]
        row.fields["state"] = state
        self.progress.update(row.id, visible=False, completed=row.total if state == DONE else row.completed)
        return row.elapsed or 0.0

    def _read(self, planned: Planned) -> None:
        row = self.rows[planned.run.name]
        starts = _starts(planned.folder)
        if starts > row.fields["starts"]:
            lost = row.fields["state"] == RUNNING
            how = "restarted, its node was lost" if lost else "resumed" if planned.step else "started"
            self.say(f"{planned.run.name}: {how}")
            row.fields.update(state=RUNNING, starts=starts)
            self.progress.start_task(row.id)
            self.progress.update(row.id, visible=True)
        if row.fields["state"] == RUNNING and (reading := read_progress(planned.folder)) is not None:
            self.progress.update(row.id, completed=reading.step)
            row.fields["step"] = f"{reading.step:,}"
            row.fields["score"] = "" if reading.score is None else f"score {reading.score:.2f}"
            row.fields["rate"] = f"{row.speed:,.0f} steps/s" if row.speed else ""


def _starts(folder: Path) -> int:
    """Return how often a run was started: its process adds a line to config.json each time."""
    try:
        return len(read_config(folder)["starts"])
    except AchieveError:
        return 0
