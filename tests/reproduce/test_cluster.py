"""Runs on a real Ray cluster of two workers, one of which is killed on the way; and two at a time on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from achieve import train
from achieve.cli import main
from achieve.commands.train import parse_train
from achieve.errors import AchieveError, ConfigError
from achieve.reproduce.cluster import share_of_a_node, tasks
from achieve.run.folder import read_config, read_summary
from tests.conftest import Optional
from tests.reproduce.parts import TINY, without_processes

LOOPBACK = "127.0.0.1"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the test's cluster is on loopback, which Ray would rewrite
}
# So that a killed node is missed after two seconds, not after half a minute.
IMPATIENT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


class Driver:
    """A command of `achieve` as a process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "driver.txt"
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "achieve", *arguments],
                cwd=folder,
                env=ENVIRONMENT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def cluster(optional: Optional, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    optional.module("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "node_ip_address": LOOPBACK, "include_dashboard": False, "_system_config": IMPATIENT}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


def _worker(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, node_ip_address=LOOPBACK)


def _raylet(node: Any) -> int:
    """The process that stands for a node."""
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
def test_a_killed_worker_costs_no_run(cluster: Any, tmp_path: Path) -> None:
    workers = {_raylet(node): node for node in [_worker(cluster), _worker(cluster)]}
    runs, names = tmp_path / "runs", ["ad-small-s0", "ad-small-s1"]
    flags = ("--no-report", "--ray", cluster.address, "--", *TINY, "--total-steps", "6144")
    driver = Driver(tmp_path, "reproduce", "small", "--seeds", "0-1", *flags)
    try:
        driver.wait_until(lambda: any(runs.glob("*/checkpoint/checkpoint.safetensors")))
        victim = next(runs.glob("*/checkpoint/checkpoint.safetensors")).parents[1]
        trainer = int((victim / ".lock").read_text())
        cluster.remove_node(workers[_parent(_parent(trainer))], allow_graceful=False)
        assert not (victim / "summary.json").exists(), "the worker was killed too late"
        assert driver.process.wait(timeout=180) == 0, driver.said
    finally:
        driver.close()
    assert f"{victim.name}: restarted, its node was lost" in driver.said
    for name in names:
        summary = read_summary(runs / name)
        assert summary is not None and summary["steps"] == 6144
        assert f"{name}: done in " in driver.said
        # The run of the killed worker went on from its checkpoint; the other one was not disturbed.
        assert len(read_config(runs / name)["starts"]) == (2 if name == victim.name else 1)
    metrics = (victim / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics]
    assert steps == sorted(steps) and steps[-1] == 6144


def test_two_at_a_time_stopped_and_resumed_are_the_same_runs_as_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seeds = ["train", "--preset", "ad-small", "--seeds", "0-1", "--folder", "runs"]
    flags = [*TINY, "--total-steps", "4096"]
    driver = Driver(tmp_path, *seeds, "--jobs", "2", *flags)
    runs = tmp_path / "runs"
    try:
        driver.wait_until(lambda: any(runs.glob("*/checkpoint/checkpoint.safetensors")))
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(timeout=120) == 130, driver.said
    finally:
        driver.close()
    assert "stopping: each run saves its state first" in driver.said
    assert "achieve train: stopped; the same command resumes the runs in runs" in driver.said
    stopped = [seed for seed in (0, 1) if read_summary(runs / f"ad-small-s{seed}") is None]
    assert stopped, "it was stopped too late"

    assert without_processes(monkeypatch) == []
    assert main([*seeds, *flags]) == 0
    assert "mean ± std of 2" in capsys.readouterr().out
    seed = stopped[0]
    alone = train(parse_train(["--preset", "ad-small", "--seed", str(seed), *flags]).train, "alone", quiet=True)
    together = read_summary(runs / f"ad-small-s{seed}")
    assert together is not None and together["weights_sha256"] == alone["weights_sha256"]
    assert (runs / f"ad-small-s{seed}" / "episodes.jsonl").read_bytes() == Path("alone/episodes.jsonl").read_bytes()


def test_what_a_run_asks_of_the_cluster() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    mixed = [node(CPU=16), node(CPU=8, GPU=4)]
    assert share_of_a_node(mixed, 2, "auto") == (0, 0.5)  # as many as asked for, however few the cores are
    assert share_of_a_node(mixed, 3, "cuda")[1] * 3 <= 1
    assert share_of_a_node(mixed, 2, "cpu") == (4, 0)
    bare = [node(), node(CPU=16), node(CPU=8), node(alive=False, CPU=1, GPU=1)]
    assert share_of_a_node(bare, 3, "auto") == (2, 0)
    assert share_of_a_node([node(CPU=2)], 4, "auto") == (0.5, 0)
    with pytest.raises(ConfigError, match="no node of the Ray cluster has a CPU"):
        share_of_a_node([node()], 1, "auto")


def test_addresses_are_tried_before_ray_waits_for_them(optional: Optional, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = optional.module("ray")
    seen: list[str] = []

    def init(address: str, **_: object) -> None:
        seen.append(address)
        raise ConnectionError("no such cluster\nat all")

    def connect(address: str) -> None:
        with tasks(print, address, 1, "auto", print):
            pytest.fail("connected")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{listener.getsockname()[1]}"
        for wrong in (address, "head", "head:x", "[::1]:99999"):
            with pytest.raises(ConfigError, match=f"no Ray cluster answers at {re.escape(wrong)}"):
                connect(wrong)
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match=f"answers at {address}"):
            patch.setenv("RAY_ADDRESS", address)
            connect("auto")
        listener.listen()
        for there in (f"ray://{address}", "auto"):
            with pytest.raises(AchieveError, match=r"^Ray cannot be used: no such cluster$"):
                connect(there)
    assert seen == [f"ray://{address}", "auto"]
