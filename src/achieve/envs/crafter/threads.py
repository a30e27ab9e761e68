"""Threads that share a batch's work.

Compiled code runs without Python's lock, so ordinary threads suffice. Numba's own thread pools are
not used: some abort when two Python threads enter them, or after a fork.
"""

from __future__ import annotations

import os
import numpy as np

from .batch import Batch


def choose_threads(threads: int | None, num_envs: int) -> int:
    if threads is None:
        threads = available_cores() if num_envs >= 8 else 1
        return max(1, min(threads, num_envs // 4))
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise ValueError(f"threads must be a whole number from 1 or None, got {threads!r}")
    return min(int(threads), num_envs)


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    def __init__(self, batch: Batch, threads: int) -> None:
        self._batch = batch
        self._threads = threads

    def reset(self, obs: np.ndarray) -> None:
        batch = self._batch
        batch.reset(obs, 0, batch.num_envs, batch.workspace)

    def step(self, actions: np.ndarray, obs: np.ndarray) -> int:
        batch = self._batch
        batch.prepare_step()
        ended, batch.longest = batch.step(actions, obs, 0, batch.num_envs, batch.workspace)
        return ended

    def close(self) -> None:
        pass
