"""The compiled entry point: resets, steps and draws environments, on one thread or shared among several.

To share a job, the calling thread writes it and opens it by setting its ticket counter to zero; whoever draws a ticket
below the number of portions runs that portion. Drawing is the only thing threads compete for, and none of it needs
Python's lock. A thread without work looks whether another is generating a world, which can be shared too. A helper
without any spins for a moment, in case the next job comes at once, and then returns to Python, where it sleeps until
woken (see `thread_pool`).
"""

from __future__ import annotations

import numpy as np

from .data import HEALTH
from .game import finish, note_position, observe, redraw, reset, semantic_view, step
from .memory import array_at, atomic_add, atomic_load, atomic_max, atomic_swap, record_at, spin_hint, yield_thread
from .render import CANVAS, VIEW
from .state import OVER, RESULT, SETTINGS, WORLD
from .terrain import SURVEY, TERRAIN
from .typing import Context, Int
from .worldgen import help_survey

RESET, STEP, RENDER, SERVE, JOIN = range(5)
"""Operations; the last two take part in a shared job, as a helper or as its caller."""
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
        ("surveys", np.int64),  # int64[helpers + 1]: addresses of the threads' surveys
    ],
    align=True,
)

assert JOB.fields is not None
TICKET, FINISHED, ENDED, LONGEST, STOP, ASLEEP = (
    JOB.fields[name][1] for name in ("ticket", "finished", "ended", "longest", "stop", "asleep")
)
SPINS = 20000
WORLD_BYTES, RESULT_BYTES = WORLD.itemsize, RESULT.itemsize


def advance(
    operation: int, context: np.ndarray, actions: np.ndarray, obs: np.ndarray, first: int, last: int
) -> tuple[int, int]:
    """Run the environments from ``first`` to before ``last``, or take part in running all of them with other threads.

    Return how many environments finished an episode, and their largest step number. Where helpers of a shared job must
    be woken, nothing is waited for: the first number is negative then, and has a bit for each of them.
    """
    own = context[0]
    # As int64, like the fields of a job: another type would compile the game a second time.
    chosen: Int = np.int64(actions.ctypes.data)
    images: Int = np.int64(obs.ctypes.data)
    if operation >= SHARED:
        sleepers = open_job(own, operation - SHARED, chosen, images)
        if sleepers != 0:
            return -sleepers, 0
        operation = JOIN
    if operation in (SERVE, JOIN):
        take_part(own, operation, first)
        return atomic_load(own.job + ENDED), atomic_load(own.job + LONGEST)
    return run(own, operation, chosen, images, first, last)


def run(own: Context, operation: int, actions: int, obs: int, first: int, last: int) -> tuple[int, int]:
    """Run the environments from ``first`` to before ``last``; ``own`` is the thread's CONTEXT.

    Return how many of them finished an episode, and their largest step number. ``actions`` and ``obs`` are addresses of
    arrays over all environments.
    """
    settings = record_at(own.settings, SETTINGS)
    terrain = record_at(own.terrain, TERRAIN)
    view = record_at(own.layout, VIEW)
    survey = record_at(own.survey, SURVEY)
    canvas = record_at(own.canvas, CANVAS)
    image_bytes = view.height * view.width * 3
    map_bytes = terrain.width * terrain.height
    count = 0
    longest = 0
    for i in range(first, last):
        world = record_at(own.worlds + i * WORLD_BYTES, WORLD)
        result = record_at(own.results + i * RESULT_BYTES, RESULT)
        image = obs + i * image_bytes
        if operation == RENDER:
            redraw(world, view, canvas, image)
            continue
        ended = False
        if operation == STEP:
            result.reward = step(world, array_at(actions, np.int64, last)[i], settings)
            dead = world.inventory[HEALTH] <= 0
            over = settings.length != 0 and world.step >= settings.length
            result.terminated = dead
            result.truncated = over and not dead
            ended = dead or over
            note_position(world, result)
            if settings.semantic != 0:
                semantic_view(world, settings.semantic + i * map_bytes)
            if ended:
                world.status = OVER
                finish(world, result)
                if settings.autoreset and settings.final_obs != 0:
                    observe(world, view, canvas, settings.final_obs + i * image_bytes)
                count += 1
        if operation == RESET or (ended and settings.autoreset):
            reset(world, terrain, survey, settings)
            if not ended:
                note_position(world, result)
            if settings.first_semantic != 0:
                semantic_view(world, settings.first_semantic + i * map_bytes)
        observe(world, view, canvas, image)
        longest = max(longest, world.step)
    return count, longest


def open_job(own: Context, operation: int, actions: int, obs: int) -> int:
    """Let the helpers begin; return a bit for each that must be woken."""
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
    """Run portions until none are left, and then help generate worlds.

    The caller of a job (JOIN) stays until it is finished, a helper (SERVE) until there has been nothing to do for a
    while. Both share one loop because the whole game is compiled into whatever calls `run`.
    """
    job = record_at(own.job, JOB)
    idle = 0
    while True:
        ticket = draw_ticket(own)
        if ticket >= 0:
            first = ticket * job.portion
            last = min(first + job.portion, job.num_envs)
            ended, longest = run(own, job.operation, job.actions, job.obs, first, last)
            if ended > 0:
                atomic_add(own.job + ENDED, ended)
            if longest > atomic_load(own.job + LONGEST):
                atomic_max(own.job + LONGEST, longest)
            atomic_add(own.job + FINISHED, last - first)
            idle = 0
            continue
        if help_worldgen(own):
            idle = 0
            continue
        if operation == JOIN and atomic_load(own.job + FINISHED) >= job.num_envs:
            return
        if operation == SERVE and atomic_load(own.job + STOP) != 0:
            return
        idle += 1
        if idle <= SPINS:
            spin_hint()
        elif operation == JOIN:
            yield_thread()
        elif fall_asleep(own, helper):
            return
        else:
            idle = 0


def draw_ticket(own: Context) -> int:
    """Return the number of a portion that is now ours, or -1."""
    job = record_at(own.job, JOB)
    if atomic_load(own.job + TICKET) >= job.portions:
        return -1
    ticket = atomic_add(own.job + TICKET, 1)
    return ticket if ticket < job.portions else -1


def help_worldgen(own: Context) -> bool:
    """Help threads that are generating a world, which takes far longer than a step; return whether there was one."""
    job = record_at(own.job, JOB)
    surveys = array_at(job.surveys, np.int64, job.helpers + 1)
    helped = False
    for i in range(len(surveys)):
        if help_survey(record_at(own.terrain, TERRAIN), record_at(surveys[i], SURVEY)):
            helped = True
    return helped


def fall_asleep(own: Context, helper: int) -> bool:
    """Announce that this helper must be woken; return False if a job was opened just then."""
    job = record_at(own.job, JOB)
    atomic_swap(own.job + ASLEEP + 8 * helper, 1)
    if atomic_load(own.job + TICKET) >= job.portions:
        return True
    # Whoever opened it may have seen the announcement and released the semaphore.
    return atomic_swap(own.job + ASLEEP + 8 * helper, 0) == 0
