"""Runs made through Ray: each a task with a share of a GPU, on this machine or on a cluster.

A task trains by the same command as everywhere, in the run's own folder if its node sees that folder; if not, in a
folder of the node, and returns the run's files. When a node is lost, Ray starts its tasks again elsewhere: a run goes
on from the folder that all nodes see, or from what that folder held when the task was sent.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import achieve
from achieve.errors import AchieveError, ConfigError
from achieve.reproduce.executor import conclude, log_folder
from achieve.reproduce.live_table import LiveTable, Status
from achieve.reproduce.plan import Planned, RunSpec
from achieve.reproduce.process import PATIENCE, Outcome, Process, achieve_command
from achieve.reproduce.tail_metrics import Reading, read_progress
from achieve.run.files import atomic_file
from achieve.run.signals import StopRequest
from achieve.run.trackers import missing_extra

POLL = 0.5
RETRIES = 3
AUTO = "auto"
_CURRENT = Path("/tmp/ray/ray_current_cluster")
_LAST = "summary.json"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Order:
    """What a task is to do."""

    run: RunSpec
    folder: Path
    """Where the runs are for whoever sent this."""
    token: str
    """Name of a file there, by which a node that sees the folder knows it."""
    environment: Mapping[str, str | None]
    cwd: Path
    version: str = achieve.__version__


class Result(NamedTuple):
    """What a task brings back: how the run ended, and its files where they are not in its folder already."""

    outcome: Outcome
    files: dict[str, bytes]


class News(NamedTuple):
    """What a task last told: where it is, in which attempt, and how far."""

    place: str
    attempt: int
    reading: Reading | None


class Desk:
    """An actor on the head node that tasks tell their news, and that tells them to stop."""

    def __init__(self) -> None:
        self._news: dict[str, News] = {}
        self._attempts: dict[str, list[str]] = {}
        self._stopping = False

    def tell(self, name: str, attempt: str, place: str, reading: Reading | None) -> bool:
        """Take in a task's news; returns True when it is to stop."""
        attempts = self._attempts.setdefault(name, [])
        if attempt not in attempts:
            attempts.append(attempt)
        self._news[name] = News(place, len(attempts), reading)
        return self._stopping

    def news(self) -> dict[str, News]:
        return dict(self._news)

    def stop(self) -> None:
        self._stopping = True


def train(order: Order, files: Mapping[str, bytes], desk: Any) -> Result:
    """Make or continue a run on this node: the task."""
    import ray

    if order.version != achieve.__version__:
        return Result(Outcome(2, [f"this node has achieve {achieve.__version__}, the runs are {order.version}'s"]), {})
    name, attempt = order.run.name, uuid.uuid4().hex
    node, gpus = ray.util.get_node_ip_address(), ray.get_gpu_ids()
    place = f"{f'GPU {gpus[0]}' if gpus else 'CPU'}{'' if node == _LOOPBACK else f' of {node}'}"
    shared = (log_folder(order.folder) / order.token).exists()
    # Else the same on every attempt, so that one whose worker died on a living node finds what it had.
    base = order.folder if shared else Path(tempfile.gettempdir()) / f"achieve{order.token}"
    folder = base / name
    if not shared and not (folder / "config.json").exists():
        write_files(folder, files)
    log = log_folder(base) / f"{name}.log"
    command = achieve_command(order.run.arguments(folder))
    process = Process(command, log, order.environment, order.cwd if order.cwd.is_dir() else None)
    answer: Any = None

    def tell() -> bool:
        # Never waited for: Ray gives a task's cores to another one while it waits for an object.
        nonlocal answer
        if answer is not None and answer.done() and answer.result():
            return True
        if answer is None or answer.done():
            answer = desk.tell.remote(name, attempt, place, read_progress(folder)).future()
        return False

    outcome = process.watch(tell, poll=POLL)  # also stopped where the desk fails, as whoever sent this is gone then
    if shared:
        return Result(outcome, {})
    result = Result(outcome, read_files(folder))
    shutil.rmtree(folder)
    log.unlink()
    with suppress(OSError):  # another run of this node may still be at work there
        log.parent.rmdir()
        base.rmdir()
    return result


def read_files(folder: Path) -> dict[str, bytes]:
    """Return a run's files by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and not path.name.endswith(".tmp")
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put a run's files into its folder, each whole or not at all, the one that says it is complete last."""
    for name in sorted(files, key=lambda name: name == _LAST):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise AchieveError(f"a run cannot have a file {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(files[name])


def run_on_ray(
    runs: Sequence[Planned],
    table: LiveTable,
    stop: StopRequest,
    jobs: int,
    gpus: bool | None,
    here: bool,
    environment: Mapping[str, str],
    patience: float = 2 * PATIENCE,
) -> list[str]:
    """Make the runs on the cluster this process is connected to; returns the names of those that failed."""
    import ray

    cpus, share = _share(ray.nodes(), jobs, gpus)
    desk: Any = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=_head(ray)).remote()
    task: Any = ray.remote(train).options(
        num_cpus=cpus, num_gpus=share, max_retries=RETRIES, scheduling_strategy="SPREAD"
    )
    # Ray sets the threads of its tasks, which would make another run of each: rounding depends on their number.
    told = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"), **environment}
    folder, token = runs[0].folder.parent.resolve(), f".ray-{uuid.uuid4().hex[:8]}"
    log_folder(folder).mkdir(parents=True, exist_ok=True)
    mark = log_folder(folder) / token
    mark.touch()
    try:
        pending = {}
        for planned in runs:
            order = Order(planned.run, folder, token, told, Path.cwd())
            pending[task.remote(order, {} if here else read_files(planned.folder), desk)] = planned
        return _follow(ray, pending, desk, table, stop, patience)
    finally:
        mark.unlink(missing_ok=True)


