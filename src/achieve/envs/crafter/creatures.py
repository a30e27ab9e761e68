"""Everything that moves or grows besides the player: one rule per kind, called once a step."""

from __future__ import annotations

from .data import ARROW, COW, FURNACE, PATH, PLANT, SKELETON, TABLE, WALKABLE_BY, ZOMBIE
from .random import uniform
from .typing import World
from .world import (
    add,
    entity,
    hurt,
    is_free,
    material_at,
    move,
    occupant,
    player_distance,
    random_direction,
    remove,
    set_material,
    toward_player,
)

COW_HEALTH = 3
ZOMBIE_HEALTH = 5
SKELETON_HEALTH = 3
PLANT_HEALTH = 1
RIPE_AFTER = 300


def add_cow(world: World, x: int, y: int) -> None:
    entity(world, add(world, COW, x, y)).health = COW_HEALTH


def add_zombie(world: World, x: int, y: int) -> None:
    entity(world, add(world, ZOMBIE, x, y)).health = ZOMBIE_HEALTH


def add_skeleton(world: World, x: int, y: int) -> None:
    entity(world, add(world, SKELETON, x, y)).health = SKELETON_HEALTH


def add_plant(world: World, x: int, y: int) -> None:
    entity(world, add(world, PLANT, x, y)).health = PLANT_HEALTH


def add_arrow(world: World, x: int, y: int, facing_x: int, facing_y: int) -> None:
    me = entity(world, add(world, ARROW, x, y))
    me.facing_x = facing_x
    me.facing_y = facing_y


def cow(world: World, index: int) -> None:
    if entity(world, index).health <= 0:
        remove(world, index)
    if uniform(world) < 0.5:
        dx, dy = random_direction(world)
        move(world, index, dx, dy)


def zombie(world: World, index: int) -> None:
    me = entity(world, index)
    if me.health <= 0:
        remove(world, index)
    if player_distance(world, me.x, me.y) <= 8 and uniform(world) < 0.9:
        dx, dy = toward_player(world, index, uniform(world) < 0.8)
    else:
        dx, dy = random_direction(world)
    move(world, index, dx, dy)
    if player_distance(world, me.x, me.y) <= 1:
        if me.cooldown:
            me.cooldown -= 1
        else:
            hurt(world, 0, zombie_damage(world))
            me.cooldown = 5


def zombie_damage(world: World) -> int:
    return 7 if world.sleeping else 2


def skeleton(world: World, index: int) -> None:
    me = entity(world, index)
    if me.health <= 0:
        remove(world, index)
    me.reload = max(0, me.reload - 1)
    distance = player_distance(world, me.x, me.y)
    if distance <= 3:
        dx, dy = toward_player(world, index, uniform(world) < 0.6)
        if move(world, index, -dx, -dy):
            return
    if distance <= 5 and uniform(world) < 0.5:
        dx, dy = toward_player(world, index, True)
        shoot(world, index, dx, dy)
    elif distance <= 8 and uniform(world) < 0.3:
        dx, dy = toward_player(world, index, uniform(world) < 0.6)
        move(world, index, dx, dy)
    elif uniform(world) < 0.2:
        dx, dy = random_direction(world)
        move(world, index, dx, dy)


def shoot(world: World, index: int, dx: int, dy: int) -> None:
    me = entity(world, index)
    if me.reload > 0 or (dx == 0 and dy == 0):
        return
    if is_free(world, ARROW, me.x + dx, me.y + dy):
        add_arrow(world, me.x + dx, me.y + dy, dx, dy)
        me.reload = 4


def arrow(world: World, index: int) -> None:
    me = entity(world, index)
    x, y = me.x + me.facing_x, me.y + me.facing_y
    material = material_at(world, x, y)
    target = occupant(world, x, y)
    if target >= 0:
        hurt(world, target, 2)
        remove(world, index)
    elif not WALKABLE_BY[ARROW, material]:
        remove(world, index)
        if material in (TABLE, FURNACE):
            set_material(world, x, y, PATH)
    else:
        move(world, index, me.facing_x, me.facing_y)


def plant(world: World, index: int) -> None:
    me = entity(world, index)
    me.grown += 1
    if (
        eats_plants(world, me.x - 1, me.y)
        or eats_plants(world, me.x + 1, me.y)
        or eats_plants(world, me.x, me.y - 1)
        or eats_plants(world, me.x, me.y + 1)
    ):
        hurt(world, index, 1)
    if me.health <= 0:
        remove(world, index)


def eats_plants(world: World, x: int, y: int) -> bool:
    index = occupant(world, x, y)
    if index < 0:
        return False
    kind = entity(world, index).kind
    return kind in (ZOMBIE, SKELETON, COW)


def ripe(world: World, index: int) -> bool:
    return entity(world, index).grown > RIPE_AFTER
