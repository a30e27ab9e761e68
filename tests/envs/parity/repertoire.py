"""The scripted player's plays: named lists of goals that together reach all of the game."""

from __future__ import annotations

import dataclasses

from .scripted import ScriptedPlayer

_BASICS = ("collect_wood", "place_table", "make_wood_pickaxe", "make_wood_sword")
_STONE_TOOLS = (*_BASICS, "collect_stone", "make_stone_pickaxe", "make_stone_sword")


@dataclasses.dataclass(frozen=True)
class Play:
    """A list of goals, and whether the player looks after itself meanwhile."""

    goals: tuple[str, ...]
    needs: bool = True
    larder: int = 4

    def player(self) -> ScriptedPlayer:
        return ScriptedPlayer(self.goals, needs=self.needs, larder=self.larder)


PLAYS: dict[str, Play] = {
    "complete": Play(
        (
            "collect_sapling",
            *_STONE_TOOLS,
            "place_stone",
            "place_furnace",
            "grow_plant",
            "collect_coal",
            "collect_iron",
            "make_iron_pickaxe",
            "make_iron_sword",
            "collect_diamond",
            "defeat_zombie",
            "defeat_skeleton",
            "wake_up",
            "eat_cow",
            "collect_drink",
            "eat_plant",
        )
    ),
    "clumsy": Play(
        ("dig_barehanded", "collect_wood", "place_table", "try_recipes", "defeat_zombie", "eat_cow")
    ),
    "edge": Play((*_BASICS, "visit_edge", "hoard", "wait")),
    "mason": Play(
        (
            *_STONE_TOOLS,
            *(f"put_stone_on_{ground}" for ground in ("grass", "path", "sand", "water", "lava")),
            *(f"put_table_on_{ground}" for ground in ("grass", "path", "sand")),
            *(f"put_furnace_on_{ground}" for ground in ("grass", "path", "sand")),
            "enter_lava",
        )
    ),
    "archery": Play(
        (
            "collect_sapling",
            *_STONE_TOOLS,
            "shield_table",
            "shield_furnace",
            "shield_plant",
            "lie_down_among_arrows",
            "stalk_skeletons",
        )
    ),
    "target": Play((*_BASICS, "lie_down_among_arrows", "stalk_skeletons"), needs=False),
    "gardener": Play(("touch_plant", "plant_carelessly")),
    "hermit": Play((*_BASICS, "collect_stone", "shut_in", "wait"), needs=False),
    "night_watch": Play((*_BASICS, "collect_stone", "sleep_at_night", "shut_in", "wait")),
    "settler": Play(
        (
            *("fight", "stay_in_by_night", "stock_up", "drink", "eat", "rest", "heal"),
            *_STONE_TOOLS,
            "place_furnace",
            "make_iron_sword",
            *("shut_in", "wait"),
        ),
        needs=False,
        larder=5,
    ),
    "sleeper": Play(("lie_down_outside", "stalk_zombies"), needs=False),
    "boxer": Play(("defeat_zombie", "eat_cow", "stalk_zombies", "enter_lava")),
    "diver": Play((*_BASICS, "collect_stone", "enter_lava")),
}
