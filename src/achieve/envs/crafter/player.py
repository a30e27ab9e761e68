"""The player: what each action does, and how food, drink, rest and health change."""

from __future__ import annotations

import numpy as np

from .creatures import add_plant, ripe
from .data import (
    COLLECT_ACHIEVEMENT,
    COLLECT_AMOUNT,
    COLLECT_ITEM,
    COLLECT_LEAVES,
    COLLECT_PROBABILITY,
    COLLECT_REQUIRES,
    COLLECTABLE,
    COW,
    DEFEAT_SKELETON,
    DEFEAT_ZOMBIE,
    DO,
    DRINK,
    EAT_COW,
    EAT_PLANT,
    ENERGY,
    FOOD,
    HEALTH,
    IRON_SWORD,
    ITEM_MAX,
    LAVA,
    MAKE_ACHIEVEMENT,
    MAKE_FIRST,
    MAKE_GIVES,
    MAKE_ITEM,
    MAKE_NEARBY,
    MAKE_USES,
    MOVE_DOWN,
    MOVE_LEFT,
    MOVE_RIGHT,
    MOVE_UP,
    PLACE_ACHIEVEMENT,
    PLACE_MATERIAL,
    PLACE_STONE,
    PLACE_USES,
    PLACE_WHERE,
    PLANT,
    SKELETON,
    SLEEP,
    STONE_SWORD,
    WAKE_UP,
    WATER,
    WOOD_SWORD,
    ZOMBIE,
)
from .random import uniform
from .typing import World
from .world import entity, ground, hurt, material_at, move, nearby, occupant, set_material


def player(world: World, action: int) -> None:
    me = entity(world, 0)
    x, y = me.x + me.facing_x, me.y + me.facing_y
    material = material_at(world, x, y)
    target = occupant(world, x, y)
    if world.sleeping:
        if world.inventory[ENERGY] < ITEM_MAX[ENERGY]:
            action = SLEEP
        else:
            world.sleeping = 0
            world.achievements[WAKE_UP] += 1
    if action == MOVE_LEFT:
        walk(world, -1, 0)
    elif action == MOVE_RIGHT:
        walk(world, 1, 0)
    elif action == MOVE_UP:
        walk(world, 0, -1)
    elif action == MOVE_DOWN:
        walk(world, 0, 1)
    elif action == DO:
        if target >= 0:
            interact(world, target)
        else:
            collect(world, x, y, material)
    elif action == SLEEP:
        if world.inventory[ENERGY] < ITEM_MAX[ENERGY]:
            world.sleeping = 1
    elif PLACE_STONE <= action < MAKE_FIRST:
        place(world, action - PLACE_STONE, x, y, material)
    elif action >= MAKE_FIRST:
        make(world, action - MAKE_FIRST)
    update_life_stats(world)
    degenerate_or_recover(world)
    for item in range(len(ITEM_MAX)):
        world.inventory[item] = max(0, min(world.inventory[item], ITEM_MAX[item]))
    wake_up_when_hurt(world)


def walk(world: World, dx: int, dy: int) -> None:
    me = entity(world, 0)
    me.facing_x = dx
    me.facing_y = dy
    move(world, 0, dx, dy)
    if ground(world, me.x, me.y) == LAVA:
        world.inventory[HEALTH] = 0


def attack_damage(world: World) -> int:
    inventory = world.inventory
    damage = 1
    if inventory[WOOD_SWORD]:
        damage = max(damage, 2)
    if inventory[STONE_SWORD]:
        damage = max(damage, 3)
    if inventory[IRON_SWORD]:
        damage = max(damage, 5)
    return damage


