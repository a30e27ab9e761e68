"""Making runs one after the other or together, with a trainer that learns nothing; and when Ray is used."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from achieve.config import to_dict
from achieve.errors import MissingExtraError
from achieve.reproduce import cluster, executor, mps
from achieve.reproduce.executor import Order, execute
from achieve.reproduce.plan import Plan, RunSpec, State, make_plan
from achieve.reproduce.process import Outcome, run_logged
from achieve.run.signals import StopRequest
from tests.reproduce.parts import some_runs

FAKE = Path(__file__).with_name("fake_trainer.py")


class Stage:
    """A folder of fake runs, and what was printed and noted about them."""

    def __init__(self, folder: Path, runs: Sequence[RunSpec], orders: dict[str, dict[str, Any]]) -> None:
        self.folder, self.runs, self.told = folder, list(runs), folder.parent / "orders.json"
        self.give(orders)
        self.out = io.StringIO()

    def give(self, orders: dict[str, dict[str, Any]]) -> None:
        told = {run.name: {"config": to_dict(run.config), **orders.get(run.name, {})} for run in self.runs}
        self.told.write_text(json.dumps(told))

    def make(self) -> list[str]:
        with StopRequest() as stop:
            return execute(self.plan, 1, None, Console(file=self.out, width=200), stop)

    @property
    def plan(self) -> Plan:
        return make_plan(self.runs, self.folder)

    def states(self) -> dict[str, State]:
        return {planned.run.name: planned.state for planned in self.plan.runs}

    @property
    def journal(self) -> list[str]:
        return [" ".join(line.split()) for line in (self.folder / "journal.txt").read_text().splitlines()]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    monkeypatch.setattr(executor, "achieve_command", lambda arguments: [sys.executable, str(FAKE), *arguments])
    monkeypatch.setattr(executor, "gpu_count", lambda _: 0)
    monkeypatch.setattr(executor, "POLL", 0.02)
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path / "orders.json"))
    (tmp_path / "runs").mkdir()

    def make(runs: Sequence[RunSpec], **orders: dict[str, Any]) -> Stage:
        named = {name.replace("_", "-"): order for name, order in orders.items()}
        return Stage(tmp_path / "runs", runs, named)

    return make


def test_one_that_fails_is_reported_and_the_others_are_made(stage: Callable[..., Stage]) -> None:
    made = stage(some_runs("ad", "ppo", seeds=2), ppo_s0={"ends": "fails"})
    assert made.make() == ["ppo-s0"]
    states = made.states()
    assert states.pop("ppo-s0") is State.INTERRUPTED
    assert set(states.values()) == {State.FINISHED}
    text = made.out.getvalue()
    assert f"ppo-s0: failed with exit code 3; its last lines, from {made.folder / 'logs' / 'ppo-s0.log'}" in text
    assert "    something went wrong with the environment" in text
    assert "ad-s1: started" in text and "ad-s1: done in 0 s, score 2.00" in text
    order = ["ad-s0", "ppo-s0", "ad-s1", "ppo-s1"]
    assert made.journal == [f"{what} {name}" for name in order for what in ("start", "end")]  # one at a time
    assert [path.suffix for path in (made.folder / "logs").iterdir()] == [".log"] * 4

    # The same command: only what is missing, from where it was.
    (made.folder / "journal.txt").unlink()
    made.give({})
    assert made.make() == []
    assert made.journal == ["start ppo-s0", "end ppo-s0"]
    assert "ppo-s0: resumed" in made.out.getvalue()
    assert set(made.states().values()) == {State.FINISHED}


@pytest.mark.parametrize("ends", ["well", "stubborn"])
def test_stopping_leaves_runs_that_can_be_resumed(
    stage: Callable[..., Stage], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(some_runs("ad", "ppo"), ad_s0={"seconds": 60.0, "ends": ends, "parts": 600})
    monkeypatch.setattr(executor, "run_logged", partial(run_logged, patience=20.0 if ends == "well" else 0.3))

    def interrupt_when_it_runs() -> None:
        while not (made.folder / "ad-s0" / "metrics.jsonl").exists():  # its handlers are in place then
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt_when_it_runs).start()
    assert made.make() == []
    assert made.states() == {"ad-s0": State.INTERRUPTED, "ppo-s0": State.MISSING}
    assert ("end ad-s0" in made.journal) == (ends == "well"), "one that does not listen is killed"
    assert "stopping: each run saves its state first" in made.out.getvalue()
    assert "failed" not in made.out.getvalue()


def test_a_node_that_cannot_make_a_run_says_why(tmp_path: Path) -> None:
    (run,) = some_runs("ad")
    order = Order(run, tmp_path / "runs" / run.name, tmp_path / "runs" / "logs" / "mark", tmp_path, {})
    code, (line,) = executor.train(order)
    assert code == 2 and line == f"this node does not see {tmp_path / 'runs'}; --folder must be on shared storage"
    order.mark.parent.mkdir(parents=True)
    order.mark.touch()
    code, (line,) = executor.train(order._replace(version="0.0"))
    assert code == 2 and line.endswith(", not 0.0")
    assert list((tmp_path / "runs").rglob("*.log")) == []


def test_ray_must_be_installed_where_it_is_asked_for(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(some_runs("ad", seeds=2))
    monkeypatch.setattr(executor, "find_spec", lambda _: None)
    with StopRequest() as stop, pytest.raises(MissingExtraError, match="Ray"):
        execute(made.plan, 2, "head:1", Console(file=made.out), stop)
    assert set(made.states().values()) == {State.MISSING}


@pytest.mark.parametrize(
    ("gpus", "shown", "jobs", "used"),
    [
        (0, None, 2, [None, None]),
        (1, "3", 2, ["3", "3"]),  # as it was
        (2, None, 1, ["0", "1"]),
        (2, "3, 5", 2, ["3", "3", "5", "5"]),
    ],
)
def test_so_many_runs_at_a_time_on_each_gpu(
    stage: Callable[..., Stage],
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    shown: str | None,
    jobs: int,
    used: list[str | None],
) -> None:
    """They wait for each other, so that there must be as many at a time as expected."""
    made = stage(some_runs("ad", seeds=2 * len(used)))
    together, places = threading.Barrier(len(used), timeout=30), []

    def train(order: Order) -> Outcome:
        places.append({**os.environ, **order.environment}.get("CUDA_VISIBLE_DEVICES"))
        together.wait()
        return Outcome(1, [])

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setattr(executor, "gpu_count", lambda _: gpus)
    monkeypatch.setattr(executor, "train", train)
    monkeypatch.setattr(mps, "multi_process_service", lambda _: nullcontext({}))
    with StopRequest() as stop:
        assert len(execute(made.plan, jobs, None, Console(file=made.out), stop)) == 2 * len(used)
    assert sorted(map(str, places[: len(used)])) == list(map(str, used))


@pytest.mark.parametrize(
    ("gpus", "jobs", "ray", "with_ray", "with_service"),
    [
        (0, 1, None, False, False),
        (1, 1, None, False, False),
        (0, 2, None, False, False),
        (2, 1, None, False, False),
        (1, 4, None, False, True),
        (1, 4, "head:1", True, False),
        (0, 1, "head:1", True, False),
    ],
)
def test_when_ray_is_used(
    stage: Callable[..., Stage],
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    jobs: int,
    ray: str | None,
    with_ray: bool,
    with_service: bool,
) -> None:
    made = stage(some_runs("ad", seeds=2))
    called: list[str] = []

    @contextmanager
    def tasks(work: Callable[[Order], Outcome], *settings: Any) -> Iterator[Callable[[Order], Future[Outcome]]]:
        called.append(f"Ray {settings[:-1]}")
        with ThreadPoolExecutor(1) as pool:
            yield lambda order: pool.submit(work, order)

    @contextmanager
    def service(_: object) -> Iterator[dict[str, str]]:
        yield {"MPS": "here"}

    def train(order: Order) -> Outcome:
        called.append(f"{order.run.name} {order.environment.get('MPS')}")
        return Outcome(1, [])

    monkeypatch.setattr(executor, "gpu_count", lambda _: gpus)
    monkeypatch.setattr(executor, "train", train)
    monkeypatch.setattr(cluster, "tasks", tasks)
    monkeypatch.setattr(mps, "multi_process_service", service)
    with StopRequest() as stop:
        assert execute(made.plan, jobs, ray, Console(file=made.out), stop) == ["ad-s0", "ad-s1"]
    served = "here" if with_service else None
    assert called[: int(with_ray)] == ([f"Ray {(ray, jobs, 'auto')}"] if with_ray else [])
    assert sorted(called[int(with_ray) :]) == [f"ad-s0 {served}", f"ad-s1 {served}"]
