"""What a scripted player knows: the public infos, and what it remembers of earlier ones."""

from __future__ import annotations

from typing import Any

import crafter
import numpy as np

from .navigation import DIRECTIONS, FREE, LETHAL, OPENED, OPENED_LETHAL, SOLID, Routes

ACTION = {name: index for index, name in enumerate(crafter.constants.actions)}
MOVES = (ACTION["move_left"], ACTION["move_right"], ACTION["move_up"], ACTION["move_down"])
MATERIAL = {name: index + 1 for index, name in enumerate(crafter.constants.materials)}
WALKABLE = tuple(MATERIAL[name] for name in crafter.constants.walkable)
ARROW_PASSES = (*WALKABLE, MATERIAL["water"], MATERIAL["lava"])
# `semantic` numbers objects after the materials and the empty material 0.
PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT = range(len(MATERIAL) + 1, len(MATERIAL) + 7)
CREATURES = (COW, ZOMBIE, SKELETON)

Cell = tuple[int, int]


class Situation:
    """The present state of the game as far as the infos tell, with ways to act on it."""

    def __init__(self) -> None:
        self.steps = 0
        self.facing = 3
        self.asleep = False
        self.hurt = False
        self.position: Cell = (0, 0)
        self.inventory: dict[str, int] = {}
        self.achievements: dict[str, int] = {}
        self.materials = np.zeros((0, 0), np.uint8)
        self.objects = np.zeros((0, 0), np.uint8)
        self._routes: Routes | None = None

    def observe(self, info: dict[str, Any], last_action: int) -> None:
        """Takes in the infos returned for `last_action`."""
        self.steps += 1
        self._routes = None
        semantic = info["semantic"]
        if self.materials.shape != semantic.shape:
            self.materials = np.full(semantic.shape, MATERIAL["grass"], np.uint8)
        is_object = semantic >= PLAYER
        # What lies beneath an object is not shown: keep what was seen there before.
        self.materials = np.where(is_object, self.materials, semantic)
        self.objects = np.where(is_object, semantic, 0).astype(np.uint8)
        self.position = (int(info["player_pos"][0]), int(info["player_pos"][1]))
        rested = self.inventory.get("energy", 9) >= 9
        was_hurt = self.hurt
        self.hurt = info["inventory"]["health"] < self.inventory.get("health", 9)
        if self.asleep:
            # Damage dealt after the player's own update is noticed in the next one.
            self.asleep = not (rested or was_hurt)
        elif last_action in MOVES:
            self.facing = MOVES.index(last_action)
        elif last_action == ACTION["sleep"]:
            self.asleep = not rested
        self.inventory = info["inventory"]
        self.achievements = info["achievements"]

    def has(self, **items: int) -> bool:
        """Whether the inventory holds at least these amounts."""
        return all(self.inventory[name] >= amount for name, amount in items.items())

    def where(self, *names: str) -> np.ndarray:
        """The cells of these materials on which no object stands."""
        mask = np.isin(self.materials, [MATERIAL[name] for name in names])
        return mask & (self.objects == 0)

    def walkable(self) -> np.ndarray:
        """The cells that creatures may enter, were they free of objects."""
        return np.isin(self.materials, WALKABLE)

    def ahead(self, distance: int = 1) -> Cell:
        """The cell so many steps in front of the player; it may lie outside the world."""
        dx, dy = DIRECTIONS[self.facing]
        return self.position[0] + distance * dx, self.position[1] + distance * dy

    def inside(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.objects.shape[0] and 0 <= cell[1] < self.objects.shape[1]

    def neighbours(self, cell: Cell) -> list[Cell]:
        around = [(cell[0] + dx, cell[1] + dy) for dx, dy in DIRECTIONS]
        return [c for c in around if self.inside(c)]

    def distance(self, cell: Cell) -> int:
        return abs(cell[0] - self.position[0]) + abs(cell[1] - self.position[1])

    def object_ahead(self) -> int:
        return int(self.objects[self.ahead()]) if self.inside(self.ahead()) else 0

    def material_ahead(self) -> int:
        return int(self.materials[self.ahead()]) if self.inside(self.ahead()) else 0

    def costs(self) -> np.ndarray:
        """The grid that `navigation` searches, given the tools at hand."""
        cells = np.full(self.materials.shape, SOLID, np.int64)
        cells[self.walkable()] = FREE
        cells[self.materials == MATERIAL["lava"]] = LETHAL
        cells[self.materials == MATERIAL["tree"]] = OPENED + 3
        pickaxe = self.has(wood_pickaxe=1)
        if pickaxe:
            cells[np.isin(self.materials, [MATERIAL["stone"], MATERIAL["coal"]])] = OPENED + 2
        if self.has(stone_pickaxe=1):
            cells[self.materials == MATERIAL["iron"]] = OPENED + 2
        if self.has(iron_pickaxe=1):
            cells[self.materials == MATERIAL["diamond"]] = OPENED + 2
        if pickaxe and self.has(stone=1):
            cells[self.materials == MATERIAL["water"]] = OPENED + 4
            cells[self.materials == MATERIAL["lava"]] = OPENED_LETHAL + 6
        cells[np.isin(self.objects, CREATURES)] = OPENED + 6
        cells[self.objects == ARROW] = OPENED + 3
        cells[self.objects == PLANT] = SOLID
        return cells

    def routes(self) -> Routes:
        """All ways from here (computed once a step)."""
        if self._routes is None:
            self._routes = Routes(self.costs(), self.position, self.facing)
        return self._routes

    def follow(self, routes: Routes, goal: tuple[int, int, int]) -> int | None:
        """The next action on the way to a (x, y, facing); None when there."""
        direction = routes.first_move(goal)
        if direction is None:
            return None
        x = self.position[0] + DIRECTIONS[direction][0]
        y = self.position[1] + DIRECTIONS[direction][1]
        if not self.inside((x, y)) or direction != self.facing:
            return MOVES[direction]
        occupant, material = self.objects[x, y], self.materials[x, y]
        if occupant in CREATURES:
            return ACTION["do"]
        if occupant == ARROW:
            return ACTION["noop"]
        if material in WALKABLE:
            return MOVES[direction]
        if material in (MATERIAL["water"], MATERIAL["lava"]):
            return ACTION["place_stone"]
        return ACTION["do"]

    def face(self, targets: np.ndarray) -> tuple[bool, int | None]:
        """Whether some target can be faced, and the next action towards that (None: it is)."""
        found = self.routes().facing(targets)
        if found is None:
            return False, None
        return True, self.follow(self.routes(), found[1])

    def act_on(self, targets: np.ndarray, action: str) -> int | None:
        """Goes to face the nearest target and takes the action; None when none is in reach."""
        reachable, step = self.face(targets)
        if not reachable:
            return None
        return ACTION[action] if step is None else step
