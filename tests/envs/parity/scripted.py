"""A player that works towards named goals, from the public infos alone.

Every step it takes the first goal of its list that has something to do. Goals hold little state, so
whatever the world does in between is simply planned around. Needs come first unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .craft import Craft
from .navigation import DIRECTIONS, FREE, Routes
from .situation import (
    ACTION,
    COW,
    MATERIAL,
    MOVES,
    PLANT,
    SKELETON,
    ZOMBIE,
    Cell,
)

Goal = Callable[[], int | None]

# Plants grow while the player is nearer than twice the view, and are ripe after 300 updates.
GROWING_DISTANCE = 18
RIPE_AFTER = 302
PRICE = {
    "stone": ("stone", 1),
    "table": ("wood", 2),
    "furnace": ("stone", 4),
    "plant": ("sapling", 1),
}


class ScriptedPlayer(Craft):
    """Pursues `goals` in order of the list.

    `needs=False` neglects hunger, thirst and foes unless the goals name them. `larder` is the level
    below which food and drink are seen to.
    """

    def __init__(self, goals: Sequence[str], *, needs: bool = True, larder: int = 4) -> None:
        super().__init__()
        self._goals: list[Goal] = [self._goal(name) for name in goals]
        if needs:
            self._goals = [self.fight, self.drink, self.eat, self.rest, self.heal, *self._goals]
        self._larder = larder
        self._last_action = ACTION["noop"]
        self._drinking = self._eating = self._resting = self._healing = False
        self._site: Cell | None = None
        self._plant: Cell | None = None
        self._growth = 0
        self._done: set[str] = set()
        self._waited = 0

    def act(self, info: dict[str, Any] | None) -> int:
        """The next action, given the infos of the previous step (None at an episode's start)."""
        if info is None:
            return ACTION["noop"]
        now = self.situation
        now.observe(info, self._last_action)
        self._watch_plant()
        self._last_action = self._choose()
        return self._last_action

    def _choose(self) -> int:
        if self.situation.asleep:
            # The step that ends a full sleep also takes its action.
            return ACTION["do" if self.situation.inventory["energy"] >= 9 else "noop"]
        for goal in self._goals:
            action = goal()
            if action is not None:
                return action
        return ACTION["noop"]

    def _goal(self, name: str) -> Goal:
        """The method of that name; failing that, the action or collection of that name."""
        method: Goal | None = getattr(self, name, None)
        if method is not None:
            return method
        kind, _, item = name.partition("_")
        if kind == "make":
            return lambda: self._make(item)
        if kind == "collect":
            return lambda: self._collect_once(item)
        if kind == "put":  # put_stone_on_sand
            thing, _, ground = item.partition("_on_")
            return lambda: self._put(thing, ground)
        raise ValueError(f"no goal is called {name!r}")

    # Needs

    def fight(self) -> int | None:
        """Strikes zombies and skeletons that stand next to the player."""
        now = self.situation
        for direction, (dx, dy) in enumerate(DIRECTIONS):
            cell = (now.position[0] + dx, now.position[1] + dy)
            if now.inside(cell) and now.objects[cell] in (ZOMBIE, SKELETON):
                return ACTION["do"] if direction == now.facing else MOVES[direction]
        return None

    def drink(self) -> int | None:
        now = self.situation
        self._drinking = now.inventory["drink"] < (9 if self._drinking else self._larder)
        return now.act_on(now.where("water"), "do") if self._drinking else None

    def eat(self) -> int | None:
        now = self.situation
        self._eating = now.inventory["food"] < (6 if self._eating else self._larder)
        if not self._eating:
            return None
        action = self.eat_plant() if self._growth > RIPE_AFTER else None
        return now.act_on(now.objects == COW, "do") if action is None else action

    def rest(self) -> int | None:
        now = self.situation
        self._resting = now.inventory["energy"] < (9 if self._resting else 3)
        return self._sleep_sheltered() if self._resting else None

    def heal(self) -> int | None:
        """Waits behind walls until the worst wounds have closed."""
        now = self.situation
        self._healing = now.inventory["health"] < (7 if self._healing else 4)
        if not self._healing:
            return None
        action = self._shelter()
        return action if action is not None or not self._enclosed() else ACTION["noop"]

    # Goals that end with an achievement

    def collect_sapling(self) -> int | None:
        now = self.situation
        if now.achievements["collect_sapling"]:
            return None
        return now.act_on(now.where("grass"), "do")

    def place_table(self) -> int | None:
        now = self.situation
        if now.achievements["place_table"]:
            return None
        return self._build("table", wood=4)

    def place_furnace(self) -> int | None:
        now = self.situation
        if now.achievements["place_furnace"]:
            return None
        if not now.has(stone=6):
            return self._collect("stone")
        return self._build_furnace()

    def place_stone(self) -> int | None:
        now = self.situation
        if now.achievements["place_stone"]:
            return None
        return self._put("stone", "water") or self._put("stone", "grass")

    def defeat_zombie(self) -> int | None:
        return self._hunt(ZOMBIE, "defeat_zombie")

    def defeat_skeleton(self) -> int | None:
        return self._hunt(SKELETON, "defeat_skeleton")

    def eat_cow(self) -> int | None:
        return self._hunt(COW, "eat_cow")

    def collect_drink(self) -> int | None:
        now = self.situation
        if now.achievements["collect_drink"]:
            return None
        return now.act_on(now.where("water"), "do")

    def wake_up(self) -> int | None:
        now = self.situation
        if now.achievements["wake_up"] or now.inventory["energy"] > 7:
            return None
        return self._sleep_sheltered()

    def grow_plant(self) -> int | None:
        """Plants a sapling where all sides are closed, or closes them with stones."""
        now = self.situation
        if self._plant is not None:
            return self._close(self._plant)
        if now.achievements["eat_plant"]:
            return None
        if not now.has(sapling=1):
            return now.act_on(now.where("grass"), "do")
        if not now.has(stone=5):
            return self._collect("stone")
        if self._site is None or now.materials[self._site] != MATERIAL["grass"]:
            self._site = self._choose_site()
        if self._site is None:
            return None
        closing = self._close(self._site, leave=1)
        if closing is not None:
            return closing
        return now.act_on(self._mask(self._site), "place_plant")

    def plant_carelessly(self) -> int | None:
        """Plants whatever sapling is found, wherever."""
        now = self.situation
        return now.act_on(now.where("grass"), "place_plant" if now.has(sapling=1) else "do")

    def eat_plant(self) -> int | None:
        """Stays near the plant until it is ripe, then eats it."""
        now = self.situation
        if self._plant is None:
            return None
        if self._growth > RIPE_AFTER:
            return now.act_on(self._mask(self._plant), "do")
        return self._approach(self._plant, 6)

    # Goals for the rarer branches of the game

    def hoard(self) -> int | None:
        """Collects more than can be carried."""
        now = self.situation
        for item, material in (("wood", "tree"), ("stone", "stone")):
            if item in self._done:
                continue
            if now.has(**{item: 9}):
                self._waited += 1
                if self._waited > 2:
                    self._done.add(item)
                    self._waited = 0
            action = now.act_on(now.where(material), "do")
            if action is not None:
                return action
        return None

    def dig_barehanded(self) -> int | None:
        """Tries to collect what takes a pickaxe, without one."""
        now = self.situation
        for material in ("stone", "coal", "iron"):
            if material in self._done:
                continue
            action = now.act_on(now.where(material), "do")
            if action == ACTION["do"] and now.material_ahead() == MATERIAL[material]:
                self._done.add(material)
            if action is not None:
                return action
        return None

    def try_recipes(self) -> int | None:
        """At a table, tries every recipe, mostly without the means."""
        if not self._near("table") or self._waited >= 12:
            return None
        self._waited += 1
        recipes = [action for name, action in ACTION.items() if name.startswith("make_")]
        return recipes[self._waited % len(recipes)]

    def visit_edge(self) -> int | None:
        """Goes to the world's north or west edge, builds a table there and tries to use it."""
        now = self.situation
        if "edge" in self._done:
            return None
        if not now.has(wood=5) and self._waited == 0:
            return self._collect("wood")
        if min(now.position) > 0:
            edge = np.zeros(now.objects.shape, bool)
            edge[0, :] = edge[:, 0] = True
            found = now.routes().standing(edge)
            return None if found is None else now.follow(now.routes(), found[1])
        # Facing outwards first: acting on what is not there. Then a table and three tries.
        outwards = 0 if now.position[0] == 0 else 2
        script = [MOVES[outwards], ACTION["do"], ACTION["place_stone"], ACTION["place_table"]]
        if self._waited < len(script):
            self._waited += 1
            return script[self._waited - 1]
        if not self._near("table"):
            return self._put_here("table")
        self._waited += 1
        if self._waited > len(script) + 2:
            self._done.add("edge")
            self._waited = 0
        return ACTION["make_wood_pickaxe" if self._waited % 2 else "make_wood_sword"]

    def shield_table(self) -> int | None:
        return self._shield("table")

    def shield_furnace(self) -> int | None:
        return self._shield("furnace")

    def shield_plant(self) -> int | None:
        return self._shield("plant")

    def touch_plant(self) -> int | None:
        """Strikes a plant that is not ripe, once."""
        now = self.situation
        if self._plant is None or "touch" in self._done:
            return None
        action = now.act_on(self._mask(self._plant), "do")
        if action == ACTION["do"] and now.ahead() == self._plant:
            self._done.add("touch")
        return action

    def sleep_at_night(self) -> int | None:
        """Sleeps behind walls once it is dark (the first night begins with step 148)."""
        return self._sleep_sheltered() if self.situation.steps % 300 > 150 else None

    def stay_in_by_night(self) -> int | None:
        """From dusk to dawn behind walls, asleep if possible, unless starving."""
        now = self.situation
        starving = min(now.inventory["food"], now.inventory["drink"]) < 2
        if starving or not 130 < now.steps % 300 < 290:
            return None
        action = self._shelter()
        if action is not None or not self._enclosed():
            return action
        return ACTION["sleep" if now.inventory["energy"] < 9 else "noop"]

    def stock_up(self) -> int | None:
        """Eats and drinks in the afternoon, for the night."""
        now = self.situation
        if not 60 < now.steps % 300 <= 130:
            return None
        if now.inventory["food"] < 6:
            return now.act_on(now.objects == COW, "do")
        return now.act_on(now.where("water"), "do") if now.inventory["drink"] < 8 else None

    def lie_down_outside(self) -> int | None:
        """Sleeps on open grass, wherever the player happens to be."""
        now = self.situation
        return ACTION["sleep"] if now.inventory["energy"] < 9 else None

    def lie_down_among_arrows(self) -> int | None:
        """Sleeps in sight of a skeleton."""
        now = self.situation
        if now.inventory["energy"] >= 9:
            return None
        if self._in_line_of_fire() is not None:
            return ACTION["sleep"]
        return self._approach_nearest(SKELETON, 4)

    def stalk_skeletons(self) -> int | None:
        """Keeps within range of a skeleton."""
        return self._approach_nearest(SKELETON, 4)

    def stalk_zombies(self) -> int | None:
        return self._approach_nearest(ZOMBIE, 2)

    def enter_lava(self) -> int | None:
        now = self.situation
        cells = now.costs()
        cells[now.materials == MATERIAL["lava"]] = FREE
        routes = Routes(cells, now.position, now.facing)
        found = routes.standing(now.materials == MATERIAL["lava"])
        return None if found is None else now.follow(routes, found[1])

    def shut_in(self) -> int | None:
        """Stays in a shelter for good, awake."""
        return self._shelter()

    def wait(self) -> int | None:
        return ACTION["noop"]

    # Means that remember

    def _watch_plant(self) -> None:
        now = self.situation
        if self._plant is None:
            sites = np.argwhere(now.objects == PLANT)
            if len(sites):
                self._plant = (int(sites[0][0]), int(sites[0][1]))
                self._growth = 0
            return
        if now.objects[self._plant] != PLANT:
            self._plant = self._site = None
        elif self._last_action == ACTION["do"] and now.ahead() == self._plant:
            # Eaten, or touched too early: either way it is worth another visit only later.
            self._growth = 0 if self._growth > RIPE_AFTER else self._growth
        elif now.distance(self._plant) < GROWING_DISTANCE:
            self._growth += 1

    def _put(self, thing: str, ground: str) -> int | None:
        """Places a thing once on that material."""
        now = self.situation
        key = f"{thing} on {ground}"
        if key in self._done:
            return None
        item, amount = PRICE[thing]
        if not now.has(**{item: amount}):
            return self._collect(item)
        action = now.act_on(now.where(ground), f"place_{thing}")
        if action == ACTION[f"place_{thing}"] and now.material_ahead() == MATERIAL[ground]:
            self._done.add(key)
        return action

    def _hunt(self, kind: int, achievement: str) -> int | None:
        now = self.situation
        if now.achievements[achievement]:
            return None
        return now.act_on(now.objects == kind, "do")

    def _shield(self, thing: str) -> int | None:
        """Puts a table or furnace between itself and a skeleton and waits for arrows."""
        now = self.situation
        if thing in self._done:
            return None
        if now.material_ahead() == MATERIAL.get(thing) or now.object_ahead() == PLANT:
            self._waited += 1
            if self._waited < 25:
                return ACTION["noop"]
            self._done.add(thing)
            self._waited = 0
            return None
        self._waited = 0
        item, amount = PRICE[thing]
        if not now.has(**{item: amount}):
            return self._collect(item)
        direction = self._in_line_of_fire()
        if direction is None:
            return self._approach_nearest(SKELETON, 3)
        if direction == now.facing and now.object_ahead() == 0:
            if thing != "plant" or now.material_ahead() == MATERIAL["grass"]:
                return ACTION[f"place_{thing}"]
            return MOVES[(now.steps // 5) % 4]
        return MOVES[direction]
