"""The game's vocabulary: actions, materials, items, recipes and achievements.

The tables are those of Crafter's ``data.yaml`` (a test compares them), written out so that a rule can be read, and
changed, in one place. Compiled rules use the small arrays derived from them at the end of the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ACTIONS = (
    "noop", "move_left", "move_right", "move_up", "move_down", "do", "sleep",
    "place_stone", "place_table", "place_furnace", "place_plant",
    "make_wood_pickaxe", "make_stone_pickaxe", "make_iron_pickaxe",
    "make_wood_sword", "make_stone_sword", "make_iron_sword",
)
MATERIALS = (
    "water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond", "table", "furnace",
)
ITEMS = (
    "health", "food", "drink", "energy",
    "sapling", "wood", "stone", "coal", "iron", "diamond",
    "wood_pickaxe", "stone_pickaxe", "iron_pickaxe", "wood_sword", "stone_sword", "iron_sword",
)
ACHIEVEMENTS = (
    "collect_coal", "collect_diamond", "collect_drink", "collect_iron", "collect_sapling", "collect_stone",
    "collect_wood", "defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant",
    "make_iron_pickaxe", "make_iron_sword", "make_stone_pickaxe", "make_stone_sword", "make_wood_pickaxe",
    "make_wood_sword", "place_furnace", "place_plant", "place_stone", "place_table", "wake_up",
)
WALKABLE = ("grass", "path", "sand")

COLLECT: dict[str, dict[str, Any]] = {
    "tree": {"require": {}, "receive": {"wood": 1}, "leaves": "grass"},
    "stone": {"require": {"wood_pickaxe": 1}, "receive": {"stone": 1}, "leaves": "path"},
    "coal": {"require": {"wood_pickaxe": 1}, "receive": {"coal": 1}, "leaves": "path"},
    "iron": {"require": {"stone_pickaxe": 1}, "receive": {"iron": 1}, "leaves": "path"},
    "diamond": {"require": {"iron_pickaxe": 1}, "receive": {"diamond": 1}, "leaves": "path"},
    "water": {"require": {}, "receive": {"drink": 1}, "leaves": "water"},
    "grass": {"require": {}, "receive": {"sapling": 1}, "probability": 0.1, "leaves": "grass"},
}
PLACE: dict[str, dict[str, Any]] = {
    "stone": {"uses": {"stone": 1}, "where": ["grass", "sand", "path", "water", "lava"], "type": "material"},
    "table": {"uses": {"wood": 2}, "where": ["grass", "sand", "path"], "type": "material"},
    "furnace": {"uses": {"stone": 4}, "where": ["grass", "sand", "path"], "type": "material"},
    "plant": {"uses": {"sapling": 1}, "where": ["grass"], "type": "object"},
}
MAKE: dict[str, dict[str, Any]] = {
    "wood_pickaxe": {"uses": {"wood": 1}, "nearby": ["table"], "gives": 1},
    "stone_pickaxe": {"uses": {"wood": 1, "stone": 1}, "nearby": ["table"], "gives": 1},
    "iron_pickaxe": {"uses": {"wood": 1, "coal": 1, "iron": 1}, "nearby": ["table", "furnace"], "gives": 1},
    "wood_sword": {"uses": {"wood": 1}, "nearby": ["table"], "gives": 1},
    "stone_sword": {"uses": {"wood": 1, "stone": 1}, "nearby": ["table"], "gives": 1},
    "iron_sword": {"uses": {"wood": 1, "coal": 1, "iron": 1}, "nearby": ["table", "furnace"], "gives": 1},
}

# Actions.
(NOOP, MOVE_LEFT, MOVE_RIGHT, MOVE_UP, MOVE_DOWN, DO, SLEEP) = range(7)
PLACE_STONE = ACTIONS.index("place_stone")
PLACE_PLANT = ACTIONS.index("place_plant")
MAKE_FIRST = ACTIONS.index("make_wood_pickaxe")

# Materials; 0 means "none", that is, outside the world.
NO_MATERIAL = 0
(WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND, TABLE, FURNACE) = range(1, 13)
NUM_MATERIALS = len(MATERIALS) + 1

# Items.
(HEALTH, FOOD, DRINK, ENERGY, SAPLING) = range(5)
WOOD_SWORD = ITEMS.index("wood_sword")
STONE_SWORD = ITEMS.index("stone_sword")
IRON_SWORD = ITEMS.index("iron_sword")
ITEM_MAX = np.full(len(ITEMS), 9, np.int64)
ITEM_INITIAL = np.array([9, 9, 9, 9] + [0] * 12, np.int64)

# Achievements that no recipe table names.
DEFEAT_SKELETON = ACHIEVEMENTS.index("defeat_skeleton")
DEFEAT_ZOMBIE = ACHIEVEMENTS.index("defeat_zombie")
EAT_COW = ACHIEVEMENTS.index("eat_cow")
EAT_PLANT = ACHIEVEMENTS.index("eat_plant")
WAKE_UP = ACHIEVEMENTS.index("wake_up")

# Kinds of objects; 0 marks a removed one. Their order is that of the semantic view.
(PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT) = range(1, 7)
NUM_KINDS = 7

# Object textures; 0 means "no object here".
OBJECT_TEXTURES = (
    None, "player-left", "player-right", "player-up", "player-down", "player-sleep", "cow", "zombie", "skeleton",
    "arrow-left", "arrow-right", "arrow-up", "arrow-down", "plant", "plant-ripe",
)
TEXTURE_PLAYER, TEXTURE_SLEEP, TEXTURE_COW, TEXTURE_ZOMBIE, TEXTURE_SKELETON = 1, 5, 6, 7, 8
TEXTURE_ARROW, TEXTURE_PLANT, TEXTURE_RIPE = 9, 13, 14
NUM_TEXTURES = len(OBJECT_TEXTURES)

CHUNK = 12
"""Width and height of the chunks in which creatures are balanced."""


def _material(name: str) -> int:
    return MATERIALS.index(name) + 1


def _materials(names: tuple[str, ...] | list[str]) -> np.ndarray:
    mask = np.zeros(NUM_MATERIALS, np.bool_)
    mask[[_material(name) for name in names]] = True
    return mask


def _amounts(table: dict[str, int]) -> list[int]:
    return [table.get(name, 0) for name in ITEMS]


# Which materials an object may stand on, by kind.
WALKABLE_BY = np.stack([_materials(WALKABLE)] * NUM_KINDS)
WALKABLE_BY[PLAYER] = _materials((*WALKABLE, "lava"))
WALKABLE_BY[ARROW] = _materials((*WALKABLE, "water", "lava"))

# One row per material.
COLLECTABLE = np.zeros(NUM_MATERIALS, np.bool_)
COLLECT_REQUIRES = np.zeros((NUM_MATERIALS, len(ITEMS)), np.int64)
COLLECT_ITEM = np.zeros(NUM_MATERIALS, np.int64)
COLLECT_AMOUNT = np.zeros(NUM_MATERIALS, np.int64)
COLLECT_LEAVES = np.zeros(NUM_MATERIALS, np.int64)
COLLECT_PROBABILITY = np.ones(NUM_MATERIALS, np.float64)
COLLECT_ACHIEVEMENT = np.zeros(NUM_MATERIALS, np.int64)
for _name, _info in COLLECT.items():
    _row = _material(_name)
    ((_item, _amount),) = _info["receive"].items()
    COLLECTABLE[_row] = True
    COLLECT_REQUIRES[_row] = _amounts(_info["require"])
    COLLECT_ITEM[_row] = ITEMS.index(_item)
    COLLECT_AMOUNT[_row] = _amount
    COLLECT_LEAVES[_row] = _material(_info["leaves"])
    COLLECT_PROBABILITY[_row] = _info.get("probability", 1.0)
    COLLECT_ACHIEVEMENT[_row] = ACHIEVEMENTS.index(f"collect_{_item}")

# One row per placing action, in the order of the actions.
PLACE_USES = np.array([_amounts(info["uses"]) for info in PLACE.values()], np.int64)
PLACE_WHERE = np.stack([_materials(info["where"]) for info in PLACE.values()])
PLACE_MATERIAL = np.array([_material(n) if info["type"] == "material" else 0 for n, info in PLACE.items()], np.int64)
PLACE_ACHIEVEMENT = np.array([ACHIEVEMENTS.index(f"place_{name}") for name in PLACE], np.int64)

# One row per making action, in the order of the actions.
MAKE_USES = np.array([_amounts(info["uses"]) for info in MAKE.values()], np.int64)
MAKE_NEARBY = np.stack([_materials(info["nearby"]) for info in MAKE.values()])
MAKE_ITEM = np.array([ITEMS.index(name) for name in MAKE], np.int64)
MAKE_GIVES = np.array([info["gives"] for info in MAKE.values()], np.int64)
MAKE_ACHIEVEMENT = np.array([ACHIEVEMENTS.index(f"make_{name}") for name in MAKE], np.int64)
