"""Runs made on this machine: several on each GPU, each a process of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from achieve.errors import AchieveError
from achieve.reproduce.board import Board, Status
from achieve.reproduce.child import STOPPED, Child, Command, achieve_command, log_folder, stop_all
from achieve.reproduce.devices import Device, free_gib, host_free_gib
from achieve.reproduce.estimates import Measurements
from achieve.reproduce.jobs import Jobs
from achieve.reproduce.plan import Planned
from achieve.reproduce.watch import Reading, read_progress, score_of, score_words
from achieve.run.folder import read_summary
from achieve.run.hardware import usable_cores
from achieve.run.progress import duration
from achieve.run.signals import StopRequest

PATIENCE = 60.0
POLL = 0.25
READ_EVERY = 1.0
# A CUDA context, kernels and libraries, which PyTorch does not count among what a run has reserved.
_CONTEXT_GIB = 1.0
# What the first run is taken to need until it has said; `ad` has reserved 9.4 GiB by its end.
_FIRST_GUESS_GIB = 10.0
_MEMORY_TRIES = 3


@dataclass
class Running:
    """A run under way."""

    planned: Planned
    child: Child
    device: Device
    began: float
    reading: Reading | None = None
    company: list[int] = field(default_factory=list)
    """How many runs its device had, at every look."""


class Scheduler:
    """Makes runs until all are made, or until it is asked to stop.

    A run that fails is reported with its last lines and left as it is; the others go on. A run that found no memory is
    tried again with fewer beside it.
    """

    def __init__(
        self,
        runs: Sequence[Planned],
        devices: Sequence[Device],
        jobs: Jobs,
        board: Board,
        measured: Measurements,
        environment: Mapping[str, str] | None = None,
        command: Command = achieve_command,
        free: Callable[[Device], float | None] = free_gib,
        host_free: Callable[[], float | None] = host_free_gib,
        patience: float = PATIENCE,
        poll: float = POLL,
    ) -> None:
        self.waiting = deque(runs)
        self.running: list[Running] = []
        self.failed: list[str] = []
        self.devices = list(devices)
        self.jobs = jobs
        self.board = board
        self.measured = measured
        self._logs = log_folder(measured.folder)
        self._environment = dict(environment or {})
        self._command = command
        self._free, self._host_free = free, host_free
        self._patience, self._poll = patience, poll
        self._memory_tries: dict[str, int] = {}
        self._needs: dict[str, float] = {"gpu": 0.0, "host": 0.0}

    def run(self, stop: StopRequest) -> bool:
        """Make the runs; False if it was asked to stop before all were made."""
        read_at = 0.0
        try:
            while (self.waiting or self.running) and not stop.requested:
                self._reap()
                now = self.board.clock()
                if now - read_at >= READ_EVERY:
                    read_at = now
                    self._look(now)
                    self._start_more()
                self.board.show()
                time.sleep(self._poll)
        finally:
            self._stop()
        return not self.waiting

    def _start_more(self) -> None:
        while self.waiting:
            crowds = {device: sum(r.device == device for r in self.running) for device in self.devices}
            device = min(crowds, key=lambda device: crowds[device])
            if crowds[device] >= self.jobs.limit:
                return
            if crowds[device] and not self._has_room(device):
                if self.jobs.no_more():
                    self._settled("there is no memory for more")
                return
            self._start(self.waiting.popleft(), device)

    def _start(self, planned: Planned, device: Device) -> None:
        now, name = self.board.clock(), planned.run.name
        threads = {}
        if device.id is None and self.jobs.limit > 1:
            # PyTorch would start as many threads as there are cores in every run.
            threads = {"OMP_NUM_THREADS": str(max(1, usable_cores() // self.jobs.limit))}
        environment = {**threads, **self._environment, **device.environment}
        log = self._logs / f"{name}.log"
        child = Child(self._command(planned.run.arguments(planned.folder)), log, environment)
        self.running.append(Running(planned, child, device, now))
        row = self.board.rows[name]
        self.board.say(f"{name}: {'continued' if row.step else 'started'} on {device.label}")
        row.start(now, device.label)

    def _look(self, now: float) -> None:
        work = {}
        for running in self.running:
            name = running.planned.run.name
            running.company.append(sum(r.device == running.device for r in self.running))
            reading = read_progress(running.planned.folder)
            row = self.board.rows[name]
            if reading is not None:
                running.reading = reading
                row.read(now, reading)
                self._needs["gpu"] = max(self._needs["gpu"], reading.gpu_gib or 0.0)
                self._needs["host"] = max(self._needs["host"], reading.host_gib or 0.0)
            if row.moving:
                work[name] = row.cost * row.step
        if self.jobs.observe(now, work):
            self._settled("more are no faster in all")
        what = f"{self.jobs.limit} at a time" + (" on each device" if len(self.devices) > 1 else "")
        self.board.jobs = what if self.jobs.settled else f"{what}, trying for the best"

    def _settled(self, why: str) -> None:
        self.board.say(f"{self.jobs.limit} runs at a time from now on: {why}")
        if self.jobs.speeds:
            self.measured.record_jobs(self.jobs.limit, self.jobs.speeds)

    def _has_room(self, device: Device) -> bool:
        """Whether another run fits beside those there, once all have grown to the largest seen so far."""
        if device.id is not None:
            need = (self._needs["gpu"] or _FIRST_GUESS_GIB) + _CONTEXT_GIB
            there = [r for r in self.running if r.device == device]
            free = self._free(device)
            if free is not None and free < need + sum(max(0.0, need - _gpu_held(r)) for r in there):
                return False
        need, free = self._needs["host"], self._host_free()
        return free is None or free >= need + sum(max(0.0, need - _host_held(r)) for r in self.running)

    def _reap(self) -> None:
        for running in list(self.running):
            code = running.child.poll()
            if code is None:
                continue
            self.running.remove(running)
            self._ended(running, code)

    def _ended(self, running: Running, code: int) -> None:
        planned, name = running.planned, running.planned.run.name
        row, now = self.board.rows[name], self.board.clock()
        try:
            summary = read_summary(planned.folder) if code == 0 else None
        except AchieveError:
            summary = None
        if summary is not None:
            done = running.reading.step - row.began_step if running.reading else 0
            row.step, row.score = row.total, score_of(summary)
            self.board.end(row, Status.FINISHED)
            self.board.say(f"{name}: done in {duration(now - running.began)}, {score_words(row.score)}")
            if done > row.total / 2 and running.company:
                company = sum(running.company) / len(running.company)
                self.measured.record_rate(planned.run.preset, done / (now - running.began), company)
            return
        lines = running.child.last_lines()
        if any("out of memory" in line.lower() for line in lines) and self._retry_with_fewer(running):
            return
        self.failed.append(name)
        self.board.end(row, Status.FAILED)
        why = "was stopped by someone else" if code == STOPPED else f"failed with exit code {code}"
        shown = "".join(f"\n    {line}" for line in lines)
        self.board.say(f"{name}: {why}; its last lines, from {running.child.log}:{shown}")

    def _retry_with_fewer(self, running: Running) -> bool:
        name = running.planned.run.name
        tries = self._memory_tries[name] = self._memory_tries.get(name, 0) + 1
        alone = not any(r.device == running.device for r in self.running)
        if alone or tries > _MEMORY_TRIES:
            return False
        self.jobs.too_many()
        self.board.say(f"{name}: found no memory beside the others; {self.jobs.limit} at a time, and it is tried again")
        self.board.rows[name].status = Status.WAITING
        self.waiting.append(running.planned)
        return True

    def _stop(self) -> None:
        if not self.running:
            return
        names = ", ".join(r.planned.run.name for r in self.running)
        self.board.say(f"stopping {names}: each keeps its last checkpoint")
        try:
            stop_all([r.child for r in self.running], self._patience)
        finally:
            for running in self.running:
                name = running.planned.run.name
                ended_well = running.child.poll() == 0 and (running.planned.folder / "summary.json").exists()
                self.board.end(self.board.rows[name], Status.FINISHED if ended_well else Status.STOPPED)
                if not ended_well:
                    self.waiting.append(running.planned)
            self.running = []


def _gpu_held(running: Running) -> float:
    held = running.reading.gpu_gib if running.reading else None
    return held + _CONTEXT_GIB if held else 0.0


def _host_held(running: Running) -> float:
    held = running.reading.host_gib if running.reading else None
    return held or 0.0
