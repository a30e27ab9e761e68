"""The player: what each action does, and how food, drink, rest and health change."""

from __future__ import annotations

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
from .world import hurt, material_at, move, nearby, occupant, set_material


def player(world, action):
    var = world.var
    me = world.objects[0]
    x, y = me.x + me.facing_x, me.y + me.facing_y
    material = material_at(world, x, y)
    target = occupant(world, x, y)
    if var.sleeping:
        if var.inventory[ENERGY] < ITEM_MAX[ENERGY]:
            action = SLEEP
        else:
            var.sleeping = 0
            var.achievements[WAKE_UP] += 1
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
        if var.inventory[ENERGY] < ITEM_MAX[ENERGY]:
            var.sleeping = 1
    elif PLACE_STONE <= action < MAKE_FIRST:
        place(world, action - PLACE_STONE, x, y, material)
    elif action >= MAKE_FIRST:
        make(world, action - MAKE_FIRST)
    update_life_stats(world)
    degenerate_or_recover(world)
    for item in range(len(ITEM_MAX)):
        var.inventory[item] = max(0, min(var.inventory[item], ITEM_MAX[item]))
    wake_up_when_hurt(world)


def walk(world, dx, dy):
    me = world.objects[0]
    me.facing_x = dx
    me.facing_y = dy
    move(world, 0, dx, dy)
    if world.material[me.x, me.y] == LAVA:
        world.var.inventory[HEALTH] = 0


def attack_damage(world):
    inventory = world.var.inventory
    damage = 1
    if inventory[WOOD_SWORD]:
        damage = max(damage, 2)
    if inventory[STONE_SWORD]:
        damage = max(damage, 3)
    if inventory[IRON_SWORD]:
        damage = max(damage, 5)
    return damage


def interact(world, index):
    """Uses whatever the player faces: eats a ripe plant, attacks a creature."""
    var = world.var
    kind = world.objects[index].kind
    if kind == PLANT:
        if ripe(world, index):
            world.objects[index].grown = 0
            var.inventory[FOOD] += 4
            var.achievements[EAT_PLANT] += 1
        return
    if kind != ZOMBIE and kind != SKELETON and kind != COW:
        return
    hurt(world, index, attack_damage(world))
    if world.objects[index].health > 0:
        return
    if kind == ZOMBIE:
        var.achievements[DEFEAT_ZOMBIE] += 1
    elif kind == SKELETON:
        var.achievements[DEFEAT_SKELETON] += 1
    else:
        var.inventory[FOOD] += 6
        var.achievements[EAT_COW] += 1
        var.hunger = 0.0


def collect(world, x, y, material):
    var = world.var
    if material == WATER:
        var.thirst = 0.0
    if not COLLECTABLE[material]:
        return
    for item in range(len(var.inventory)):
        if var.inventory[item] < COLLECT_REQUIRES[material, item]:
            return
    set_material(world, x, y, COLLECT_LEAVES[material])
    if uniform(world) <= COLLECT_PROBABILITY[material]:
        var.inventory[COLLECT_ITEM[material]] += COLLECT_AMOUNT[material]
        var.achievements[COLLECT_ACHIEVEMENT[material]] += 1


def pay(world, uses):
    """Takes what a recipe uses, if everything is there; says whether it was."""
    inventory = world.var.inventory
    for item in range(len(inventory)):
        if inventory[item] < uses[item]:
            return False
    for item in range(len(inventory)):
        inventory[item] -= uses[item]
    return True


def place(world, recipe, x, y, material):
    if occupant(world, x, y) >= 0 or not PLACE_WHERE[recipe, material]:
        return
    if not pay(world, PLACE_USES[recipe]):
        return
    if PLACE_MATERIAL[recipe]:
        set_material(world, x, y, PLACE_MATERIAL[recipe])
    else:
        add_plant(world, x, y)
    world.var.achievements[PLACE_ACHIEVEMENT[recipe]] += 1


def make(world, recipe):
    me = world.objects[0]
    if not nearby(world, me.x, me.y, 1, MAKE_NEARBY[recipe]):
        return
    if not pay(world, MAKE_USES[recipe]):
        return
    world.var.inventory[MAKE_ITEM[recipe]] += MAKE_GIVES[recipe]
    world.var.achievements[MAKE_ACHIEVEMENT[recipe]] += 1


def update_life_stats(world):
    var = world.var
    var.hunger += 0.5 if var.sleeping else 1.0
    if var.hunger > 25:
        var.hunger = 0.0
        var.inventory[FOOD] -= 1
    var.thirst += 0.5 if var.sleeping else 1.0
    if var.thirst > 20:
        var.thirst = 0.0
        var.inventory[DRINK] -= 1
    if var.sleeping:
        var.fatigue = min(var.fatigue - 1.0, 0.0)
    else:
        var.fatigue += 1.0
    if var.fatigue < -10:
        var.fatigue = 0.0
        var.inventory[ENERGY] += 1
    if var.fatigue > 30:
        var.fatigue = 0.0
        var.inventory[ENERGY] -= 1


def degenerate_or_recover(world):
    var = world.var
    inventory = var.inventory
    if inventory[FOOD] > 0 and inventory[DRINK] > 0 and (inventory[ENERGY] > 0 or var.sleeping):
        var.recover += 2.0 if var.sleeping else 1.0
    else:
        var.recover -= 0.5 if var.sleeping else 1.0
    if var.recover > 25:
        var.recover = 0.0
        inventory[HEALTH] = max(0, inventory[HEALTH] + 1)
    if var.recover < -15:
        var.recover = 0.0
        inventory[HEALTH] = max(0, inventory[HEALTH] - 1)


def wake_up_when_hurt(world):
    var = world.var
    if var.inventory[HEALTH] < var.hurt_health:
        var.sleeping = 0
    var.hurt_health = var.inventory[HEALTH]
