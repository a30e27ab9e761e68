"""Runs made on a Ray cluster: each a task with a share of a GPU, its results brought into the same folder as ever.

A task trains in a folder of its node (or on storage that all nodes see) by the same command as here, tells how far it
is, and returns the run's files. When its node is lost, Ray starts it again elsewhere: it goes on from the shared
storage, or from what the run's folder here held when the task was sent.
"""

from __future__ import annotations

import os
import shutil
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
from achieve.reproduce.board import Board, Status
from achieve.reproduce.child import Child, achieve_command, log_folder, stop_all
from achieve.reproduce.experiments import Run
from achieve.reproduce.plan import Planned
from achieve.reproduce.watch import Reading, read_progress, score_of, score_words
from achieve.run.files import atomic_file, read_json
from achieve.run.progress import duration
from achieve.run.signals import StopRequest
from achieve.run.trackers import missing_extra

POLL = 0.5
PATIENCE = 60.0
_CURRENT = Path("/tmp/ray/ray_current_cluster")
_LAST = "summary.json"


@dataclass(frozen=True)
class Order:
    """What a task is to do."""

    run: Run
    storage: Path | None
    session: str
    threads: int | None
    version: str = achieve.__version__


class Result(NamedTuple):
    """What a task brings back: the exit code, the last lines printed, and the run's files."""

    code: int
    lines: list[str]
    files: dict[str, bytes]


class News(NamedTuple):
    """What a task last told: where it is, in which attempt, and how far."""

    node: str
    attempt: int
    reading: Reading | None


class Desk:
    """An actor on the head node that tasks tell their news, and that tells them to stop."""

    def __init__(self) -> None:
        self._news: dict[str, News] = {}
        self._attempts: dict[str, list[str]] = {}
        self._stopping = False

    def tell(self, name: str, attempt: str, node: str, reading: Reading | None) -> bool:
        """Take in a task's news; True when it is to stop."""
        attempts = self._attempts.setdefault(name, [])
        if attempt not in attempts:
            attempts.append(attempt)
        self._news[name] = News(node, len(attempts), reading)
        return self._stopping

    def news(self) -> dict[str, News]:
        return dict(self._news)

    def stop(self) -> None:
        self._stopping = True


def train(order: Order, files: Mapping[str, bytes], desk: Any) -> Result:
    """The task: make or continue a run on this node."""
    import ray

    if order.version != achieve.__version__:
        return Result(2, [f"this node has achieve {achieve.__version__}, the runs are {order.version}'s"], {})
    node = ray.util.get_node_ip_address()
    # The same on every attempt, so that one whose worker died on a living node finds what it had.
    base = order.storage or Path(tempfile.gettempdir()) / f"achieve-{order.session}"
    folder = base / order.run.name
    if not (folder / "config.json").exists():
        write_files(folder, files)
    threads = {} if order.threads is None else {"OMP_NUM_THREADS": str(order.threads)}
    child = Child(achieve_command(order.run.arguments(folder)), log_folder(base) / f"{order.run.name}.log", threads)
    attempt = uuid.uuid4().hex
    answer: Any = None
    try:
        while not child.wait(POLL):
            # Never waited for: Ray gives a task's cores to another one while it waits for an object.
            if answer is not None and answer.done() and answer.result():
                break
            if answer is None or answer.done():
                answer = desk.tell.remote(order.run.name, attempt, node, read_progress(folder)).future()
    finally:
        # Also where the desk does not answer but fails, as whoever sent this task is gone then.
        stop_all([child], PATIENCE)
    code = child.poll()
    result = Result(-1 if code is None else code, child.last_lines(), read_files(folder))
    if order.storage is None:
        shutil.rmtree(folder)
        child.log.unlink()
        with suppress(OSError):  # another run of this node may still be at work there
            os.removedirs(child.log.parent)
    return result


def read_files(folder: Path) -> dict[str, bytes]:
    """A run's files by their names. A finished run's checkpoint, which is of no more use, stays behind."""
    finished = (folder / _LAST).exists()
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name != ".lock"
        and not path.name.endswith(".tmp")
        and not (finished and path.parent.name == "checkpoint")
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


def run_on_cluster(
    runs: Sequence[Planned],
    board: Board,
    stop: StopRequest,
    jobs: int,
    retries: int,
    storage: Path | None,
    patience: float = 2 * PATIENCE,
) -> list[str]:
    """Make the runs on the cluster this process is connected to; returns the names of those that failed."""
    import ray

    share = _share(ray.nodes(), jobs)
    board.jobs = share.words
    desk: Any = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=_head(ray)).remote()
    task: Any = ray.remote(train).options(
        num_cpus=share.cpus, num_gpus=share.gpus, max_retries=retries, scheduling_strategy="SPREAD"
    )
    session = uuid.uuid4().hex[:8]
    place = storage.resolve() if storage is not None else None
    pending = {}
    for planned in runs:
        order = Order(planned.run, place, session, share.threads)
        pending[task.remote(order, read_files(planned.folder), desk)] = planned
    failed: list[str] = []
    asked: float | None = None
    while pending:
        ended, _ = ray.wait(list(pending), timeout=POLL)
        _look(board, ray.get(desk.news.remote()))
        for reference in ended:
            planned = pending.pop(reference)
            if not _gather(planned, reference, board, stopping=asked is not None):
                failed.append(planned.run.name)
        board.show()
        if stop.requested and asked is None:
            asked = board.clock()
            _ask_to_stop(ray, desk, pending, board)
        if asked is not None and board.clock() - asked > patience:
            board.say(f"given up waiting for {', '.join(p.run.name for p in pending.values())}")
            break
    return failed


