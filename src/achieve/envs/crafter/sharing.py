"""The entry point, and the sharing of work among threads without Python's lock.

The calling thread writes a job and opens it by setting its ticket counter to zero; whoever draws a
ticket below the number of portions runs that portion. Drawing is the only thing threads compete
for. A thread without work looks whether another is making a world, which can be shared too. A helper
without any spins for a moment, in case the next job comes at once, and then returns to Python, where
it sleeps until woken.
"""

from __future__ import annotations

import numpy as np

from .memory import (
    array_at,
    atomic_add,
    atomic_load,
    atomic_max,
    atomic_swap,
    give_way,
    record_at,
    relax,
)
from .runner import run
from .terrain import TERRAIN, WORKSHOP
from .typing import Context, Int
from .worldgen import help_survey

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
        ("shops", np.int64),  # int64[helpers + 1]: addresses of the threads' workshops
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


def take_part(own: Context, operation: int, helper: int) -> None:
    """Runs portions until there are none left and, for want of those, helps make worlds.

    The caller of a job (JOIN) stays until it is finished, a helper (SERVE) until there has been nothing to do for a
    while. One loop for both: the whole game is compiled into whatever calls `run`, so that happens once here.
    """
    job = record_at(own.job, JOB)
    idle = 0
    while True:
        ticket = draw_ticket(own)
        if ticket >= 0:
            first = ticket * job.portion
            last = min(first + job.portion, job.num_envs)
            ended, longest = run(own, job.operation, job.actions, job.obs, first, last)
            atomic_add(own.job + ENDED, ended)
            atomic_max(own.job + LONGEST, longest)
            atomic_add(own.job + FINISHED, last - first)
            idle = 0
            continue
        if lend_a_hand(own):
            idle = 0
            continue
        if operation == JOIN and atomic_load(own.job + FINISHED) >= job.num_envs:
            return
        if operation == SERVE and atomic_load(own.job + STOP) != 0:
            return
        idle += 1
        if idle <= SPINS:
            relax()
        elif operation == JOIN:
            give_way()
        elif fall_asleep(own, helper):
            return
        else:
            idle = 0


def draw_ticket(own: Context) -> int:
    """The number of a portion that is now ours, or -1."""
    job = record_at(own.job, JOB)
    if atomic_load(own.job + TICKET) >= job.portions:
        return -1
    ticket = atomic_add(own.job + TICKET, 1)
    return ticket if ticket < job.portions else -1


def lend_a_hand(own: Context) -> bool:
    """Helps threads that are making a world, the one thing that takes long; whether there was any."""
    job = record_at(own.job, JOB)
    shops = array_at(job.shops, np.int64, job.helpers + 1)
    helped = False
    for i in range(len(shops)):
        if help_survey(record_at(own.terrain, TERRAIN), record_at(shops[i], WORKSHOP)):
            helped = True
    return helped


def fall_asleep(own: Context, helper: int) -> bool:
    """Announces that this helper must be woken; not so if a job was opened just then."""
    job = record_at(own.job, JOB)
    atomic_swap(own.job + ASLEEP + 8 * helper, 1)
    if atomic_load(own.job + TICKET) >= job.portions:
        return True
    # Whoever opened it may have seen the announcement and rung the bell.
    return atomic_swap(own.job + ASLEEP + 8 * helper, 0) == 0


def advance(
    operation: int, context: np.ndarray, actions: np.ndarray, obs: np.ndarray, first: int, last: int
) -> tuple[int, int]:
    """What Python calls: runs the environments from ``first`` to before ``last``, or takes part in
    running all of them together with other threads.

    Returns how many environments finished an episode, and their largest step number; when opening a
    shared job, which helpers to wake.
    """
    own = context[0]
    if operation in (SERVE, JOIN):
        take_part(own, operation, first)
        return atomic_load(own.job + ENDED), atomic_load(own.job + LONGEST)
    # As int64, like the fields of a job: another type would compile the game a second time.
    chosen: Int = np.int64(actions.ctypes.data)
    images: Int = np.int64(obs.ctypes.data)
    if operation >= SHARED:
        return open_job(own, operation - SHARED, chosen, images), 0
    return run(own, operation, chosen, images, first, last)
