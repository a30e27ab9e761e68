"""What a scripted player can do anywhere: collect, make, build, approach, take shelter.

Each method returns the next action, or None when there is nothing to do or no way to do it.
"""

from __future__ import annotations

import numpy as np

from .navigation import DIRECTIONS, SOLID, Routes
from .situation import ACTION, ARROW_PASSES, CREATURES, MATERIAL, SKELETON, Cell, Situation


class Craft:
    """Skills over a `Situation`, without memory of their own."""

    def __init__(self) -> None:
        self.situation = Situation()

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
        source = {"wood": "tree", "sapling": "grass"}.get(item, item)
        return now.act_on(now.where(source), "do")

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
                if not now.inside(cell):
                    break
                if now.objects[cell] == SKELETON:
                    return direction
                if now.objects[cell] or now.materials[cell] not in ARROW_PASSES:
                    break
        return None

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
        site = self._choose_shelter()
        if site is None:
            return None
        cell, direction = site
        dx, dy = DIRECTIONS[direction]
        cells = now.costs()
        for side in ((cell[0] + dy, cell[1] + dx), (cell[0] - dy, cell[1] - dx)):
            cells[side] = SOLID
            cells[side[0] + dx, side[1] + dy] = SOLID
        cells[cell[0] + 2 * dx, cell[1] + 2 * dy] = SOLID
        routes = Routes(cells, now.position, now.facing)
        found = routes.nearest(_state(cells.shape, cell, direction ^ 1))
        if found is None:
            return None
        action = now.follow(routes, found[1])
        return ACTION["place_stone"] if action is None else action

    def _choose_shelter(self) -> tuple[Cell, int] | None:
        """The nearest cell and direction in which two cells can be dug with all sides closed."""
        now = self.situation
        lava = now.materials == MATERIAL["lava"]
        solid = ~now.walkable() & ~lava
        hollow = now.walkable() | np.isin(
            now.materials, [MATERIAL[name] for name in ("stone", "coal", "tree")]
        )
        columns, rows = np.indices(hollow.shape)
        distance = np.abs(columns - now.position[0]) + np.abs(rows - now.position[1])
        best: tuple[int, Cell, int] | None = None
        for direction, (dx, dy) in enumerate(DIRECTIONS):
            fits = hollow & _shifted(hollow, dx, dy) & _shifted(~lava, -dx, -dy) & (distance <= 24)
            for side in ((dy, dx), (-dy, -dx), (dy + dx, dx + dy), (dx - dy, dy - dx)):
                fits &= _shifted(solid, *side)
            fits &= _shifted(solid, 2 * dx, 2 * dy)
            index = int(np.where(fits, distance, 1000).argmin())
            x, y = divmod(index, hollow.shape[1])
            if fits[x, y] and (best is None or distance[x, y] < best[0]):
                best = int(distance[x, y]), (x, y), direction
        return None if best is None else best[1:]


def _shifted(mask: np.ndarray, dx: int, dy: int) -> np.ndarray:
    """For every cell, the mask at (x + dx, y + dy); false outside."""
    padded = np.pad(mask, 2)
    width, height = mask.shape
    return padded[2 + dx : 2 + dx + width, 2 + dy : 2 + dy + height]


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
