"""One episode: reset, step, reward, observation and end."""

from __future__ import annotations

import numpy as np

from .balance import balance
from .creatures import arrow, cow, plant, skeleton, zombie
from .data import ARROW, COW, HEALTH, ITEM_INITIAL, NUM_MATERIALS, PLANT, PLAYER, SKELETON, ZOMBIE
from .memory import array_at, copy_bytes
from .player import player
from .random import copy, refresh, seed_generator, world_seed
from .render import NIGHT_BELOW, render
from .state import RUNNING
from .typing import Canvas, Result, Settings, Survey, Terrain, View, World
from .world import add, clear_removed, entity, player_distance
from .worldgen import clear_world, worldgen

BALANCE_EVERY = 10


def reset(world: World, terrain: Terrain, survey: Survey, settings: Settings) -> None:
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
    worldgen(world, terrain, survey)


def set_daylight(world: World, settings: Settings) -> None:
    world.daylight = array_at(settings.daylight, np.float64, world.step + 1)[world.step]


def reset_player(world: World) -> None:
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


def step(world: World, action: int, settings: Settings) -> float:
    """Advance the game by one step, up to the observation; return the reward."""
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


def update(world: World, index: int, action: int) -> None:
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


def reward(world: World) -> float:
    """Return a tenth per health point gained or lost, plus 1 if anything was achieved for the first time."""
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


def observe(world: World, view: View, canvas: Canvas, image: int) -> None:
    """Draw the observation, after saving the generator so that it can be drawn again."""
    if world.daylight < NIGHT_BELOW:
        copy(world.key, world.frame_key)
        world.frame_pos = world.pos
    render(world, view, canvas, image)


def redraw(world: World, view: View, canvas: Canvas, image: int) -> None:
    """Draw the last observation again, at any size, and leave the game as it was."""
    if not world.daylight < NIGHT_BELOW:
        render(world, view, canvas, image)
        return
    copy(world.key, canvas.key)
    pos = world.pos
    copy(world.frame_key, world.key)
    refresh(world)
    world.pos = world.frame_pos
    render(world, view, canvas, image)
    copy(canvas.key, world.key)
    refresh(world)
    world.pos = pos


def semantic_view(world: World, image: int) -> None:
    """Write the whole map as numbers, at an address: materials, then kinds of objects after them."""
    copy_bytes(image, world.material, world.width * world.height)
    cells = array_at(image, np.uint8, world.width * world.height)
    for index in range(world.num_objects):
        me = entity(world, index)
        cells[me.x * world.height + me.y] = NUM_MATERIALS - 1 + me.kind


def note_position(world: World, result: Result) -> None:
    result.player_pos[0] = entity(world, 0).x
    result.player_pos[1] = entity(world, 0).y


def finish(world: World, result: Result) -> None:
    result.length = world.step
    result.episode_return = world.episode_return
    copy(world.achievements, result.achievements)
    copy(world.inventory, result.inventory)
