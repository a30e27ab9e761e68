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
from .player import player
from .random import seed_generator, world_seed
from .render import NIGHT_BELOW, Canvas, render
from .state import OVER, RUNNING, World
from .world import add, clear_removed, player_distance
from .worldgen import Scratch, clear_world, worldgen

RESET, STEP, RENDER = 0, 1, 2
BALANCE_EVERY = 10


def reset(world, terrain, scratch, daylight):
    var = world.var
    var.episode += 1
    var.step = 0
    var.daylight = daylight[0]
    var.episode_return = 0.0
    var.status = RUNNING
    seed_generator(var, world_seed(var.seed_hash, var.episode))
    clear_world(world)
    add(world, PLAYER, world.material.shape[0] // 2, world.material.shape[1] // 2)
    world.objects[0].facing_y = 1
    reset_player(world)
    worldgen(world, terrain, scratch)


def reset_player(world):
    var = world.var
    for item in range(len(var.inventory)):
        var.inventory[item] = ITEM_INITIAL[item]
    for i in range(len(var.achievements)):
        var.achievements[i] = 0
        var.unlocked[i] = 0
    var.sleeping = 0
    var.hunger = 0.0
    var.thirst = 0.0
    var.fatigue = 0.0
    var.recover = 0.0
    var.hurt_health = var.inventory[HEALTH]
    var.reward_health = var.inventory[HEALTH]


def step(world, action, reach, daylight):
    """One step of the game, up to the observation; returns the reward."""
    var = world.var
    var.step += 1
    var.daylight = daylight[var.step]
    for index in range(var.num_objects):
        me = world.objects[index]
        if player_distance(world, me.x, me.y) < reach:
            update(world, index, action)
    clear_removed(world)
    if var.step % BALANCE_EVERY == 0:
        balance(world)
        clear_removed(world)
    return reward(world)


def update(world, index, action):
    kind = world.objects[index].kind
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
    var = world.var
    value = (var.inventory[HEALTH] - var.reward_health) / 10
    var.reward_health = var.inventory[HEALTH]
    new = False
    for i in range(len(var.achievements)):
        if var.achievements[i] > 0 and not var.unlocked[i]:
            var.unlocked[i] = 1
            new = True
    if new:
        value += 1.0
    var.episode_return += value
    return value


def observe(world, view, canvas, image):
    """Draws the observation, remembering the generator so that it can be drawn again."""
    var = world.var
    if var.daylight < NIGHT_BELOW:
        var.frame_key[:] = var.key
        var.frame_pos = var.pos
    render(world, view, canvas, image)


def redraw(world, view, canvas, image):
    """Draws the last observation again, at any size, and leaves the game as it was."""
    var = world.var
    if not var.daylight < NIGHT_BELOW:
        render(world, view, canvas, image)
        return
    key = var.key.copy()
    pos = var.pos
    var.key[:] = var.frame_key
    var.pos = var.frame_pos
    render(world, view, canvas, image)
    var.key[:] = key
    var.pos = pos


def semantic_view(world, image):
    """The whole map as numbers: materials, then kinds of objects after them."""
    image[:] = world.material
    for index in range(world.var.num_objects):
        me = world.objects[index]
        image[me.x, me.y] = NUM_MATERIALS - 1 + me.kind


def finish(world, record):
    record.length = world.var.step
    record.episode_return = world.var.episode_return
    for i in range(len(world.var.achievements)):
        record.achievements[i] = world.var.achievements[i]
    for item in range(len(world.var.inventory)):
        record.inventory[item] = world.var.inventory[item]
    record.player_pos[0] = world.objects[0].x
    record.player_pos[1] = world.objects[0].y


def advance(operation, worlds, settings, terrain, view, daylight, actions, out, first, last):
    """Resets, steps or draws the environments ``first`` to ``last``.

    Returns how many finished an episode, and the largest step number among them.
    """
    canvas = Canvas(
        np.empty(view.tiles.shape, np.uint8),
        np.empty(view.tiles.shape[0], np.uint8),
        np.empty(2 * view.vignette.size, np.uint32),
    )
    scratch = Scratch(
        np.empty(256, np.uint8),
        np.empty(256, np.uint8),
        np.empty(terrain.vertices.shape[0], np.uint8),
        np.empty(worlds.material.shape[1:], np.bool_),
    )
    ended = 0
    longest = 0
    for i in range(first, last):
        world = World(
            worlds.var[i],
            worlds.objects[i],
            worlds.material[i],
            worlds.object_at[i],
            worlds.chunks[i],
        )
        var = world.var
        if operation == RENDER:
            redraw(world, view, canvas, out.obs[i])
            continue
        ended_now = False
        if operation == STEP:
            value = step(world, actions[i], settings.reach, daylight)
            dead = var.inventory[HEALTH] <= 0
            over = settings.length != 0 and var.step >= settings.length
            out.reward[i] = value
            out.terminated[i] = dead
            out.truncated[i] = over and not dead
            ended_now = dead or over
        if operation == STEP and out.semantic.shape[0] > 0:
            semantic_view(world, out.semantic[i])
        if ended_now:
            ended += 1
            var.status = OVER
            finish(world, out.finished[i])
            if settings.autoreset and out.final_obs.shape[0] > 0:
                observe(world, view, canvas, out.final_obs[i])
        if operation == RESET or (ended_now and settings.autoreset):
            reset(world, terrain, scratch, daylight)
            if out.first_semantic.shape[0] > 0:
                semantic_view(world, out.first_semantic[i])
        observe(world, view, canvas, out.obs[i])
        longest = max(longest, var.step)
    return ended, longest