def interact(world: World, index: int) -> None:
    """Use whatever the player faces: eat a ripe plant, attack a creature."""
    kind = entity(world, index).kind
    if kind == PLANT:
        if ripe(world, index):
            entity(world, index).grown = 0
            world.inventory[FOOD] += 4
            world.achievements[EAT_PLANT] += 1
        return
    if kind != ZOMBIE and kind != SKELETON and kind != COW:
        return
    hurt(world, index, attack_damage(world))
    if entity(world, index).health > 0:
        return
    if kind == ZOMBIE:
        world.achievements[DEFEAT_ZOMBIE] += 1
    elif kind == SKELETON:
        world.achievements[DEFEAT_SKELETON] += 1
    else:
        world.inventory[FOOD] += 6
        world.achievements[EAT_COW] += 1
        world.hunger = 0.0


def collect(world: World, x: int, y: int, material: int) -> None:
    if material == WATER:
        world.thirst = 0.0
    if not COLLECTABLE[material]:
        return
    for item in range(len(world.inventory)):
        if world.inventory[item] < COLLECT_REQUIRES[material, item]:
            return
    set_material(world, x, y, COLLECT_LEAVES[material])
    if uniform(world) <= COLLECT_PROBABILITY[material]:
        world.inventory[COLLECT_ITEM[material]] += COLLECT_AMOUNT[material]
        world.achievements[COLLECT_ACHIEVEMENT[material]] += 1


def pay(world: World, uses: np.ndarray) -> bool:
    """Take what a recipe uses, if everything is there; return whether it was."""
    inventory = world.inventory
    for item in range(len(inventory)):
        if inventory[item] < uses[item]:
            return False
    for item in range(len(inventory)):
        inventory[item] -= uses[item]
    return True


def place(world: World, recipe: int, x: int, y: int, material: int) -> None:
    if occupant(world, x, y) >= 0 or not PLACE_WHERE[recipe, material]:
        return
    if not pay(world, PLACE_USES[recipe]):
        return
    if PLACE_MATERIAL[recipe]:
        set_material(world, x, y, PLACE_MATERIAL[recipe])
    else:
        add_plant(world, x, y)
    world.achievements[PLACE_ACHIEVEMENT[recipe]] += 1


def make(world: World, recipe: int) -> None:
    me = entity(world, 0)
    if not nearby(world, me.x, me.y, 1, MAKE_NEARBY[recipe]):
        return
    if not pay(world, MAKE_USES[recipe]):
        return
    world.inventory[MAKE_ITEM[recipe]] += MAKE_GIVES[recipe]
    world.achievements[MAKE_ACHIEVEMENT[recipe]] += 1


def update_life_stats(world: World) -> None:
    world.hunger += 0.5 if world.sleeping else 1.0
    if world.hunger > 25:
        world.hunger = 0.0
        world.inventory[FOOD] -= 1
    world.thirst += 0.5 if world.sleeping else 1.0
    if world.thirst > 20:
        world.thirst = 0.0
        world.inventory[DRINK] -= 1
    if world.sleeping:
        world.fatigue = min(world.fatigue - 1.0, 0.0)
    else:
        world.fatigue += 1.0
    if world.fatigue < -10:
        world.fatigue = 0.0
        world.inventory[ENERGY] += 1
    if world.fatigue > 30:
        world.fatigue = 0.0
        world.inventory[ENERGY] -= 1


def degenerate_or_recover(world: World) -> None:
    inventory = world.inventory
    if inventory[FOOD] > 0 and inventory[DRINK] > 0 and (inventory[ENERGY] > 0 or world.sleeping):
        world.recover += 2.0 if world.sleeping else 1.0
    else:
        world.recover -= 0.5 if world.sleeping else 1.0
    if world.recover > 25:
        world.recover = 0.0
        inventory[HEALTH] = max(0, inventory[HEALTH] + 1)
    if world.recover < -15:
        world.recover = 0.0
        inventory[HEALTH] = max(0, inventory[HEALTH] - 1)


def wake_up_when_hurt(world: World) -> None:
    if world.inventory[HEALTH] < world.hurt_health:
        world.sleeping = 0
    world.hurt_health = world.inventory[HEALTH]
