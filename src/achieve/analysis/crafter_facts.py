"""What happened in episodes of Crafter, step by step: read from the infos, which no agent sees.

The infos are the original's and leave some things unsaid, which follow from the rules. A plant is ripe after 300
updates, which it gets only while the player is near. The map hides what the player stands on, but showed it a step ago.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from achieve.envs.crafter.creatures import RIPE_AFTER
from achieve.envs.crafter.data import (
    ACHIEVEMENTS,
    ARROW,
    COW,
    DIAMOND,
    ENERGY,
    HEALTH,
    IRON,
    ITEM_MAX,
    ITEMS,
    LAVA,
    MAKE,
    MATERIALS,
    NUM_MATERIALS,
    PLANT,
    SKELETON,
    SLEEP,
    ZOMBIE,
)

SIGHTS = ("iron", "diamond", "zombie", "skeleton", "arrow", "ripe_plant")
"""What is looked for in the local view, the part of the map that an agent sees."""
EATERS = {"zombie": ZOMBIE, "cow": COW, "skeleton": SKELETON}
"""Creatures that eat a plant they stand beside."""

STATE = np.dtype(
    [
        ("inventory", np.uint8, (len(ITEMS),)),
        ("seen", np.bool_, (len(SIGHTS),)),
        ("needs", np.bool_),  # what an iron tool takes is in the inventory
        ("bench", np.bool_),  # that, and a table and a furnace are nearby
    ]
)
"""What is kept of the game before the first and after each step."""

NEARBY = 1
"""Cells, in each direction, in which a table and a furnace count as nearby."""


def _object(kind: int) -> int:
    """Return the number of a kind of object in the semantic view."""
    return NUM_MATERIALS - 1 + kind


_SEEN = np.array([IRON, DIAMOND, *map(_object, (ZOMBIE, SKELETON, ARROW))], np.uint8)
_RECIPE = MAKE["iron_pickaxe"]  # the sword's is the same
_USES = np.array([_RECIPE["uses"].get(item, 0) for item in ITEMS])
_BENCH = {MATERIALS.index(name) + 1 for name in _RECIPE["nearby"]}
_EAT_PLANT = ACHIEVEMENTS.index("eat_plant")

Cell = tuple[int, int]


@dataclass(frozen=True)
class Plant:
    """A sapling that was placed.

    Attributes:
        stood: steps until it was lost or the episode ended.
        grown: the most updates it had; it is ripe with more than 300, and eating it starts anew.
        lost_to: `zombie`, `cow` or `skeleton`, the first of them found beside it; `other`, such as an arrow; or None.
    """

    stood: int = 0
    grown: int = 0
    lost_to: str | None = None

    @property
    def ripened(self) -> bool:
        return self.grown > RIPE_AFTER


@dataclass(frozen=True)
class EpisodeFacts:
    """One whole episode of T steps.

    Attributes:
        states: `STATE` [T + 1], before the first and after each step.
        died: whether it ended by death; otherwise by the time limit.
        asleep: whether the player was asleep in the last step, or fell asleep in it.
        in_lava: whether it ended in lava.
        achievements: [22], how often each was done.
        plants: all that were placed.
    """

    states: NDArray[np.void]
    died: bool
    asleep: bool
    in_lava: bool
    achievements: NDArray[np.int64]
    plants: tuple[Plant, ...] = ()

    @property
    def length(self) -> int:
        return len(self.states) - 1


class _Moment(NamedTuple):
    """All environments at one time."""

    semantic: NDArray[np.uint8]  # [N, width, height]
    position: NDArray[np.int64]  # [N, 2]
    inventory: NDArray[np.int64]  # [N, items]
    achievements: NDArray[np.int64]  # [N, 22]

    @classmethod
    def read(cls, infos: dict[str, Any]) -> "_Moment":
        inventory = np.stack([infos["inventory"][item] for item in ITEMS], 1)
        achievements = np.stack([infos["achievements"][name] for name in ACHIEVEMENTS], 1)
        return cls(infos["semantic"], infos["player_pos"], inventory, achievements)

    def where(self, rows: NDArray[np.bool_], other: "_Moment") -> "_Moment":
        """Return the other one's environments in ``rows``, and these elsewhere."""
        return _Moment(
            np.where(rows[:, None, None], other.semantic, self.semantic),
            np.where(rows[:, None], other.position, self.position),
            np.where(rows[:, None], other.inventory, self.inventory),
            np.where(rows[:, None], other.achievements, self.achievements),
        )


@dataclass
class _Growing:
    """A plant on the map; ``grown`` is since it was last eaten, ``most`` before."""

    placed: int
    grown: int = 0
    most: int = 0


