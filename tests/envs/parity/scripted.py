"""A player that works towards named goals, from the public infos alone.

Every step it takes the first goal of its list that has something to do. Goals hold little state, so
whatever the world does in between is simply planned around. Needs come first unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .navigation import DIRECTIONS, FREE, SOLID, Routes
from .situation import (
    ACTION,
    COW,
    CREATURES,
    MATERIAL,
    MOVES,
    PLANT,
    SKELETON,
    ZOMBIE,
    Cell,
    Situation,
)

Goal = Callable[[], int | None]

# Plants grow while the player is nearer than twice the view, and are ripe after 300 updates.
GROWING_DISTANCE = 18
RIPE_AFTER = 302

TOOLS = (
    "collect_wood",
    "place_table",
    "make_wood_pickaxe",
    "make_wood_sword",
    "collect_stone",
    "make_stone_pickaxe",
    "make_stone_sword",
    "place_furnace",
    "collect_coal",
    "collect_iron",
    "make_iron_pickaxe",
    "make_iron_sword",
    "collect_diamond",
)
COMPLETE = (
    "collect_sapling",
    *TOOLS[:5],
    "place_stone",
    *TOOLS[5:8],
    "grow_plant",
    *TOOLS[8:],
    "defeat_zombie",
    "defeat_skeleton",
    "wake_up",
    "eat_cow",
    "collect_drink",
    "eat_plant",
)


class ScriptedPlayer:
    """Pursues `goals` in order of the list; `needs=False` neglects hunger, thirst, sleep and foes."""

    def __init__(self, goals: Sequence[str] = COMPLETE, *, needs: bool = True) -> None:
        self.situation = Situation()
        self._goals: list[Goal] = [self._goal(name) for name in goals]
        if needs:
            self._goals = [self.fight, self.drink, self.eat, self.rest, *self._goals]
        self._last_action = ACTION["noop"]
        self._drinking = self._eating = self._resting = False
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
        self._drinking = now.inventory["drink"] < (9 if self._drinking else 4)
        return now.act_on(now.where("water"), "do") if self._drinking else None

    def eat(self) -> int | None:
        now = self.situation
        self._eating = now.inventory["food"] < (6 if self._eating else 4)
        if not self._eating:
            return None
        action = self.eat_plant() if self._growth > RIPE_AFTER else None
        return now.act_on(now.objects == COW, "do") if action is None else action

    def rest(self) -> int | None:
        now = self.situation
        self._resting = now.inventory["energy"] < (9 if self._resting else 3)
        return self._sleep_sheltered() if self._resting else None

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

    # Means

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

    def _mask(self, *cells: Cell) -> np.ndarray:
        mask = np.zeros(self.situation.objects.shape, bool)
        for cell in cells:
            mask[cell] = True
        return mask

    def _near(self, *names: str) -> bool:
        now = self.situation
        x, y = now.position
        square = now.materials[max(x - 1, 0) : x + 2, max(y - 1, 0) : y + 2]
        return all((square == MATERIAL[name]).any() for name in names)

    def _collect(self, item: str) -> int | None:
        """Collects one more of the item, and the tool for it first."""
        now = self.situation
        if item in ("stone", "coal") and not now.has(wood_pickaxe=1):
            return self._make("wood_pickaxe")
        if item == "iron" and not now.has(stone_pickaxe=1):
            return self._make("stone_pickaxe")
        if item == "diamond" and not now.has(iron_pickaxe=1):
            return self._make("iron_pickaxe")
        return now.act_on(now.where("tree" if item == "wood" else item), "do")

    def _collect_once(self, item: str) -> int | None:
        done = self.situation.achievements[f"collect_{item}"]
        return None if done else self._collect(item)

    def _make(self, tool: str) -> int | None:
        """Makes a tool, with all that it takes; None when it exists or cannot be."""
        now = self.situation
        if now.has(**{tool: 1}):
            return None
        metal = tool.partition("_")[0]
        needs = {"wood": ("wood",), "stone": ("wood", "stone"), "iron": ("wood", "coal", "iron")}
        for item in needs[metal]:
            if not now.has(**{item: 1}):
                return self._collect(item)
        stations = ("table", "furnace") if metal == "iron" else ("table",)
        if self._near(*stations):
            return ACTION[f"make_{tool}"]
        return self._approach_stations(stations)

    def _approach_stations(self, stations: tuple[str, ...]) -> int | None:
        """Walks to where the stations are near, or builds them here if they are far."""
        now = self.situation
        reach = np.ones(now.objects.shape, bool)
        for station in stations:
            reach &= _spread(now.materials == MATERIAL[station])
        # A table in the outermost row or column of the north and west is of no use: see `nearby`.
        reach[0, :] = reach[:, 0] = False
        found = now.routes().standing(reach)
        if found is not None and found[0] < 40:
            return now.follow(now.routes(), found[1])
        if not self._near("table"):
            return self._build("table", wood=4)
        return self._build_furnace()

    def _build(self, thing: str, **cost: int) -> int | None:
        for item, amount in cost.items():
            if not self.situation.has(**{item: amount}):
                return self._collect(item)
        return self._put_here(thing)

    def _build_furnace(self) -> int | None:
        """A furnace within reach of a table."""
        now = self.situation
        if not now.has(stone=4):
            return self._collect("stone")
        if self._near("table"):
            return self._put_here("furnace")
        return self._approach_stations(("table",))

    def _put_here(self, thing: str) -> int | None:
        """Places a thing on the nearest suitable cell."""
        now = self.situation
        return now.act_on(now.where("grass", "sand", "path"), f"place_{thing}")

    def _put(self, thing: str, ground: str) -> int | None:
        """Places a thing once on that material."""
        now = self.situation
        key = f"{thing} on {ground}"
        if key in self._done:
            return None
        item, amount = {"stone": ("stone", 1), "table": ("wood", 2), "furnace": ("stone", 4)}[thing]
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

    def _approach(self, cell: Cell, distance: int) -> int | None:
        """Walks until the cell is no further than that."""
        now = self.situation
        if now.distance(cell) <= distance:
            return None
        columns, rows = np.indices(now.objects.shape)
        near = abs(columns - cell[0]) + abs(rows - cell[1]) <= distance
        found = now.routes().standing(near & (now.objects == 0))
        return None if found is None else now.follow(now.routes(), found[1])

    def _approach_nearest(self, kind: int, distance: int) -> int | None:
        now = self.situation
        found = now.routes().facing(now.objects == kind)
        if found is None:
            return None
        x, y, facing = found[1]
        return self._approach((x + DIRECTIONS[facing][0], y + DIRECTIONS[facing][1]), distance)

    def _in_line_of_fire(self) -> int | None:
        """The direction of a skeleton that could hit the player from afar."""
        now = self.situation
        for direction, (dx, dy) in enumerate(DIRECTIONS):
            for distance in range(2, 6):
                cell = (now.position[0] + distance * dx, now.position[1] + distance * dy)
                if not now.inside(cell) or now.materials[cell] != MATERIAL["path"]:
                    break
                if now.objects[cell] == SKELETON:
                    return direction
        return None

    def _shield(self, thing: str) -> int | None:
        """Puts a table or furnace between itself and a skeleton and waits for arrows."""
        now = self.situation
        if thing in self._done:
            return None
        if now.material_ahead() == MATERIAL[thing]:
            self._waited += 1
            if self._waited < 25:
                return ACTION["noop"]
            self._done.add(thing)
            self._waited = 0
            return None
        self._waited = 0
        cost = {"wood": 2} if thing == "table" else {"stone": 4}
        for item, amount in cost.items():
            if not now.has(**{item: amount}):
                return self._collect(item)
        direction = self._in_line_of_fire()
        if direction is None:
            return self._approach_nearest(SKELETON, 3)
        if direction == now.facing and now.object_ahead() == 0:
            return ACTION[f"place_{thing}"]
        return MOVES[direction]

    def _choose_site(self) -> Cell | None:
        """A near patch of grass that needs few stones to be closed."""
        now = self.situation
        free = now.walkable()
        best: tuple[int, Cell] | None = None
        for x, y in np.argwhere(now.where("grass")):
            cell = (int(x), int(y))
            if not 2 < now.distance(cell) < 16 or len(now.neighbours(cell)) < 4:
                continue
            open_sides = sum(bool(free[c]) for c in now.neighbours(cell))
            if open_sides == 0:
                continue
            cost = 8 * open_sides + now.distance(cell)
            if best is None or cost < best[0]:
                best = cost, cell
        return None if best is None else best[1]

    def _close(self, cell: Cell, leave: int = 0) -> int | None:
        """Puts stones on the open sides of a cell, but for so many of them."""
        now = self.situation
        open_sides = [c for c in now.neighbours(cell) if now.walkable()[c]]
        if len(open_sides) <= leave:
            return None
        if not now.has(stone=1):
            return self._collect("stone")
        cells = now.costs()
        cells[cell] = SOLID
        routes = Routes(cells, now.position, now.facing)
        found = routes.facing(self._mask(*open_sides) & (now.objects == 0))
        if found is None:
            return None
        action = now.follow(routes, found[1])
        return ACTION["place_stone"] if action is None else action

    def _sleep_sheltered(self) -> int | None:
        """Sleeps behind closed walls; in the open only if there is no other way."""
        now = self.situation
        action = self._shelter()
        if action is not None and now.inventory["energy"] > 0:
            return action
        return ACTION["sleep"]

    def _enclosed(self) -> bool:
        """Whether nothing can walk up to the player."""
        now = self.situation
        free = now.walkable()
        seen, frontier = {now.position}, [now.position]
        while frontier:
            for cell in now.neighbours(frontier.pop()):
                if free[cell] and cell not in seen:
                    if now.objects[cell] in CREATURES or len(seen) > 4:
                        return False
                    seen.add(cell)
                    frontier.append(cell)
        return True

    def _shelter(self) -> int | None:
        """Digs two cells into something solid and closes the entrance; None when enclosed."""
        now = self.situation
        if self._enclosed() or not now.has(wood_pickaxe=1):
            return None
        if not now.has(stone=2):
            return self._collect("stone")
        solid = ~now.walkable() & (now.materials != MATERIAL["lava"])
        hollow = ~np.isin(now.materials, [MATERIAL[m] for m in ("lava", "table", "furnace", "water")])
        if not now.has(iron_pickaxe=1):
            hollow &= ~np.isin(now.materials, [MATERIAL["iron"], MATERIAL["diamond"]])
        best: tuple[int, Cell, int] | None = None
        for direction, (dx, dy) in enumerate(DIRECTIONS):
            for x, y in np.argwhere(hollow):
                inner = (int(x + dx), int(y + dy))
                back = (int(x + 2 * dx), int(y + 2 * dy))
                entrance = (int(x - dx), int(y - dy))
                if not (now.inside(back) and now.inside(entrance) and hollow[inner]):
                    continue
                distance = now.distance((int(x), int(y)))
                if distance > 24 or (best is not None and distance >= best[0]):
                    continue
                sides = [(int(x + dy), int(y + dx)), (int(x - dy), int(y - dx))]
                sides += [(c[0] + dx, c[1] + dy) for c in sides]
                if not all(now.inside(c) and solid[c] for c in (*sides, back)):
                    continue
                if now.materials[entrance] == MATERIAL["lava"]:
                    continue
                best = distance, (int(x), int(y)), direction
        if best is None:
            return None
        _, cell, direction = best
        dx, dy = DIRECTIONS[direction]
        cells = now.costs()
        for side in ((cell[0] + dy, cell[1] + dx), (cell[0] - dy, cell[1] - dx)):
            cells[side] = SOLID
            cells[side[0] + dx, side[1] + dy] = SOLID
        cells[cell[0] + 2 * dx, cell[1] + 2 * dy] = SOLID
        routes = Routes(cells, now.position, now.facing)
        found = routes._nearest(_state(cells.shape, cell, direction ^ 1))
        if found is None:
            return None
        action = now.follow(routes, found[1])
        return ACTION["place_stone"] if action is None else action


def _state(shape: tuple[int, ...], cell: Cell, facing: int) -> np.ndarray:
    states = np.zeros((*shape, 4), bool)
    states[cell[0], cell[1], facing] = True
    return states


def _spread(mask: np.ndarray) -> np.ndarray:
    """The mask and all cells next to it, diagonals included."""
    padded = np.pad(mask, 1)
    width, height = mask.shape
    result = np.zeros_like(mask)
    for dx in range(3):
        for dy in range(3):
            result |= padded[dx : dx + width, dy : dy + height]
    return result
