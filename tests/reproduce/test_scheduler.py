"""Scheduling, with a trainer that learns nothing: who runs when and where, and what happens when one fails."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from achieve.config import to_dict
from achieve.reproduce.board import Board, Row, Status
from achieve.reproduce.devices import CPU, Device
from achieve.reproduce.estimates import Machine, Measurements
from achieve.reproduce.experiments import Run
from achieve.reproduce.jobs import Jobs
from achieve.reproduce.plan import State, make_plan
from achieve.reproduce.scheduler import Scheduler
from achieve.run.signals import StopRequest
from tests.reproduce.parts import some_runs

FAKE = Path(__file__).with_name("fake_trainer.py")


def fake_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, str(FAKE), *arguments]


class Stage:
    """A folder of fake runs, and what was printed and noted about them."""

    def __init__(self, folder: Path, runs: Sequence[Run], orders: dict[str, dict[str, Any]]) -> None:
        self.folder, self.runs = folder, list(runs)
        told = {run.name: {"config": to_dict(run.config), **orders.get(run.name, {})} for run in runs}
        self.told = folder.parent / "orders.json"
        self.told.write_text(json.dumps(told))
        self.out = io.StringIO()

    def scheduler(self, jobs: Jobs, devices: Sequence[Device] = (CPU,), **settings: Any) -> Scheduler:
        plan = make_plan(self.runs, self.folder)
        rows = [Row(planned.run.name, planned.run.steps, planned.step) for planned in plan.to_do]
        self.board = Board(rows, Console(file=self.out, width=200), interval=0.05)
        self.measured = Measurements(self.folder, Machine(4, ()))
        settings = {"patience": 20.0, "poll": 0.02, **settings}
        environment = {"FAKE_RUNS": str(self.told)}
        return Scheduler(
            plan.to_do, devices, jobs, self.board, self.measured, environment, command=fake_command, **settings
        )

    def states(self) -> dict[str, State]:
        return {planned.run.name: planned.state for planned in make_plan(self.runs, self.folder).runs}

    @property
    def journal(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "journal.txt").read_text().splitlines()]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    monkeypatch.setattr("achieve.reproduce.scheduler.READ_EVERY", 0.02)
    (tmp_path / "runs").mkdir()

    def make(runs: Sequence[Run], **orders: dict[str, Any]) -> Stage:
        named = {name.replace("_", "-"): order for name, order in orders.items()}
        return Stage(tmp_path / "runs", runs, named)

    return make


def most_at_once(journal: list[list[str]], device: str | None = None) -> int:
    most, where = 0, {}
    for what, name, *rest in journal:
        if what == "start":
            where[name] = rest[0] if rest else ""
        else:
            where.pop(name, None)
        most = max(most, sum(device is None or place == device for place in where.values()))
    return most


def test_one_that_fails_is_reported_and_the_others_are_made(stage: Callable[..., Stage]) -> None:
    runs = some_runs("ad", "ppo", seeds=2)
    made = stage(runs, ppo_s0={"ends": "fails"})
    scheduler = made.scheduler(Jobs(1, given=2))
    with StopRequest() as stop:
        assert scheduler.run(stop)
    assert scheduler.failed == ["ppo-s0"]
    states = made.states()
    assert states.pop("ppo-s0") is State.INTERRUPTED
    assert set(states.values()) == {State.FINISHED}
    text = made.out.getvalue()
    assert "ppo-s0: failed with exit code 3; its last lines" in text
    assert "    something went wrong with the world" in text
    assert "ad-s1: done in 0 s, score 2.00" in text
    assert most_at_once(made.journal) == 2
    assert made.board.summary().startswith("3 done, 1 failed")

    # The same command: only what is missing, from where it was.
    (made.folder / "journal.txt").unlink()
    made.told.write_text(json.dumps({run.name: {"config": to_dict(run.config)} for run in runs}))
    scheduler = made.scheduler(Jobs(1, given=2))
    with StopRequest() as stop:
        assert scheduler.run(stop)
    assert {name for _, name, *_ in made.journal} == {"ppo-s0"}
    assert "ppo-s0: continued on CPU" in made.out.getvalue()
    assert set(made.states().values()) == {State.FINISHED}


def test_runs_are_spread_over_the_gpus(stage: Callable[..., Stage]) -> None:
    made = stage(some_runs("ad", "ppo", seeds=4))
    gpus = [Device("0", "A"), Device("GPU-abc", "B")]
    scheduler = made.scheduler(Jobs(2, given=2), gpus, free=lambda _: 100.0)
    with StopRequest() as stop:
        scheduler.run(stop)
    assert set(made.states().values()) == {State.FINISHED}
    where = [rest[0] for what, _, *rest in made.journal if what == "start"]
    assert set(where) == {"0", "GPU-abc"} and min(where.count(gpu.id) for gpu in gpus) >= 2
    assert all(most_at_once(made.journal, gpu.id) <= 2 for gpu in gpus)
    rate = made.measured.rate("ad")
    assert rate is not None and rate.source == "measured here" and 1 <= rate.at_once <= 2


def test_no_more_than_memory_allows(stage: Callable[..., Stage]) -> None:
    made = stage(some_runs("ad", "ppo", seeds=2))
    scheduler = made.scheduler(Jobs(1, given=4), [Device("0", "A")], free=lambda _: 4.5)
    with StopRequest() as stop:
        scheduler.run(stop)
    assert set(made.states().values()) == {State.FINISHED}
    assert most_at_once(made.journal) == 1


def test_a_run_that_found_no_memory_is_tried_again_with_fewer(stage: Callable[..., Stage]) -> None:
    slow = {"seconds": 1.0}
    made = stage(some_runs("ad", "ppo"), ad_s0=slow, ppo_s0={**slow, "ends": "no memory once"})
    jobs = Jobs(1, given=2)
    scheduler = made.scheduler(jobs)
    with StopRequest() as stop:
        assert scheduler.run(stop)
    assert scheduler.failed == [] and jobs.limit == 1
    assert set(made.states().values()) == {State.FINISHED}
    assert "ppo-s0: found no memory beside the others; 1 at a time" in made.out.getvalue()


def test_stopping_leaves_runs_that_can_be_continued(stage: Callable[..., Stage]) -> None:
    long = {"seconds": 60.0}
    made = stage(some_runs("ad", "ppo", "ad-i"), ad_s0=long, ppo_s0={**long, "ends": "stubborn"}, ad_i_s0=long)
    scheduler = made.scheduler(Jobs(1, given=2), patience=0.5)

    def interrupt_when_both_run() -> None:
        journal = made.folder / "journal.txt"
        while not journal.exists() or journal.read_text().count("start") < 2:
            time.sleep(0.01)
        time.sleep(0.3)  # until their handlers are in place
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt_when_both_run).start()
    with StopRequest() as stop:
        assert not scheduler.run(stop)
    assert made.states() == {
        "ad-s0": State.INTERRUPTED,
        "ppo-s0": State.INTERRUPTED,
        "ad-i-s0": State.MISSING,
    }
    assert ["end", "ad-s0"] in made.journal, "the one that listens ended by itself"
    assert ["end", "ppo-s0"] not in made.journal, "the one that does not was killed"
    statuses = {name: row.status for name, row in made.board.rows.items()}
    assert statuses == {"ad-s0": Status.STOPPED, "ppo-s0": Status.STOPPED, "ad-i-s0": Status.WAITING}
    assert scheduler.failed == []


def test_the_number_is_grown_while_the_runs_are_made(stage: Callable[..., Stage]) -> None:
    """Fake runs do not slow each other down, so as many as allowed are best."""
    runs = some_runs("ad", seeds=4)
    made = stage(runs, **{run.name.replace("-", "_"): {"seconds": 2.0, "parts": 40} for run in runs})
    jobs = Jobs(1, most=2, window=0.6)
    scheduler = made.scheduler(jobs)
    with StopRequest() as stop:
        scheduler.run(stop)
    assert jobs.settled and jobs.limit == 2
    assert made.measured.jobs == 2
    assert "2 runs at a time from now on" in made.out.getvalue()
