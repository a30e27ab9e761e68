"""Processes by the hundred, forked from one in which everything is imported and compiled."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn


@dataclass
class Tally:
    """What one part has found."""

    counts: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    """Each with `id`, `what` went wrong, and `where`."""
    seconds: float = 0.0

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def merge(self, other: dict[str, Any]) -> None:
        """Take in what a worker sent: `counts` and `failures`."""
        self.add(**other["counts"])
        self.failures += other["failures"]


def prepare() -> None:
    """Import and compile what the children need, without a single thread: none would survive a fork."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import numpy as np
    import torch

    torch.set_num_threads(1)

    import achieve
    import achieve.cli
    import achieve.train

    for environment in ("crafter", "minigrid"):
        envs = achieve.make_vec(environment, num_envs=1, threads=1)
        envs.reset()
        envs.step(np.zeros(1, dtype=np.int64))
        envs.close()


def spread(work: Callable[[Any], Any], jobs: Sequence[Any], workers: int = 2) -> Iterator[Any]:
    """Yield `work(job)` of every job, in order of completion, from forked workers. Results travel as JSON."""
    tickets, office = os.pipe()
    feeder = os.fork()
    if feeder == 0:  # a pipe holds only so many tickets
        os.close(tickets)
        for number in range(len(jobs)):
            os.write(office, number.to_bytes(4, "little"))
        os._exit(0)
    os.close(office)
    pids, streams = [feeder], []
    for _ in range(min(workers, len(jobs))):
        results, desk = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(results)
            _serve(work, jobs, tickets, desk)
        os.close(desk)
        pids.append(pid)
        streams.append(os.fdopen(results, "r"))
    os.close(tickets)
    done, open_streams = 0, list(streams)
    try:
        while open_streams:
            for stream in select.select(open_streams, [], [])[0]:
                line = stream.readline()
                if not line:
                    open_streams.remove(stream)
                    continue
                result = json.loads(line)
                if "harness" in result:
                    raise RuntimeError(f"the harness itself failed:\n{result['harness']}")
                done += 1
                yield result["result"]
        if done != len(jobs):
            raise RuntimeError(f"a worker died: {len(jobs) - done} of {len(jobs)} jobs were not done")
    finally:
        for stream in streams:
            stream.close()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


def _serve(work: Callable[[Any], Any], jobs: Sequence[Any], tickets: int, desk: int) -> NoReturn:
    with os.fdopen(desk, "w") as out:
        while ticket := os.read(tickets, 4):
            try:
                message = {"result": work(jobs[int.from_bytes(ticket, "little")])}
            except BaseException:
                message = {"harness": traceback.format_exc()}
            out.write(json.dumps(message) + "\n")
            out.flush()
    os._exit(0)


@dataclass(frozen=True)
class End:
    """How a child ended."""

    code: int
    """Its exit code, or minus the number of the signal that killed it."""
    output: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


def in_child(work: Callable[[], int], log: Path, kill_after: float | None = None, patience: float = 120.0) -> End:
    """Run `work` in a child of its own; its result is the exit code.

    Args:
        work: what to do.
        log: receives what the child prints.
        kill_after: seconds after which it is sent SIGKILL.
        patience: seconds after which it counts as hanging and is ended, with SIGABRT.
    """
    began = time.monotonic()
    log.write_bytes(b"")  # the child may be killed before it does so
    pid = os.fork()
    if pid == 0:
        _be_child(work, log)
    watch = os.pidfd_open(pid)
    try:
        ended = select.select([watch], [], [], patience if kill_after is None else kill_after)[0]
        if not ended:
            os.kill(pid, signal.SIGABRT if kill_after is None else signal.SIGKILL)
    finally:
        os.close(watch)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return End(code, log.read_text(errors="replace"), time.monotonic() - began)


def _be_child(work: Callable[[], int], log: Path) -> NoReturn:
    code = 1
    try:
        stream = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(stream, number)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