class FactsWatcher:
    """Records the facts of the episodes that :func:`achieve.analysis.evaluate.play` plays in Crafter."""

    def __init__(self) -> None:
        self.episodes: list[EpisodeFacts] = []
        """Those that were kept, in order of completion."""

    def begin(self, envs: Any, infos: dict[str, Any]) -> None:
        self._envs = envs
        across, down = envs.view
        self._view = np.array([across, down - -(-len(ITEMS) // across)])
        self._reach = 2 * max(envs.view)
        self._history: list[NDArray[np.void]] = []
        self._began = [0] * envs.num_envs
        self._in_lava = np.zeros(envs.num_envs, np.bool_)
        self._asleep: NDArray[np.bool_] = envs.sleeping
        self._growing: list[dict[Cell, _Growing]] = [{} for _ in self._began]
        self._lost: list[list[Plant]] = [[] for _ in self._began]
        self._ended: dict[int, EpisodeFacts] = {}
        self._now = _Moment.read(infos)
        self._first = self._states(self._now)

    def step(self, actions: NDArray[np.int64], done: NDArray[np.bool_], infos: dict[str, Any]) -> None:
        before, now = self._now, _Moment.read(infos)
        # Where an episode ended, the infos are those of the next one's start already.
        after = now.where(done, _Moment.read(infos["final_info"])) if done.any() else now
        self._grow(before, after)
        self._history.append(self._states(after))
        moved = (before.position != after.position).any(1)
        onto_lava = before.semantic[np.arange(len(moved)), *after.position.T] == LAVA
        self._in_lava = np.where(moved, onto_lava, self._in_lava)
        tired = before.inventory[:, ENERGY] < ITEM_MAX[ENERGY]
        asleep = tired & (self._asleep | (np.asarray(actions) == SLEEP))
        for i in map(int, np.flatnonzero(done)):
            self._end(i, after, bool(asleep[i]))
        self._now, self._asleep = now, self._envs.sleeping
        if done.any():
            self._in_lava &= ~done
            self._first = np.where(done, self._states(now), self._first)

    def keep(self, env: int) -> None:
        self.episodes.append(self._ended.pop(env))

    def _end(self, i: int, after: _Moment, asleep: bool) -> None:
        rows = [self._first[i], *(states[i] for states in self._history[self._began[i] :])]
        steps = len(rows) - 1
        standing = [Plant(steps - plant.placed, plant.most) for plant in self._growing[i].values()]
        self._ended[i] = EpisodeFacts(
            np.array(rows, STATE),
            died=bool(after.inventory[i, HEALTH] <= 0),
            asleep=asleep,
            in_lava=bool(self._in_lava[i]),
            achievements=after.achievements[i].copy(),
            plants=(*self._lost[i], *standing),
        )
        self._began[i], self._growing[i], self._lost[i] = len(self._history), {}, []

    def _states(self, at: _Moment) -> NDArray[np.void]:
        """Return what is kept of a moment: `STATE` [N]."""
        states = np.zeros(len(at.position), STATE)
        states["inventory"] = at.inventory
        corner = at.position - self._view // 2
        x, y = (corner[:, axis, None] + np.arange(self._view[axis]) for axis in (0, 1))
        width, height = at.semantic.shape[1:]
        inside = ((x >= 0) & (x < width))[:, :, None] & ((y >= 0) & (y < height))[:, None, :]
        rows = np.arange(len(states))[:, None, None]
        cells = at.semantic[rows, x.clip(0, width - 1)[:, :, None], y.clip(0, height - 1)[:, None, :]]
        cells = np.where(inside, cells, 0).reshape(len(states), -1)
        states["seen"][:, : len(_SEEN)] = (cells[:, :, None] == _SEEN).any(1)
        for i, plants in enumerate(self._growing):
            states["seen"][i, -1] = any(
                plant.grown > RIPE_AFTER and (cell - corner[i] >= 0).all() and (cell - corner[i] < self._view).all()
                for cell, plant in plants.items()
            )
        states["needs"] = (at.inventory >= _USES).all(1)
        for row in np.flatnonzero(states["needs"]):
            # A slice as the original has it: where its start is negative, nothing is nearby.
            (px, py), d = at.position[row], NEARBY
            states["bench"][row] = _BENCH.issubset(at.semantic[row, px - d : px + d + 1, py - d : py + d + 1].flat)
        return states

    def _grow(self, before: _Moment, after: _Moment) -> None:
        """Bring the plants up to date."""
        places: list[set[Cell]] = [set() for _ in self._growing]
        for i, x, y in np.argwhere(after.semantic == _object(PLANT)).tolist():
            places[i].add((x, y))
        for i, (there, plants) in enumerate(zip(places, self._growing, strict=True)):
            if not there and not plants:
                continue
            step = len(self._history) + 1 - self._began[i]
            eaten = after.achievements[i, _EAT_PLANT] > before.achievements[i, _EAT_PLANT]
            for cell in [cell for cell in plants if cell not in there]:
                plant = plants.pop(cell)
                who = _eater(cell, before.semantic[i], after.semantic[i])
                self._lost[i].append(Plant(step - plant.placed, plant.most, who))
            for cell, plant in plants.items():
                distance = int(np.abs(after.position[i] - cell).sum())
                if eaten and plant.grown > RIPE_AFTER and distance == 1:
                    plant.grown = 0
                plant.grown += distance < self._reach
                plant.most = max(plant.most, plant.grown)
            for cell in there - plants.keys():
                plants[cell] = _Growing(step)


def _eater(cell: Cell, *maps: NDArray[np.uint8]) -> str:
    """Return who was beside a plant, before or after the step in which it was lost: some move first, others later."""
    width, height = maps[0].shape
    around = [(cell[0] + dx, cell[1] + dy) for dx, dy in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))]
    near = {int(seen[x, y]) for seen in maps for x, y in around if 0 <= x < width and 0 <= y < height}
    return next((name for name, kind in EATERS.items() if _object(kind) in near), "other")
