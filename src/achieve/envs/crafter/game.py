"""One episode from reset to end, and the loop over environments that Python calls."""

from __future__ import annotations

import numpy as np

from .balance import balance
from .creatures import arrow, cow, plant, skeleton, zombie
from .data import (
    ARROW,
    COW,
    HEALTH,
    ITEM_INITIAL,
    NUM_MATERIALS,
    PLANT,
    PLAYER,
    SKELETON,
    ZOMBIE,
)
from .memory import array_at, copy_bytes, record_at
from .player import player
from .random import copy, refresh, seed_generator, world_seed
from .render import EASEL, NIGHT_BELOW, VIEW, render
from .state import OVER, RESULT, RUNNING, SETTINGS, WORLD
from .world import add, clear_removed, entity, player_distance
from .worldgen import TERRAIN, WORKSHOP, clear_world, worldgen

RESET, STEP, RENDER = 0, 1, 2
BALANCE_EVERY = 10
WORLD_BYTES = WORLD.itemsize
RESULT_BYTES = RESULT.itemsize


def reset(world, terrain, shop, settings):
    world.episode += 1
    world.step = 0
    set_daylight(world, settings)
    world.episode_return = 0.0
    world.status = RUNNING
    seed_generator(world, world_seed(world.seed_hash, world.episode))
    clear_world(world)
    add(world, PLAYER, world.width // 2, world.height // 2)
    entity(world, 0).facing_y = 1
    reset_player(world)
    worldgen(world, terrain, shop)


def set_daylight(world, settings):
    world.daylight = array_at(settings.daylight, np.float64, world.step + 1)[world.step]


def reset_player(world):
    for item in range(len(world.inventory)):
        world.inventory[item] = ITEM_INITIAL[item]
    for i in range(len(world.achievements)):
        world.achievements[i] = 0
        world.unlocked[i] = 0
    world.sleeping = 0
    world.hunger = 0.0
    world.thirst = 0.0
    world.fatigue = 0.0
    world.recover = 0.0
    world.hurt_health = world.inventory[HEALTH]
    world.reward_health = world.inventory[HEALTH]


def step(world, action, settings):
    """One step of the game, up to the observation; returns the reward."""
    world.step += 1
    set_daylight(world, settings)
    for index in range(world.num_objects):
        me = entity(world, index)
        if player_distance(world, me.x, me.y) < settings.reach:
            update(world, index, action)
    clear_removed(world)
    if world.step % BALANCE_EVERY == 0:
        balance(world)
        clear_removed(world)
    return reward(world)


def update(world, index, action):
    kind = entity(world, index).kind
    if kind == COW:
        cow(world, index)
    elif kind == ZOMBIE:
        zombie(world, index)
    elif kind == SKELETON:
        skeleton(world, index)
    elif kind == ARROW:
        arrow(world, index)
    elif kind == PLANT:
        plant(world, index)
    elif kind == PLAYER:
        player(world, action)


def reward(world):
    """A tenth per health gained or lost, and 1 if anything was achieved for the first time."""
    value = (world.inventory[HEALTH] - world.reward_health) / 10
    world.reward_health = world.inventory[HEALTH]
    new = False
    for i in range(len(world.achievements)):
        if world.achievements[i] > 0 and not world.unlocked[i]:
            world.unlocked[i] = 1
            new = True
    if new:
        value += 1.0
    world.episode_return += value
    return value


def observe(world, view, easel, image):
    """Draws the observation, remembering the generator so that it can be drawn again."""
    if world.daylight < NIGHT_BELOW:
        copy(world.key, world.frame_key)
        world.frame_pos = world.pos
    render(world, view, easel, image)


def redraw(world, view, easel, image):
    """Draws the last observation again, at any size, and leaves the game as it was."""
    if not world.daylight < NIGHT_BELOW:
        render(world, view, easel, image)
        return
    copy(world.key, easel.key)
    pos = world.pos
    copy(world.frame_key, world.key)
    refresh(world)
    world.pos = world.frame_pos
    render(world, view, easel, image)
    copy(easel.key, world.key)
    refresh(world)
    world.pos = pos


def semantic_view(world, image):
    """The whole map as numbers, at an address: materials, then kinds of objects after them."""
    copy_bytes(image, world.material, world.width * world.height)
    cells = array_at(image, np.uint8, world.width * world.height)
    for index in range(world.num_objects):
        me = entity(world, index)
        cells[me.x * world.height + me.y] = NUM_MATERIALS - 1 + me.kind


def finish(world, result):
    result.length = world.step
    result.episode_return = world.episode_return
    copy(world.achievements, result.achievements)
    copy(world.inventory, result.inventory)
    result.player_pos[0] = entity(world, 0).x
    result.player_pos[1] = entity(world, 0).y


def advance(operation, context, actions, obs, first, last):
    """Resets, steps or draws the environments from ``first`` to before ``last``.

    Returns how many of them finished an episode, and their largest step number.
    """
    own = context[0]
    ended = 0
    longest = 0
    for i in range(first, last):
        count, steps = advance_one(
            operation,
            record_at(own.worlds + i * WORLD_BYTES, WORLD),
            record_at(own.results + i * RESULT_BYTES, RESULT),
            record_at(own.settings, SETTINGS),
            record_at(own.terrain, TERRAIN),
            record_at(own.layout, VIEW),
            record_at(own.shop, WORKSHOP),
            record_at(own.easel, EASEL),
            actions,
            obs.ctypes.data,
            i,
        )
        ended += count
        longest = max(longest, steps)
    return ended, longest


def advance_one(
    operation, world, result, settings, terrain, view, shop, easel, actions, obs, i
):
    image_bytes = view.height * view.width * 3
    map_bytes = world.width * world.height
    image = obs + i * image_bytes
    if operation == RENDER:
        redraw(world, view, easel, image)
        return 0, 0
    ended = False
    if operation == STEP:
        result.reward = step(world, actions[i], settings)
        dead = world.inventory[HEALTH] <= 0
        over = settings.length != 0 and world.step >= settings.length
        result.terminated = dead
        result.truncated = over and not dead
        ended = dead or over
        if settings.semantic != 0:
            semantic_view(world, settings.semantic + i * map_bytes)
        if ended:
            world.status = OVER
            finish(world, result)
            if settings.autoreset and settings.final_obs != 0:
                observe(world, view, easel, settings.final_obs + i * image_bytes)
    if operation == RESET or (ended and settings.autoreset):
        reset(world, terrain, shop, settings)
        if settings.first_semantic != 0:
            semantic_view(world, settings.first_semantic + i * map_bytes)
    observe(world, view, easel, image)
    return (1 if ended else 0), world.step
