"""The progress display, with a clock that the test moves."""

import io

import pytest
from rich.console import Console

from achieve.run.progress import Progress, duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(terminal: bool, **kwargs: int) -> tuple[Progress, Clock, io.StringIO]:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=80, _environ={"TERM": "xterm"})
    progress = Progress(1000, title="quick-s0", console=console, clock=clock, **kwargs)
    return progress, clock, out


def test_plain_line_every_interval_and_at_the_end() -> None:
    progress, clock, out = make(terminal=False)
    with progress:
        for step in range(0, 501, 10):
            clock.now += 0.5
            progress.update(step, phase="rollout", score=1.234, mean_return=2.0)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1] == (
        "quick-s0  500/1,000 steps (50%)  20 steps/s  25 s left  score 1.23  return 2.00  rollout"
    )


def test_the_last_line_is_not_printed_twice() -> None:
    progress, clock, out = make(terminal=False)
    with progress:
        clock.now += 60
        progress.update(1000, phase="done")
        clock.now += 1
    assert out.getvalue().splitlines() == ["quick-s0  1,000/1,000 steps (100%)  17 steps/s  0 s left  done"]


def test_terminal_shows_everything_within_80_columns() -> None:
    progress, clock, out = make(terminal=True)
    with progress:
        clock.now += 10
        progress.update(500, phase="auxiliary phase 3", score=12.5, mean_return=11.25)
    shown = out.getvalue()
    for part in ("quick-s0", "500/1,000 steps (50%)", "50 steps/s", "10 s left", "score 12.50"):
        assert part in shown
    assert "return 11.25" in shown and "auxiliary phase 3" in shown


def test_what_is_left_out_stays() -> None:
    progress, clock, _ = make(terminal=False)
    clock.now += 1
    progress.update(10, score=1.5)
    progress.update(phase="ppo update")
    assert "score 1.50" in progress.line() and "ppo update" in progress.line()


def test_before_the_first_step_nothing_is_made_up() -> None:
    progress, _, _ = make(terminal=False)
    assert progress.line() == "quick-s0  0/1,000 steps (0%)  0 steps/s"


def test_resumed_run_counts_its_rate_from_where_it_started() -> None:
    progress, clock, _ = make(terminal=False, start=800)
    clock.now += 10
    progress.update(900)
    assert progress.rate == pytest.approx(10)
    assert progress.seconds_left == pytest.approx(10)


def test_slow_first_steps_say_nothing_about_the_time_left() -> None:
    progress, clock, _ = make(terminal=False)
    clock.now += 30  # compiling
    progress.update(10)
    assert progress.seconds_left == pytest.approx(30 * 99), "nothing else is known yet"
    clock.now += 1
    progress.update(20)
    assert progress.seconds_left == pytest.approx(98)


def test_rate_follows_the_last_half_minute() -> None:
    progress, clock, _ = make(terminal=False)
    for step in range(1, 101):
        clock.now += 1
        progress.update(step)
    for step in range(100, 600, 10):
        clock.now += 1
        progress.update(step)
    assert progress.rate == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min"), (-3, "0 s")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
