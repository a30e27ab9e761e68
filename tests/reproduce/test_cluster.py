"""Runs on a real Ray cluster of two workers on this machine, one of which is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from achieve.errors import AchieveError, ConfigError
from achieve.reproduce.child import with_package
from achieve.reproduce.cluster import (
    _answers,
    _host_and_port,
    _only_on_loopback,
    _share,
    connected,
    read_files,
    write_files,
)
from achieve.run.folder import read_config, read_summary
from tests.conftest import Optional
from tests.reproduce.parts import TINY, contents, some_runs, write_run

LOOPBACK = "127.0.0.1"
ENVIRONMENT = with_package(
    {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300", "RAY_USAGE_STATS_ENABLED": "0"}
)
# So that a killed node is missed after two seconds, not after half a minute.
IMPATIENT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


class Driver:
    """`achieve reproduce --on ray` as a process."""

    def __init__(self, folder: Path, address: str, *arguments: str) -> None:
        self.log = folder / "driver.txt"
        command = [sys.executable, "-m", "achieve", "reproduce", *arguments, "--no-report"]
        command += ["--on", "ray", "--ray-address", address, "--", *TINY, "--total-steps", "6144"]
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT
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
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
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


def test_a_killed_worker_costs_no_run(cluster: Any, tmp_path: Path) -> None:
    workers = {_raylet(node): node for node in [_worker(cluster), _worker(cluster)]}
    storage, names = tmp_path / "storage", ["ad-small-s0", "ad-small-s1"]
    driver = Driver(tmp_path, cluster.address, "small", "--seeds", "2", "--ray-storage", str(storage))
    try:
        driver.wait_until(lambda: any(storage.glob("*/checkpoint/checkpoint.safetensors")))
        victim = next(storage.glob("*/checkpoint/checkpoint.safetensors")).parents[1]
        trainer = int((victim / ".lock").read_text())
        cluster.remove_node(workers[_parent(_parent(trainer))], allow_graceful=False)
        assert not (victim / "summary.json").exists(), "the worker was killed too late"
        assert driver.process.wait(timeout=180) == 0, driver.said
    finally:
        driver.close()
    assert f"{victim.name}: started again, its node was lost" in driver.said
    for name in names:
        run = tmp_path / "runs" / name
        summary = read_summary(run)
        assert summary is not None and summary["steps"] == 6144
        assert f"{name}: done in " in driver.said
        assert {path.name for path in run.iterdir()} == {
            "config.json",
            "episodes.jsonl",
            "metrics.jsonl",
            "summary.json",
            "weights.safetensors",
        }
        # The run of the killed worker went on from its checkpoint; the other one was not disturbed.
        assert len(read_config(run)["starts"]) == (2 if name == victim.name else 1)
    metrics = (tmp_path / "runs" / victim.name / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics]
    assert steps == sorted(steps) and steps[-1] == 6144


@pytest.mark.long
def test_stopped_runs_come_home_and_go_on(cluster: Any, tmp_path: Path) -> None:
    _worker(cluster)
    run, storage = tmp_path / "runs" / "ad-small-s0", tmp_path / "storage"
    driver = Driver(tmp_path, cluster.address, "small", "--seeds", "2", "--ray-storage", str(storage))
    try:
        driver.wait_until((storage / run.name / "checkpoint" / "checkpoint.safetensors").exists)
        driver.process.send_signal(signal.SIGINT)
        assert driver.process.wait(timeout=120) == 130, driver.said
    finally:
        driver.close()
    assert (run / "checkpoint" / "checkpoint.safetensors").exists() and read_summary(run) is None
    assert not (tmp_path / "runs" / "ad-small-s1").exists(), "there was room for one run at a time"

    # Without the storage: what is here is sent along, and the run goes on from it.
    again = Driver(tmp_path, cluster.address, "small", "--seeds", "1")
    try:
        assert again.process.wait(timeout=180) == 0, again.said
    finally:
        again.close()
    assert read_summary(run) is not None
    starts = read_config(run)["starts"]
    assert len(starts) == 2 and str(storage) not in starts[1]["command"]


def test_a_runs_files_travel_whole(tmp_path: Path) -> None:
    (run,) = some_runs("ad")
    path = write_run(tmp_path, run, step=64)
    (path / "checkpoint").mkdir()
    (path / "checkpoint" / "checkpoint.safetensors").write_bytes(b"state")
    (path / "checkpoint" / ".checkpoint.safetensors.tmp").write_bytes(b"half")
    (path / ".lock").write_text("1")
    sent = read_files(path)
    assert set(sent) == {"config.json", "metrics.jsonl", "checkpoint/checkpoint.safetensors"}
    write_files(tmp_path / "there", sent)
    assert contents(tmp_path / "there") == sent
    (path / "summary.json").write_text("{}")
    assert set(read_files(path)) == {"config.json", "metrics.jsonl", "summary.json"}
    assert read_files(tmp_path / "nothing") == {}


def test_files_stay_in_their_folder(tmp_path: Path) -> None:
    with pytest.raises(AchieveError, match="a run cannot have a file"):
        write_files(tmp_path / "run", {"../other": b""})


def test_what_a_run_asks_of_the_cluster() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    gpus = _share([node(CPU=16), node(CPU=8, GPU=4)], jobs=4)
    assert (gpus.cpus, gpus.gpus, gpus.threads) == (1, 0.25, None)
    bare = _share([node(), node(CPU=16), node(CPU=8), node(alive=False, CPU=1, GPU=1)], jobs=2)
    assert (bare.cpus, bare.gpus, bare.threads) == (4, 0, 4)
    with pytest.raises(ConfigError, match="no node of the Ray cluster has a CPU"):
        _share([node()], jobs=1)


def test_addresses_are_tried_before_ray_waits_for_them(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port = listener.getsockname()[1]
        address = f"{LOOPBACK}:{port}"
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"), connected(address, print):
            pass
        listener.listen()
        assert _answers(LOOPBACK, port) and _only_on_loopback(LOOPBACK, port)
    assert not _only_on_loopback("192.0.2.7", 6379)
    assert _host_and_port("ray://[::1]:10001") == ("::1", 10001)
    with pytest.raises(ConfigError, match="'head' is no address of a Ray cluster"), connected("head", print):
        pass
