"""Live progress of a run: refreshed in place on a terminal, a line now and then elsewhere."""

import math
import time
from collections import deque
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

REFRESH = 0.2
RATE_WINDOW = 30.0


class Progress:
    """Shows steps, rate, time left, score so far (or what `measure` names), recent mean return and the phase.

        with Progress(total_steps, start) as progress:
            progress.update(step, phase="rollout", score=3.1, mean_return=2.4)

    On a terminal the display is refreshed in place; elsewhere a plain line is printed every `interval` seconds and at
    the end. `update` may be called at any rate.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        title: str = "",
        measure: str = "score",
        console: Console | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.step = self._start = start
        self.title = title
        self.measure = measure
        self._console = console or Console()
        self._clock = clock
        self._phase = ""
        self._score = self._mean_return = math.nan
        self._began = self._shown = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._began, start)])
        self._told: tuple[int, str] | None = None
        self._first: tuple[float, int] | None = None
        self._live: Live | None = None
        self._pause = REFRESH if self._console.is_terminal else interval

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            # Refreshed by hand: a refresh thread would take turns with the loop for nothing.
            self._live = Live(self._render(), console=self._console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None or self._told != (self.step, self._phase):
            self._show()
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None

    def _show(self) -> None:
        self._told = (self.step, self._phase)
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        else:
            self._console.print(self.line(), highlight=False, soft_wrap=True)

    def update(
        self,
        step: int | None = None,
        *,
        phase: str | None = None,
        score: float | None = None,
        mean_return: float | None = None,
    ) -> None:
        """Update what is given, and show everything if it is time."""
        now = self._clock()
        if step is not None and step != self.step:
            self.step = step
            self._first = self._first or (now, step)
            self._marks.append((now, step))
            while len(self._marks) > 2 and self._marks[1][0] < now - RATE_WINDOW:
                self._marks.popleft()
        self._phase = self._phase if phase is None else phase
        self._score = self._score if score is None else score
        self._mean_return = self._mean_return if mean_return is None else mean_return
        if now - self._shown >= self._pause:
            self._shown = now
            self._show()

    def say(self, text: str) -> None:
        """Print a line above the display."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def rate(self) -> float:
        """Steps per second over the last half minute."""
        (then, before), now = self._marks[0], self._clock()
        return (self.step - before) / (now - then) if now > then else 0.0

    @property
    def seconds_left(self) -> float:
        """Time left at the mean rate of this process, which evens out phases of unequal speed.

        The first steps do not count, as soon as there are others: much is compiled and set up during them.
        """
        since, start = self._first if self._first and self.step > self._first[1] else (self._began, self._start)
        elapsed, done = self._clock() - since, self.step - start
        return (self.total - self.step) * elapsed / done if done > 0 else math.nan

    def line(self) -> str:
        """Return the display as one plain line."""
        return "  ".join(text for text in [self.title, *self._facts(), self._phase] if text)

    def _facts(self) -> list[str]:
        left = self.seconds_left
        return [
            f"{self.step:,}/{self.total:,} steps ({self.step / max(1, self.total):.0%})",
            f"{self.rate:,.0f} steps/s",
            f"{duration(left)} left" if math.isfinite(left) else "",
            f"{self.measure} {self._score:.2f}" if math.isfinite(self._score) else "",
            f"return {self._mean_return:.2f}" if math.isfinite(self._mean_return) else "",
        ]

    def _render(self) -> Group:
        # Two lines, so that nothing is cut off on a terminal of 80 columns.
        steps, rate, left, score, mean_return = self._facts()
        first = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self.total), completed=self.step, width=24)
        first.add_row(Text(self.title, "bold"), bar, steps, Text(left, "cyan"))
        parts = (Text(rate), Text(score, "green"), Text(mean_return, "green"), Text(self._phase, "dim"))
        return Group(first, Text("  ").join(part for part in parts if part))


def duration(seconds: float) -> str:
    """Return `42 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
