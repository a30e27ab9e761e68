"""Threads that run a batch: how they are started, woken and stopped.

Helpers are ordinary Python threads that spend their time in compiled code, see `advance`. Numba's own thread pools are
not used: some abort when two Python threads enter them, or after a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

from .advance import JOB, JOIN, RESET, SERVE, SHARED, STEP
from .batch import NO_ACTIONS, Batch, Workspace

_NO_OBS = np.zeros((0, 0, 0, 3), np.uint8)


class ThreadPool:
    """Runs a batch on ``threads`` threads, including the caller's, which must hold the batch's lock."""

    def __init__(self, batch: Batch, threads: int = 1) -> None:
        self._batch = batch
        self._threads = threads
        self._helpers: Helpers | None = None

    def reset(self, obs: np.ndarray) -> None:
        self._batch.longest = 0
        self._run(RESET, NO_ACTIONS, obs)

    def step(self, actions: np.ndarray, obs: np.ndarray) -> int:
        """Step all environments and return how many episodes ended.

        ``actions`` must be checked, ``obs`` a C-contiguous uint8 array for all environments.
        """
        self._batch.extend_daylight()
        ended, self._batch.longest = self._run(STEP, actions, obs)
        return ended

    def close(self) -> None:
        if self._helpers is not None:
            self._helpers.stop()
            self._helpers = None

    def _run(self, operation: int, actions: np.ndarray, obs: np.ndarray) -> tuple[int, int]:
        batch = self._batch
        if self._threads == 1:
            return batch.advance(operation, batch.workspace.context, actions, obs, 0, batch.num_envs)
        # Threads do not survive a fork: the child starts its own.
        if self._helpers is None or self._helpers.pid != os.getpid():
            self._helpers = Helpers(batch, self._threads - 1)
        return self._helpers.run(operation, actions, obs)


class Helpers:
    """The helper threads of one process."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.pid = os.getpid()
        self._advance = batch.advance
        portion = max(1, batch.num_envs // (16 * (count + 1)))
        self._job = np.zeros(1, JOB)
        self._job["num_envs"] = batch.num_envs
        self._job["portion"] = portion
        self._job["portions"] = -(-batch.num_envs // portion)
        self._job["ticket"] = self._job["portions"]
        self._job["finished"] = batch.num_envs
        self._job["helpers"] = count
        self._own, *theirs = (Workspace(batch, batch.view, self._job) for _ in range(count + 1))
        self._surveys = np.array([own.survey.ctypes.data for own in (self._own, *theirs)], np.int64)
        self._job["surveys"] = self._surveys.ctypes.data
        self._in_use: tuple[np.ndarray, np.ndarray] | None = None
        self._semaphores = [threading.Semaphore(0) for _ in range(count)]
        held = (batch, self._surveys, self._own, theirs)
        threads = [
            threading.Thread(
                target=_help,
                args=(self._advance, workspace, held, self._job, i, semaphore),
                name=f"achieve-crafter-{i}",
                daemon=True,
            )
            for i, (workspace, semaphore) in enumerate(zip(theirs, self._semaphores, strict=True))
        ]
        self.stop = weakref.finalize(self, _stop_helpers, self._job, self._semaphores, threads)
        for thread in threads:
            thread.start()

    def run(self, operation: int, actions: np.ndarray, obs: np.ndarray) -> tuple[int, int]:
        if self._in_use is not None:
            # Interrupted between opening and joining the last job; its arrays are still held.
            self._join()
        self._in_use = (actions, obs)
        done = self._advance(SHARED + operation, self._own.context, actions, obs, 0, 0)
        if done[0] < 0:
            sleepers = -done[0]
            for helper, semaphore in enumerate(self._semaphores):
                if sleepers >> helper & 1:
                    semaphore.release()
            done = self._join()
        self._in_use = None
        return done

    def _join(self) -> tuple[int, int]:
        return self._advance(JOIN, self._own.context, NO_ACTIONS, _NO_OBS, 0, 0)


def _help(
    advance: Any, workspace: Workspace, held: Any, job: np.ndarray, number: int, semaphore: threading.Semaphore
) -> None:
    # `held` is what compiled code reaches by address: it must live as long as this thread.
    while not job["stop"][0]:
        advance(SERVE, workspace.context, NO_ACTIONS, _NO_OBS, number, 0)
        if job["stop"][0]:
            break
        semaphore.acquire()


def _stop_helpers(job: np.ndarray, semaphores: list[threading.Semaphore], threads: list[threading.Thread]) -> None:
    job["stop"] = 1
    for semaphore in semaphores:
        semaphore.release()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout=10)
