"""The live table and the lines in its place."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from achieve.reproduce.live_table import LiveTable, Row, Status
from achieve.reproduce.tail_metrics import Reading


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_time_left_by_the_whole_start() -> None:
    row = Row("ad-s0", 10_000, 2_000)
    assert math.isnan(row.rate(5.0))
    row.start(0.0, "GPU 0")
    assert math.isnan(row.rate(5.0)) and math.isnan(row.seconds_left(5.0))
    row.read(Reading(5_000, 1.5))
    assert row.rate(200.0) == pytest.approx(15) and row.score == 1.5
    assert row.seconds_left(200.0) == pytest.approx((10_000 - 5_000) / 15)


def test_a_continued_run_begins_where_its_checkpoint_was() -> None:
    row = Row("ad-s0", 10_000, 2_000)
    row.start(0.0, "GPU 0")
    row.read(Reading(1_000))
    assert math.isnan(row.rate(10.0))
    row.read(Reading(1_500))
    assert row.rate(20.0) == pytest.approx(25)


def test_what_is_left_of_all_runs_weighs_slow_steps_more() -> None:
    clock = Clock()
    fast, slow, waiting = Row("ppo", 1_000, cost=1.0), Row("ad", 1_000, cost=4.0), Row("ad-i", 1_000, cost=4.0)
    shown = LiveTable([fast, slow, waiting], Console(file=io.StringIO()), clock=clock)
    assert math.isnan(shown.seconds_left())
    fast.start(0.0, "GPU 0")
    slow.start(0.0, "GPU 0")
    clock.now = 10.0
    fast.read(Reading(500))
    slow.read(Reading(200))
    speed = (500 + 4 * 200) / 10
    assert shown.seconds_left() == pytest.approx((500 + 4 * 800 + 4 * 1_000) / speed)
    shown.end(waiting, Status.FAILED)
    slow.cost = 1.0
    assert shown.seconds_left() == pytest.approx(40)  # the slow run's own 800 steps at 20 a second


def table(*, terminal: bool, width: int = 80) -> tuple[LiveTable, Clock, io.StringIO]:
    clock, out = Clock(), io.StringIO()
    rows = [Row(f"ppo-size-layer-s{seed}", 1_024_000) for seed in range(10)]
    console = Console(file=out, force_terminal=terminal, width=width, height=40)
    return LiveTable(rows, console, clock=clock), clock, out


def fill(shown: LiveTable, clock: Clock) -> None:
    for seed in range(3):
        shown.rows[f"ppo-size-layer-s{seed}"].start(0.0, "GPU 0")
    clock.now = 50.0
    shown.rows["ppo-size-layer-s0"].read(Reading(409_600, 12.345))
    shown.end(shown.rows["ppo-size-layer-s2"], Status.FAILED)


def test_the_table_has_everything_and_fits_a_terminal() -> None:
    shown, clock, _ = table(terminal=True)
    fill(shown, clock)
    out = io.StringIO()
    Console(file=out, width=80).print(shown.render())
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["run", "step", "rate", "score", "time", "left", "where"]
    text = [" ".join(line.split()) for line in lines]
    assert "ppo-size-layer-s0 409,600 40% 8,192/s 12.35 1 min 15 s GPU 0" in text
    assert "ppo-size-layer-s1 0 0% - GPU 0" in text
    assert "ppo-size-layer-s2 0 0% - failed" in text
    # 9 runs less what the first has made, by its 8,192 steps a second.
    assert "2 running, 7 waiting, 1 failed; 8,192 steps/s in all; about 17 min 55 s left" in " ".join(text)
    assert len(lines) <= 6  # those that wait are counted, not listed


def test_plain_lines_where_there_is_no_terminal() -> None:
    shown, clock, out = table(terminal=False, width=500)
    with shown:
        fill(shown, clock)
        shown.show()
        assert out.getvalue() == ""  # not yet time for a line
        clock.now = 61.0
        shown.show()
        shown.say("a [b]line[/b] that stays")
    first, second = out.getvalue().splitlines()
    assert first.endswith(": ppo-size-layer-s0 40% score 12.35, ppo-size-layer-s1 0%")
    assert second == "a [b]line[/b] that stays"
    assert "\x1b" not in out.getvalue()


def test_the_live_table_is_drawn_on_a_terminal() -> None:
    shown, clock, out = table(terminal=True)
    with shown:
        fill(shown, clock)
        shown.show()
    assert "409,600" in out.getvalue() and "\x1b[" in out.getvalue()
