"""Operations on environments: resetting, stepping and drawing some of them."""

from __future__ import annotations

import numpy as np

from .data import HEALTH
from .game import finish, note_position, observe, redraw, reset, semantic_view, step
from .memory import array_at, record_at
from .render import EASEL, VIEW
from .state import OVER, RESULT, SETTINGS, WORLD
from .terrain import TERRAIN, WORKSHOP
from .typing import Context

RESET, STEP, RENDER = 0, 1, 2
WORLD_BYTES = WORLD.itemsize
RESULT_BYTES = RESULT.itemsize


def run(
    own: Context, operation: int, actions: int, obs: int, first: int, last: int
) -> tuple[int, int]:
    """Runs the environments from ``first`` to before ``last``; ``own`` is the thread's CONTEXT.

    Returns how many of them finished an episode, and their largest step number. ``actions`` and
    ``obs`` are addresses of arrays over all environments.
    """
    settings = record_at(own.settings, SETTINGS)
    terrain = record_at(own.terrain, TERRAIN)
    view = record_at(own.layout, VIEW)
    shop = record_at(own.shop, WORKSHOP)
    easel = record_at(own.easel, EASEL)
    image_bytes = view.height * view.width * 3
    map_bytes = terrain.width * terrain.height
    count = 0
    longest = 0
    for i in range(first, last):
        world = record_at(own.worlds + i * WORLD_BYTES, WORLD)
        result = record_at(own.results + i * RESULT_BYTES, RESULT)
        image = obs + i * image_bytes
        if operation == RENDER:
            redraw(world, view, easel, image)
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
                    observe(world, view, easel, settings.final_obs + i * image_bytes)
                count += 1
        if operation == RESET or (ended and settings.autoreset):
            reset(world, terrain, shop, settings)
            if not ended:
                note_position(world, result)
            if settings.first_semantic != 0:
                semantic_view(world, settings.first_semantic + i * map_bytes)
        observe(world, view, easel, image)
        longest = max(longest, world.step)
    return count, longest
