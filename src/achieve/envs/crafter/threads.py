"""Helper threads for a batch: how they are started, woken, and stopped.

They are ordinary Python threads that spend their time in compiled code, see `sharing`. Numba's own
thread pools are not used: some abort when two Python threads enter them, or after a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

from .batch import Batch, Workspace
from .runner import RESET, STEP
from .sharing import JOB, JOIN, SERVE, SHARED

_NO_ACTIONS = np.zeros(0, np.int64)
_NO_OBS = np.zeros((0, 0, 0, 3), np.uint8)


class Pool:
    """Runs a batch on ``threads`` threads, the caller's included, who holds the batch's lock."""

    def __init__(self, batch: Batch, threads: int) -> None:
        self._batch = batch
        self._threads = threads
        self._crew: Crew | None = None

    def reset(self, obs: np.ndarray) -> None:
        batch = self._batch
        batch.longest = 0
        if self._threads == 1:
            batch.reset(obs, 0, batch.num_envs, batch.workspace)
        else:
            self._ready_crew().run(RESET, _NO_ACTIONS, obs)

    def step(self, actions: np.ndarray, obs: np.ndarray) -> int:
        """Steps all environments and says how many ended."""
        batch = self._batch
        batch.prepare_step()
        if self._threads == 1:
            ended, batch.longest = batch.step(actions, obs, 0, batch.num_envs, batch.workspace)
        else:
            ended, batch.longest = self._ready_crew().run(STEP, actions, obs)
        return ended

    def close(self) -> None:
        if self._crew is not None:
            self._crew.stop()
            self._crew = None

    def _ready_crew(self) -> Crew:
        # Threads do not survive a fork: the child starts its own.
        if self._crew is None or self._crew.pid != os.getpid():
            self._crew = Crew(self._batch, self._threads - 1)
        return self._crew


class Crew:
    """The helpers of one process."""

    def __init__(self, batch: Batch, helpers: int) -> None:
        self.pid = os.getpid()
        self._advance = batch.program.advance
        portion = max(1, batch.num_envs // (16 * (helpers + 1)))
        self._job = np.zeros(1, JOB)
        self._job["num_envs"] = batch.num_envs
        self._job["portion"] = portion
        self._job["portions"] = -(-batch.num_envs // portion)
        self._job["ticket"] = self._job["portions"]
        self._job["finished"] = batch.num_envs
        self._job["helpers"] = helpers
        self._own, *theirs = (batch.make_workspace(self._job) for _ in range(helpers + 1))
        self._shops = np.array([own.shop.ctypes.data for own in (self._own, *theirs)], np.int64)
        self._job["shops"] = self._shops.ctypes.data
        self._in_use: tuple[np.ndarray, np.ndarray] | None = None
        self._bells = [threading.Semaphore(0) for _ in range(helpers)]
        threads = [
            threading.Thread(
                target=_help,
                args=(self._advance, workspace, (batch, self._shops, self._own, theirs), self._job, i, bell),
                name=f"achieve-crafter-{i}",
                daemon=True,
            )
            for i, (workspace, bell) in enumerate(zip(theirs, self._bells, strict=True))
        ]
        self._stop = weakref.finalize(self, _dismiss, self._job, self._bells, threads)
        for thread in threads:
            thread.start()

    def run(self, operation: int, actions: np.ndarray, obs: np.ndarray) -> tuple[int, int]:
        context = self._own.context
        if self._in_use is not None:
            # Interrupted between opening and joining the last time; its arrays are still held.
            self._advance(JOIN, context, _NO_ACTIONS, _NO_OBS, 0, 0)
        self._in_use = (actions, obs)
        sleepers, _ = self._advance(SHARED + operation, context, actions, obs, 0, 0)
        if sleepers:
            for helper, bell in enumerate(self._bells):
                if sleepers >> helper & 1:
                    bell.release()
        ended, longest = self._advance(JOIN, context, _NO_ACTIONS, _NO_OBS, 0, 0)
        self._in_use = None
        return ended, longest

    def stop(self) -> None:
        self._stop()


def _help(
    advance: Any,
    workspace: Workspace,
    held: Any,
    job: np.ndarray,
    number: int,
    bell: threading.Semaphore,
) -> None:
    # `held` is what compiled code reaches by address: it must live as long as this thread.
    while not job["stop"][0]:
        advance(SERVE, workspace.context, _NO_ACTIONS, _NO_OBS, number, 0)
        if job["stop"][0]:
            break
        bell.acquire()


def _dismiss(
    job: np.ndarray, bells: list[threading.Semaphore], threads: list[threading.Thread]
) -> None:
    job["stop"] = 1
    for bell in bells:
        bell.release()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout=10)
