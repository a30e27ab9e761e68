"""Groups of environments, in this process or in workers, behind one interface."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Protocol

from ..names import WorkerError
from .group import Board, Group, Job, Report
from .worker import START

_LOOK_AGAIN_S = 1.0
_GRACE_S = 5.0


class Crew(Protocol):
    """Runs all environments; what they show is on the board."""

    board: Board

    def reset(self, seeds: list[int], episodes: list[int]) -> list[Report]: ...

    def step(self) -> list[Report]: ...

    def close(self) -> None: ...


class InProcess:
    """All environments in this process, one after the other."""

    def __init__(self, job: Job) -> None:
        self.board = Board(job, bytearray(Board.size(job)))
        self._group = Group(job, self.board, range(job.num_envs))

    def reset(self, seeds: list[int], episodes: list[int]) -> list[Report]:
        return self._group.reset(seeds, episodes)

    def step(self) -> list[Report]:
        return self._group.step()

    def close(self) -> None:
        self._group.close()


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    members: range


class Workers:
    """``count`` processes that share the environments and write into memory that all of them see.

    When one fails, all are ended, and a `WorkerError` says what happened.
    """

    def __init__(self, job: Job, count: int) -> None:
        self._name = job.name
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers)
        with _memory(Board.size(job)) as file:
            self.board = Board(job, mmap.mmap(file.fileno(), Board.size(job)))
            bounds = [job.num_envs * k // count for k in range(count + 1)]
            for first, last in itertools.pairwise(bounds):
                self._workers.append(_start(file.fileno(), range(first, last)))
        self._ask([(job, worker.members) for worker in self._workers])

    def reset(self, seeds: list[int], episodes: list[int]) -> list[Report]:
        def part(values: list[int], members: range) -> list[int]:
            return values[members.start : members.stop]

        return self._ask([("reset", part(seeds, w.members), part(episodes, w.members)) for w in self._workers])

    def step(self) -> list[Report]:
        return self._ask([("step",)] * len(self._workers))

    def close(self) -> None:
        self._finalizer()

    def _ask(self, messages: list[Any]) -> list[Report]:
        """Sends each worker its message and gathers the answers."""
        try:
            for worker, message in zip(self._workers, messages, strict=True):
                # Who is gone is found below, where its last words are read too.
                with contextlib.suppress(ConnectionError):
                    worker.connection.send(message)
            reports: list[Report] = []
            open_ = {worker.connection: worker for worker in self._workers}
            while open_:
                ready = wait(list(open_), _LOOK_AGAIN_S)
                # A child of the environment's own may keep a dead worker's end open.
                gone = [c for c, worker in open_.items() if c not in ready and worker.process.poll() is not None]
                for connection in [*ready, *gone]:
                    reports += self._answer(open_.pop(connection))  # type: ignore[call-overload]
            return sorted(reports, key=lambda report: report[0])
        except BaseException:
            # Answers not read yet would be taken for those to the next message.
            self.close()
            raise

    def _answer(self, worker: _Worker) -> list[Report]:
        try:
            if not worker.connection.poll():
                raise EOFError
            fine, answer = worker.connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerError(self._obituary(worker)) from None
        if not fine:
            raise WorkerError(answer)
        return answer or []

    def _obituary(self, worker: _Worker) -> str:
        first, last = worker.members[0], worker.members[-1]
        whose = f"environment {first}" if first == last else f"environments {first} to {last}"
        try:
            code = worker.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the worker process of {whose} of the world {self._name} {how}"


def _memory(size: int) -> IO[bytes]:
    """A file that processes can share. It has no name, so it is gone with the last of them, however that one ends."""
    for folder in ("/dev/shm", None):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            os.posix_fallocate(file.fileno(), 0, size)  # fails here, not later, where a container gives little room
            stack.pop_all()
            return file
    raise WorkerError(f"there is no room for {size:,} bytes that worker processes share, in memory or on disk")


def _start(memory: int, members: range) -> _Worker:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        path = json.dumps([str(folder) for folder in sys.path])
        # The system ends a worker with the thread that started it, which is right for the main one alone.
        bound = threading.current_thread() is threading.main_thread()
        process = subprocess.Popen(
            [sys.executable, "-c", START, path, str(theirs.fileno()), str(memory), str(int(bound))],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), memory),
        )
        return _Worker(process, Connection(ours.detach()), members)


def _end(workers: list[_Worker]) -> None:
    """Closes the connections, at which workers end by themselves, and kills those that do not."""
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.connection.close()
    for worker in workers:
        try:
            worker.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