def _look(board: Board, news: Mapping[str, News]) -> None:
    now = board.clock()
    for name, latest in news.items():
        row = board.rows[name]
        if row.status in (Status.FINISHED, Status.FAILED, Status.STOPPED):
            continue
        if row.attempts < latest.attempt:
            again = f"started again, its node was lost ({latest.attempt - 1} before)" if row.attempts else "started"
            board.say(f"{name}: {again} on {latest.node}")
            row.start(now, latest.node)
            row.attempts = latest.attempt
        if latest.reading is not None:
            row.read(now, Reading(*latest.reading))


def _gather(planned: Planned, reference: Any, board: Board, stopping: bool) -> bool:
    """Bring a task's results here; False if the run failed."""
    import ray

    name, row = planned.run.name, board.rows[planned.run.name]
    try:
        result = Result(*ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        board.end(row, Status.STOPPED)
        return True
    except ray.exceptions.RayError as error:
        board.end(row, Status.FAILED)
        board.say(f"{name}: lost; Ray says: {str(error).strip().splitlines()[-1]}")
        return False
    write_files(planned.folder, result.files)
    if result.code == 0 and _LAST in result.files:
        row.step, row.score = row.total, score_of(read_json(planned.folder / _LAST))
        board.end(row, Status.FINISHED)
        took = f" in {duration(board.clock() - row.began)}" if row.attempts else ""
        board.say(f"{name}: done{took}, {score_words(row.score)}")
        return True
    if stopping:
        board.end(row, Status.STOPPED)
        return True
    board.end(row, Status.FAILED)
    shown = "".join(f"\n    {line}" for line in result.lines)
    board.say(f"{name}: failed with exit code {result.code} on {row.place or 'its node'}; its last lines:{shown}")
    return False


def _ask_to_stop(ray: Any, desk: Any, pending: Mapping[Any, Planned], board: Board) -> None:
    """Tasks that wait are taken back; those that run end with their last checkpoint and bring it here."""
    board.say("stopping: each run brings its last checkpoint")
    ray.get(desk.stop.remote())
    for reference, planned in pending.items():
        if board.rows[planned.run.name].status is Status.WAITING:
            ray.cancel(reference)


class Share(NamedTuple):
    """What Ray is asked to keep for one run, and in how many threads it may compute."""

    cpus: float
    gpus: float
    threads: int | None
    words: str


def _share(nodes: Sequence[Mapping[str, Any]], jobs: int) -> Share:
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    if any(have.get("GPU") for have in resources):
        return Share(1, 1 / jobs, None, f"{jobs} at a time on each GPU")
    cores = min((int(have["CPU"]) for have in resources if have.get("CPU", 0) >= 1), default=0)
    if cores == 0:
        raise ConfigError("no node of the Ray cluster has a CPU to compute with; add one, then run the same command")
    share = max(1, cores // jobs)
    return Share(share, 0, share, f"{jobs} at a time on each node")


def _head(ray: Any) -> Any:
    """Where the desk lives: with the head node, without which there is no cluster anyway."""
    head = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and "node:__internal_head__" in n["Resources"])
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(head, soft=False)


@contextmanager
def connected(address: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Within the block this process belongs to a Ray cluster: the one given, else one here, else one started here."""
    known = address or os.environ.get("RAY_ADDRESS")
    if known is not None and not _answers(*_host_and_port(known)):
        raise ConfigError(f"no Ray cluster answers at {known}; give the host:port that `ray start --head` printed")
    if known is None:
        with suppress(OSError, ConfigError):
            current = _CURRENT.read_text().strip()
            known = current if _answers(*_host_and_port(current)) else None
    # Both are read when Ray is imported. It would report its use to its makers, and rewrite a loopback address to the
    # machine's outward one, where a cluster bound to loopback does not listen: this setting, made for other systems, is
    # the only one that leaves it as it is.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if known is None or _only_on_loopback(*_host_and_port(known)):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise missing_extra("Ray", "ray") from None
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if known is None:
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            ray.init(address=known, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AchieveError(f"Ray cannot be used: {str(error).strip().splitlines()[0]}") from error
    say(f"Ray cluster at {known}" if known else "no Ray cluster was found, so one was started on this machine")
    try:
        yield
    finally:
        ray.shutdown()


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a Ray cluster; give host:port")
    return host.strip("[]"), int(port)


def _answers(host: str, port: int, timeout: float = 5.0) -> bool:
    """Whether something listens there. Asked first, as Ray itself waits for minutes."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


def _only_on_loopback(host: str, port: int) -> bool:
    """Whether a cluster at a loopback address cannot be reached by this machine's outward one."""
    if host not in ("127.0.0.1", "localhost", "::1"):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only picks the interface that would be used
        except OSError:
            return True
        return not _answers(probe.getsockname()[0], port, timeout=1.0)
