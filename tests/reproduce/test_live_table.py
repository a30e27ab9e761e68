"""The live table and the lines in its place."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from achieve.reproduce.live_table import DONE, FAILED, RUNNING, WAITING, LiveTable
from achieve.reproduce.plan import Plan, make_plan
from tests.reproduce.parts import some_runs, write_run


class Stage:
    """A table of runs, a clock that is set by hand, and folders written to as runs write to theirs."""

    def __init__(self, folder: Path, *, terminal: bool = False, width: int = 500) -> None:
        self.folder, self.out, self.now = folder, io.StringIO(), 0.0
        runs = some_runs("ppo-size-layer", "ad", seeds=2)
        write_run(folder, runs[0], step=204_800)
        self.plan: Plan = make_plan(runs, folder)
        console = Console(file=self.out, force_terminal=terminal, width=width, height=40)
        rates = {"ppo-size-layer": 3000.0, "ad": 700.0}
        self.table = LiveTable(self.plan.to_do, rates, console, clock=lambda: self.now)

    def start(self, name: str) -> None:
        path = self.folder / name / "config.json"
        if not path.exists():
            (run,) = [planned.run for planned in self.plan.runs if planned.run.name == name]
            write_run(self.folder, run)
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "starts": [*record["starts"], {}]}))

    def write(self, name: str, step: int, score: float | None = None) -> None:
        with open(self.folder / name / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "score": score}) + "\n")

    def update(self, now: float) -> str:
        self.now = now
        before = len(self.out.getvalue())
        self.table.update(self.plan.to_do)
        return self.out.getvalue()[before:]

    def states(self) -> list[str]:
        return [row.fields["state"] for row in self.table.rows.values()]


def test_starts_are_told_once_and_again_after_a_lost_node(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.update(1.0) == "" and stage.states() == [WAITING] * 4
    stage.start("ppo-size-layer-s0")
    stage.start("ad-s0")
    assert stage.update(2.0).splitlines() == ["ppo-size-layer-s0: resumed", "ad-s0: started"]
    assert stage.update(3.0) == ""
    assert stage.states() == [RUNNING, RUNNING, WAITING, WAITING]
    stage.start("ad-s0")
    assert stage.update(4.0) == "ad-s0: restarted, its node was lost\n"


def test_rates_and_times_left(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.start("ppo-size-layer-s0")
    stage.update(0.0)
    # It resumes from its checkpoint, before the last line in its log.
    for seconds, step in ((10.0, 102_400), (20.0, 122_880), (40.0, 163_840)):
        stage.write("ppo-size-layer-s0", step, 12.345)
        stage.update(seconds)
    row = stage.table.rows["ppo-size-layer-s0"]
    assert (row.fields["step"], row.fields["score"], row.fields["rate"]) == ("163,840", "score 12.35", "2,048 steps/s")
    assert row.time_remaining == pytest.approx((1_024_000 - 163_840) / 2048, abs=1)


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.table:
        stage.start("ppo-size-layer-s0")
        stage.start("ad-s0")
        stage.update(0.0)
        stage.table.end("ad-s0", FAILED)
        for seconds, step in ((30.0, 307_200), (59.0, 358_400), (100.0, 409_600)):
            stage.write("ppo-size-layer-s0", step, 12.345)
            line = stage.update(seconds)
            assert bool(line) == (seconds == 100.0), "a line a minute"
        stage.table.say("a [b]line[/b] that stays")
    # Work by the rates: 614,400 and 1,024,000 steps at 3,000, and 1,024,000 at 700; 102,400 steps were done in 70 s.
    left, speed = (614_400 + 1_024_000) / 3000 + 1_024_000 / 700, 102_400 / 3000 / 70
    minutes = int(left / speed) // 60
    assert line.startswith(f"1 running, 2 waiting, 1 failed; about {minutes // 60} h {minutes % 60:02d} min ")
    assert line.endswith(" left: ppo-size-layer-s0 40% score 12.35\n")
    assert stage.out.getvalue().endswith("a [b]line[/b] that stays\n")
    assert "\x1b" not in stage.out.getvalue()


def test_the_live_table_fits_a_terminal_and_lists_what_runs(tmp_path: Path) -> None:
    stage = Stage(tmp_path, terminal=True, width=80)
    with stage.table:
        for name in ("ppo-size-layer-s0", "ad-s0", "ad-s1"):
            stage.start(name)
        stage.update(0.0)
        for seconds, step in ((50.0, 307_200), (100.0, 409_600)):
            stage.write("ppo-size-layer-s0", step, 12.345)
            stage.update(seconds)
        stage.table.end("ad-s1", DONE)
        stage.update(101.0)
    assert "\x1b[" in stage.out.getvalue()
    shown = io.StringIO()
    Console(file=shown, width=80).print(stage.table.progress.get_renderable())
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert lines[0] == "ppo-size-layer-s0 409,600 score 12.35 2,048 steps/s 40% 0:05:00"
    assert lines[1] == "ad-s0 0% -:--:--"
    assert lines[2].startswith("2 running, 1 waiting, 1 done ")
    assert len(lines) == 3
