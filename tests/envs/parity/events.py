"""Says what happened in the reference at each step, by comparing its state before and after.

The watcher only reads. It names the rare branches of the game, so that a test can list the ones it
has compared and fail when one it promises never came up.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import crafter
import numpy as np
from crafter import objects

ACTIONS: tuple[str, ...] = tuple(crafter.constants.actions)
ACHIEVEMENTS: tuple[str, ...] = tuple(crafter.constants.achievements)
COLLECT: dict[str, Any] = crafter.constants.collect
PLACE: dict[str, Any] = crafter.constants.place
MAKE: dict[str, Any] = crafter.constants.make
CREATURES = (objects.Zombie, objects.Skeleton, objects.Cow)
SWORDS = ("iron_sword", "stone_sword", "wood_sword")

SCENES = frozenset(
    {
        "night",
        "asleep",
        "asleep by day",
        "asleep by night",
        "edge of the world in view",
        "ripe plant in view",
        "arrow in view",
        "creature changed chunk",
        "time limit",
    }
)
PLAYER_EVENTS = frozenset(
    {
        "health regained",
        "hurt by hunger",
        "hurt by thirst",
        "hurt by fatigue",
        "died in lava",
        "killed by a zombie",
        "killed by an arrow",
        "died of want",
        "sleep refused when rested",
        "woken by damage",
        "woke up rested",
        "woke up and acted in the same step",
        "faced beyond the edge",
        "item capped",
        "grass gave nothing",
        "collecting refused",
        "placing refused: cost",
        "placing refused: ground",
        "placing refused: occupied",
        "making refused: cost",
        "making refused: nothing nearby",
        "making refused: table hidden by the world's edge",
        "stone placed on grass",
        "stone placed on sand",
        "stone placed on path",
        "stone placed on water",
        "stone placed on lava",
        "table placed on grass",
        "table placed on sand",
        "table placed on path",
        "furnace placed on grass",
        "furnace placed on sand",
        "furnace placed on path",
        "plant placed on grass",
        "struck with bare hands",
        "struck with wood_sword",
        "struck with stone_sword",
        "struck with iron_sword",
        "unripe plant touched",
    }
)
CREATURE_EVENTS = frozenset(
    {
        "Zombie spawned",
        "Zombie despawned",
        "Zombie defeated",
        "Zombie hit the player awake",
        "Zombie hit the player asleep",
        "Zombie hit the player while dying",
        "Skeleton spawned",
        "Skeleton despawned",
        "Skeleton defeated",
        "Skeleton shot",
        "Cow spawned",
        "Cow despawned",
        "Cow defeated",
        "Plant ripened",
        "Plant eaten by a Zombie",
        "Plant eaten by a Cow",
        "Plant eaten by a Skeleton",
        "arrow hit the player",
        "arrow hit the sleeping player",
        "arrow hit a Cow",
        "arrow hit a Zombie",
        "arrow hit a Skeleton",
        "arrow hit an Arrow",
        "arrow hit a Plant",
        "arrow stopped by the ground",
        "arrow left the world",
        "arrow broke a table",
        "arrow broke a furnace",
        "arrow flew over water",
        "arrow flew over lava",
    }
)
ALL_EVENTS = SCENES | PLAYER_EVENTS | CREATURE_EVENTS


@dataclasses.dataclass
class _Before:
    """What a step may change, as it was before the step."""

    action: str
    num_slots: int
    objects: list[tuple[Any, int, tuple[int, int]]]
    cooldowns: dict[Any, int]
    growth: dict[Any, int]
    materials: np.ndarray
    inventory: dict[str, int]
    achievements: dict[str, int]
    sleeping: bool
    recover: float
    target: tuple[int, int]
    material: str | None
    occupant: Any


class EventCounter:
    """Counts episodes, steps, achievements and events over any number of watched episodes."""

    def __init__(self) -> None:
        self.episodes = 0
        self.steps = 0
        self.achievements: collections.Counter[str] = collections.Counter()
        self.events: collections.Counter[str] = collections.Counter()
        self._before: _Before | None = None

    def begin(self, env: crafter.Env) -> None:
        """A new episode has been reset in `env`."""
        self.episodes += 1
        self._before = None

    def before(self, env: crafter.Env, action: int) -> None:
        """`env` is about to take `action`."""
        player, world = env._player, env._world
        target = (int(player.pos[0] + player.facing[0]), int(player.pos[1] + player.facing[1]))
        material, occupant = world[target]
        present = world.objects
        self._before = _Before(
            action=ACTIONS[action],
            num_slots=len(world._objects),
            objects=[(o, o.health, _position(o)) for o in present],
            cooldowns={o: o.cooldown for o in present if isinstance(o, objects.Zombie)},
            growth={o: o.grown for o in present if isinstance(o, objects.Plant)},
            materials=world._mat_map.copy(),
            inventory=player.inventory.copy(),
            achievements=player.achievements.copy(),
            sleeping=player.sleeping,
            recover=player._recover,
            target=target,
            material=material,
            occupant=occupant,
        )

    def after(self, env: crafter.Env, done: bool) -> None:
        """`env` has taken the step announced by `before`."""
        assert self._before is not None
        before, self._before = self._before, None
        self.steps += 1
        happened: set[str] = set()
        happened |= _scenes(env, before)
        happened |= _creature_events(env, before)
        happened |= _survival_events(env, before, happened, done)
        happened |= _action_events(env, before)
        self.events.update(happened)
        for name, count in env._player.achievements.items():
            if count > before.achievements[name]:
                self.achievements[name] += count - before.achievements[name]

    def merge(self, other: EventCounter) -> None:
        """Adds what another counter has seen."""
        self.episodes += other.episodes
        self.steps += other.steps
        self.achievements.update(other.achievements)
        self.events.update(other.events)

    def missing(self, events: frozenset[str], achievements: tuple[str, ...]) -> list[str]:
        """The listed events and achievements that never came up."""
        unknown = events - ALL_EVENTS
        assert not unknown, f"not events: {sorted(unknown)}"
        return sorted(e for e in events if not self.events[e]) + [
            a for a in achievements if not self.achievements[a]
        ]

    def report(self) -> str:
        """The counts, for people."""
        lines = [f"{self.episodes} episodes, {self.steps} steps"]
        for title, names, counts in (
            ("achievements", ACHIEVEMENTS, self.achievements),
            ("events", tuple(sorted(ALL_EVENTS)), self.events),
        ):
            covered = sum(counts[name] > 0 for name in names)
            lines.append(f"{title}: {covered} of {len(names)}")
            lines += [f"  {counts[name]:7d}  {name}" for name in names]
        return "\n".join(lines)


def _position(obj: Any) -> tuple[int, int]:
    return int(obj.pos[0]), int(obj.pos[1])


def _inside(pos: tuple[int, int], area: tuple[int, int]) -> bool:
    return 0 <= pos[0] < area[0] and 0 <= pos[1] < area[1]


def _scenes(env: crafter.Env, before: _Before) -> set[str]:
    player, world = env._player, env._world
    happened = set()
    night = world.daylight < 0.5
    if night:
        happened.add("night")
    if player.sleeping:
        happened |= {"asleep", "asleep by night" if night else "asleep by day"}
    grid, offset = env._local_view._grid, env._local_view._offset
    corner = player.pos - offset
    if (corner < 0).any() or (corner + grid > np.array(world.area)).any():
        happened.add("edge of the world in view")
    for obj, _, pos in before.objects:
        if isinstance(obj, CREATURES) and not obj.removed:
            new = _position(obj)
            if new != pos and world.chunk_key(new) != world.chunk_key(pos):
                happened.add("creature changed chunk")
        elif isinstance(obj, objects.Arrow | objects.Plant) and not obj.removed:
            inside = _inside(tuple(obj.pos - corner), tuple(grid))
            if inside and isinstance(obj, objects.Arrow):
                happened.add("arrow in view")
            elif inside and obj.ripe:
                happened.add("ripe plant in view")
    return happened


def _creature_events(env: crafter.Env, before: _Before) -> set[str]:
    player, world = env._player, env._world
    happened = set()
    for obj, _, _ in before.objects:
        name = type(obj).__name__
        if isinstance(obj, CREATURES) and obj.removed:
            happened.add(f"{name} {'despawned' if obj.health > 0 else 'defeated'}")
        if isinstance(obj, objects.Zombie) and not before.cooldowns[obj] and obj.cooldown:
            happened.add(f"Zombie hit the player {'asleep' if player.sleeping else 'awake'}")
            if obj.removed:
                happened.add("Zombie hit the player while dying")
        elif isinstance(obj, objects.Plant):
            if before.growth[obj] <= 300 < obj.grown:
                happened.add("Plant ripened")
            if obj.removed:
                around = {world[obj.pos + step][1] for step in obj.all_dirs}
                eaters = {type(o).__name__ for o in around if isinstance(o, CREATURES)}
                happened |= {f"Plant eaten by a {name}" for name in eaters}
        elif isinstance(obj, objects.Arrow):
            happened |= _arrow_events(env, before, obj)
    for obj in world._objects[before.num_slots :]:
        if isinstance(obj, CREATURES):
            happened.add(f"{type(obj).__name__} spawned")
        elif isinstance(obj, objects.Arrow):
            happened.add("Skeleton shot")
    return happened


def _arrow_events(env: crafter.Env, before: _Before, arrow: Any) -> set[str]:
    player, world = env._player, env._world
    if not arrow.removed:
        material = world[arrow.pos][0]
        return {f"arrow flew over {material}"} if material in ("water", "lava") else set()
    target = (int(arrow.pos[0] + arrow.facing[0]), int(arrow.pos[1] + arrow.facing[1]))
    if not _inside(target, world.area):
        return {"arrow left the world"}
    if target == _position(player):
        return {"arrow hit the player"} | (
            {"arrow hit the sleeping player"} if player.sleeping else set()
        )
    material = world._mat_names[before.materials[target]]
    if material in ("table", "furnace"):
        return {f"arrow broke a {material}"}
    if material not in arrow.walkable:
        return {"arrow stopped by the ground"}
    return {
        f"arrow hit a{'n' if isinstance(o, objects.Arrow) else ''} {type(o).__name__}"
        for o, health, pos in before.objects
        if o is not arrow
        and target in (pos, _position(o))
        and (o.health < health or isinstance(o, objects.Arrow))
    }


def _survival_events(env: crafter.Env, before: _Before, happened: set[str], done: bool) -> set[str]:
    player, world = env._player, env._world
    result = set()
    recovered = player._recover == 0 and before.recover > 20
    wanting = player._recover == 0 and before.recover < -14
    if recovered and before.inventory["health"] < player.health:
        result.add("health regained")
    if wanting:
        wants = {"food": "hunger", "drink": "thirst", "energy": "fatigue"}
        result |= {f"hurt by {why}" for item, why in wants.items() if not player.inventory[item]}
    woken = player.achievements["wake_up"] > before.achievements["wake_up"]
    if woken:
        result.add("woke up rested")
        if before.action not in ("noop", "sleep"):
            result.add("woke up and acted in the same step")
    elif before.sleeping and not player.sleeping:
        result.add("woken by damage")
    if player.health <= 0:
        if world[player.pos][0] == "lava":
            result.add("died in lava")
        elif "arrow hit the player" in happened:
            result.add("killed by an arrow")
        elif any(e.startswith("Zombie hit the player") for e in happened):
            result.add("killed by a zombie")
        elif wanting:
            result.add("died of want")
    elif done:
        result.add("time limit")
    return result


def _action_events(env: crafter.Env, before: _Before) -> set[str]:
    """What became of the action, if the player was awake to take it."""
    player, world = env._player, env._world
    rested = before.inventory["energy"] >= crafter.constants.items["energy"]["max"]
    if before.sleeping and not rested:
        return set()
    action, material, occupant = before.action, before.material, before.occupant
    kind, _, name = action.partition("_")
    result = set()
    if material is None and kind in ("do", "place"):
        result.add("faced beyond the edge")
    gained = {a for a, n in player.achievements.items() if n > before.achievements[a]}
    if action == "sleep" and rested:
        result.add("sleep refused when rested")
    elif action == "do" and isinstance(occupant, CREATURES):
        sword = next((s for s in SWORDS if before.inventory[s]), "bare hands")
        result.add(f"struck with {sword}")
    elif action == "do" and isinstance(occupant, objects.Plant):
        if before.growth[occupant] <= 300:
            result.add("unripe plant touched")
    elif action == "do" and occupant is None and material in COLLECT:
        items = COLLECT[material]["receive"]
        if not any(f"collect_{item}" in gained for item in items):
            result.add("grass gave nothing" if material == "grass" else "collecting refused")
        elif any(before.inventory[i] == player.inventory[i] == 9 for i in items):
            result.add("item capped")
    elif kind == "place":
        afford = all(before.inventory[i] >= n for i, n in PLACE[name]["uses"].items())
        if f"place_{name}" in gained:
            result.add(f"{name} placed on {material}")
        elif occupant is not None:
            result.add("placing refused: occupied")
        elif material not in PLACE[name]["where"]:
            result.add("placing refused: ground")
        elif not afford:
            result.add("placing refused: cost")
    elif kind == "make" and action not in gained:
        around, _ = world.nearby(player.pos, 1)
        if all(n in around for n in MAKE[name]["nearby"]):
            result.add("making refused: cost")
        else:
            result.add("making refused: nothing nearby")
            x, y = _position(player)
            square = world._mat_map[max(x - 1, 0) : x + 2, max(y - 1, 0) : y + 2]
            if (square == world._mat_ids["table"]).any() and "furnace" not in MAKE[name]["nearby"]:
                result.add("making refused: table hidden by the world's edge")
    return result
