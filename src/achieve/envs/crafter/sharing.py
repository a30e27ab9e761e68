"""The entry point, and the sharing of work among threads without Python's lock.

The calling thread writes a job and opens it by setting its ticket counter to zero; whoever draws a
ticket below the number of portions runs that portion. Drawing is the only thing threads compete
for. A helper without work spins for a moment, in case the next job comes at once, and then returns
to Python, where it sleeps until woken.
"""

from __future__ import annotations

import numpy as np

from .memory import (
    atomic_add,
    atomic_load,
    atomic_max,
    atomic_swap,
    give_way,
    record_at,
    relax,
)
from .runner import run
from .typing import Context

SERVE, JOIN = 3, 4
SHARED = 8
"""Added to an operation: open it as a job for all threads."""

MAX_HELPERS = 62

JOB = np.dtype(
    [
        # Changed by several threads, only atomically.
        ("ticket", np.int64),
        ("finished", np.int64),  # environments
        ("ended", np.int64),  # episodes
        ("longest", np.int64),
        ("stop", np.int64),
        ("asleep", np.int64, (MAX_HELPERS,)),
        # Written before a job is opened, never while it is open.
        ("operation", np.int64),
        ("actions", np.int64),  # int64[num_envs]
        ("obs", np.int64),
        ("num_envs", np.int64),
        ("portion", np.int64),  # environments of one ticket
        ("portions", np.int64),
        ("helpers", np.int64),
    ],
    align=True,
)

assert JOB.fields is not None
TICKET, FINISHED, ENDED, LONGEST, STOP, ASLEEP = (
    JOB.fields[name][1] for name in ("ticket", "finished", "ended", "longest", "stop", "asleep")
)
SPINS = 20000


def open_job(own: Context, operation: int, actions: int, obs: int) -> int:
    """Lets the helpers begin; returns a bit for each that must be woken."""
    job = record_at(own.job, JOB)
    job.operation = operation
    job.actions = actions
    job.obs = obs
    atomic_swap(own.job + FINISHED, 0)
    atomic_swap(own.job + ENDED, 0)
    atomic_swap(own.job + LONGEST, 0)
    atomic_swap(own.job + TICKET, 0)
    sleepers = 0
    for helper in range(job.helpers):
        if atomic_swap(own.job + ASLEEP + 8 * helper, 0) == 1:
            sleepers |= 1 << helper
    return sleepers


def join_job(own: Context) -> tuple[int, int]:
    """Does the caller's part, waits for the others, and sums up."""
    job = record_at(own.job, JOB)
    work(own)
    spins = 0
    while atomic_load(own.job + FINISHED) < job.num_envs:
        spins += 1
        if spins > SPINS:
            give_way()
        else:
            relax()
    return atomic_load(own.job + ENDED), atomic_load(own.job + LONGEST)


def work(own: Context) -> None:
    """Runs portions until there are none left."""
    job = record_at(own.job, JOB)
    while atomic_load(own.job + TICKET) < job.portions:
        ticket = atomic_add(own.job + TICKET, 1)
        if ticket >= job.portions:
            return
        first = ticket * job.portion
        last = min(first + job.portion, job.num_envs)
        ended, longest = run(own, job.operation, job.actions, job.obs, first, last)
        atomic_add(own.job + ENDED, ended)
        atomic_max(own.job + LONGEST, longest)
        atomic_add(own.job + FINISHED, last - first)


def serve(own: Context, helper: int) -> None:
    """A helper's life between two sleeps."""
    job = record_at(own.job, JOB)
    spins = 0
    while atomic_load(own.job + STOP) == 0:
        if atomic_load(own.job + TICKET) < job.portions:
            work(own)
            spins = 0
        spins += 1
        relax()
        if spins > SPINS:
            atomic_swap(own.job + ASLEEP + 8 * helper, 1)
            # A job opened just now may have missed that: then go on, unless it did not miss it.
            if atomic_load(own.job + TICKET) >= job.portions:
                return
            if atomic_swap(own.job + ASLEEP + 8 * helper, 0) == 0:
                return
            spins = 0


def advance(
    operation: int, context: np.ndarray, actions: np.ndarray, obs: np.ndarray, first: int, last: int
) -> tuple[int, int]:
    """What Python calls: runs the environments from ``first`` to before ``last``, or takes part in
    running all of them together with other threads.

    Returns how many environments finished an episode, and their largest step number; when opening a
    shared job, which helpers to wake.
    """
    own = context[0]
    if operation == SERVE:
        serve(own, first)
        return 0, 0
    if operation == JOIN:
        return join_job(own)
    if operation >= SHARED:
        return open_job(own, operation - SHARED, actions.ctypes.data, obs.ctypes.data), 0
    return run(own, operation, actions.ctypes.data, obs.ctypes.data, first, last)