def _follow(
    ray: Any, pending: dict[Any, Planned], desk: Any, table: LiveTable, stop: StopRequest, patience: float
) -> list[str]:
    failed: list[str] = []
    asked: float | None = None
    while pending:
        ended, _ = ray.wait(list(pending), timeout=POLL)
        _look(table, ray.get(desk.news.remote()))
        for reference in ended:
            planned = pending.pop(reference)
            if not _gather(ray, planned, reference, table, stopping=asked is not None):
                failed.append(planned.run.name)
        table.show()
        if stop.requested and asked is None:
            # Tasks that wait are taken back; those that run save their state, end, and bring it here.
            asked = table.clock()
            table.say("stopping: each run saves its state first")
            ray.get(desk.stop.remote())
            for reference, planned in pending.items():
                if table.rows[planned.run.name].status is Status.WAITING:
                    ray.cancel(reference)
        if asked is not None and pending and table.clock() - asked > patience:
            table.say(f"given up waiting for {', '.join(p.run.name for p in pending.values())}")
            break
    return failed


def _look(table: LiveTable, news: Mapping[str, News]) -> None:
    now = table.clock()
    for name, latest in news.items():
        row = table.rows[name]
        if row.status in (Status.FINISHED, Status.FAILED, Status.STOPPED):
            continue
        if row.attempts < latest.attempt:
            again = f"started again, its node was lost ({latest.attempt - 1} before)"
            first = "continued" if row.step else "started"
            table.say(f"{name}: {again if row.attempts else first} on {latest.place}")
            row.start(now, latest.place)
            row.attempts = latest.attempt
        if latest.reading is not None:
            row.read(Reading(*latest.reading))


def _gather(ray: Any, planned: Planned, reference: Any, table: LiveTable, stopping: bool) -> bool:
    """Bring a task's results here; returns False if the run failed."""
    row = table.rows[planned.run.name]
    try:
        result = Result(*ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        row.status = Status.WAITING
        return True
    except ray.exceptions.RayError as error:
        table.end(row, Status.FAILED)
        table.say(f"{planned.run.name}: lost; Ray says: {str(error).strip().splitlines()[-1]}")
        return False
    write_files(planned.folder, result.files)
    return conclude(planned, Outcome(*result.outcome), table, stopping)


def _share(nodes: Sequence[Mapping[str, Any]], jobs: int, gpus: bool | None) -> tuple[float, float]:
    """Return the CPUs and the part of a GPU that Ray keeps for one run; by default GPUs are used if there are any."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    with_gpu = [have for have in alive if have.get("GPU")] if gpus is not False else []
    if with_gpu:
        cores = min(have.get("CPU", 0) / have["GPU"] for have in with_gpu)
        return _whole(min(1.0, cores / jobs)), int(1e4 / jobs) / 1e4
    cores = min((have["CPU"] for have in alive if have.get("CPU", 0) >= 1), default=0)
    if cores == 0:
        raise ConfigError("no node of the Ray cluster has a CPU to compute with; add one, then run the same command")
    return _whole(cores / jobs), 0


def _whole(cpus: float) -> float:
    """Round down to what Ray takes: whole above 1, ten-thousandths below."""
    return int(cpus) if cpus >= 1 else int(1e4 * cpus) / 1e4


def _head(ray: Any) -> Any:
    """Return where the desk lives: with the head node, without which there is no cluster anyway."""
    head = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and "node:__internal_head__" in n["Resources"])
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(head, soft=False)


@contextmanager
def connected(address: str | None, say: Callable[[str], None], gpus: int = 0) -> Iterator[None]:
    """Within the block this process belongs to the Ray cluster at an address.

    Without one it belongs to a cluster started here, with so many GPUs.
    """
    known = _find_cluster() if address == AUTO else address
    if known is not None and not _answers(*_host_and_port(known)):
        raise ConfigError(f"no Ray cluster answers at {known}; give the host:port that `ray start --head` printed")
    # Both are read when Ray is imported. It would report its use to its makers, and have its own cluster listen beyond
    # loopback: this setting, made for other systems, is the only one that keeps it there.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if known is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise missing_extra("Ray", "ray") from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if known is None:
            ray.init(address="local", num_gpus=gpus, include_dashboard=False, object_store_memory=2**27, **quiet)
        else:
            ray.init(address=known, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AchieveError(f"Ray cannot be used: {str(error).strip().splitlines()[0]}") from error
    for number, handler in handlers.items():  # Ray takes SIGTERM for itself, and would abort
        signal.signal(number, handler)
    if known:
        say(f"Ray cluster at {known}")
    try:
        yield
    finally:
        ray.shutdown()


def _find_cluster() -> str:
    """Return the address of the user's cluster: RAY_ADDRESS, or the one that `ray start` left on this machine."""
    known = os.environ.get("RAY_ADDRESS", "")
    with suppress(OSError):
        known = known or _CURRENT.read_text().strip()
    if not known:
        raise ConfigError("there is no Ray cluster on this machine and RAY_ADDRESS is not set; give --ray host:port")
    return known


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"{address!r} is not an address of a Ray cluster; give host:port")
    return host.strip("[]"), int(port)


def _answers(host: str, port: int, timeout: float = 5.0) -> bool:
    """Return whether something listens there. Asked first, as Ray itself waits for minutes."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True
