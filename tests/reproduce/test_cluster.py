"""Runs through real Ray: on a cluster of two workers, one of which is killed on the way, and on this machine."""

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
from types import SimpleNamespace
from typing import Any

import pytest

from achieve import train
from achieve.cli import main
from achieve.commands.train import parse_train
from achieve.errors import AchieveError, ConfigError
from achieve.reproduce import cluster as ray_cluster
from achieve.reproduce.cluster import (
    Desk,
    Order,
    _answers,
    _host_and_port,
    _share,
    connected,
    read_files,
    write_files,
)
from achieve.reproduce.process import with_package
from achieve.run.folder import read_config, read_summary
from tests.conftest import Optional
from tests.reproduce.parts import TINY, contents, some_runs, without_processes, write_run
from tests.reproduce.test_executor import FAKE

LOOPBACK = "127.0.0.1"
ENVIRONMENT = with_package(
    {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "300",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the test's cluster is on loopback, which Ray would rewrite
    }
)
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
    assert f"{victim.name}: started again, its node was lost" in driver.said
    for name in names:
        summary = read_summary(runs / name)
        assert summary is not None and summary["steps"] == 6144
        assert f"{name}: done in " in driver.said
        # The run of the killed worker went on from its checkpoint; the other one was not disturbed.
        assert len(read_config(runs / name)["starts"]) == (2 if name == victim.name else 1)
    metrics = (victim / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics]
    assert steps == sorted(steps) and steps[-1] == 6144


def test_two_at_a_time_stopped_and_continued_are_the_same_runs_as_alone(
    optional: Optional, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    optional.module("ray")
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


@pytest.mark.parametrize("shared", [True, False])
def test_a_task_trains_in_the_folder_where_it_sees_it(
    optional: Optional, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = optional.module("ray")
    (run,) = some_runs("ad")
    home, node = tmp_path / "home", tmp_path / "node"
    write_run(home, run)
    (home / "logs").mkdir()
    if shared:
        (home / "logs" / ".token").touch()
    node.mkdir()
    orders = {run.name: {"config": json.loads((home / run.name / "config.json").read_text())["config"]}}
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.1")
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: [3])
    monkeypatch.setattr(ray_cluster, "achieve_command", lambda arguments: [sys.executable, str(FAKE), *arguments])
    monkeypatch.setattr(ray_cluster, "POLL", 0.02)
    monkeypatch.setattr(ray_cluster.tempfile, "gettempdir", lambda: str(node))
    desk = Desk()

    def tell(*news: Any) -> Any:
        answer = desk.tell(*news)
        return SimpleNamespace(future=lambda: SimpleNamespace(done=lambda: True, result=lambda: answer))

    order = Order(run, home, ".token", {"FAKE_RUNS": str(tmp_path / "orders.json")}, tmp_path)
    files = {} if shared else read_files(home / run.name)
    result = ray_cluster.train(order, files, SimpleNamespace(tell=SimpleNamespace(remote=tell)))
    assert result.outcome.code == 0
    assert desk.news()[run.name].place == "GPU 3 of 192.0.2.1"
    left = [path.name for path in node.rglob("*") if path.is_file()]
    assert left == ([] if shared else ["journal.txt"]), "nothing but the fake's own notes is left on the node"
    assert (home / run.name / "summary.json").exists() == shared
    assert ({"config.json", "metrics.jsonl", "summary.json"} <= set(result.files)) == (not shared)


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
    assert read_files(tmp_path / "nothing") == {}


def test_files_stay_in_their_folder(tmp_path: Path) -> None:
    with pytest.raises(AchieveError, match="a run cannot have a file"):
        write_files(tmp_path / "run", {"../other": b""})


def test_what_a_run_asks_of_the_cluster() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    mixed = [node(CPU=16), node(CPU=8, GPU=4)]
    assert _share(mixed, jobs=2, gpus=None) == (1, 0.5)
    assert _share(mixed, jobs=4, gpus=None) == (0.5, 0.25)  # as many as asked for, though there are fewer cores
    assert _share(mixed, jobs=3, gpus=None)[1] * 3 <= 1
    assert _share(mixed, jobs=2, gpus=False) == (4, 0)
    bare = [node(), node(CPU=16), node(CPU=8), node(alive=False, CPU=1, GPU=1)]
    assert _share(bare, jobs=3, gpus=None) == (2, 0)
    assert _share([node(CPU=2)], jobs=4, gpus=None) == (0.5, 0)
    with pytest.raises(ConfigError, match="no node of the Ray cluster has a CPU"):
        _share([node()], jobs=1, gpus=None)


def test_addresses_are_tried_before_ray_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port = listener.getsockname()[1]
        address = f"{LOOPBACK}:{port}"
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"), connected(address, print):
            pass
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"), connected("auto", print):
            pass
        listener.listen()
        assert _answers(LOOPBACK, port)
    assert _host_and_port("ray://[::1]:10001") == ("::1", 10001)
    with pytest.raises(ConfigError, match="'head' is not an address of a Ray cluster"), connected("head", print):
        pass
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(ray_cluster, "_CURRENT", tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no Ray cluster on this machine"), connected("auto", print):
        pass
