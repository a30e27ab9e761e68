"""The door-key tree as a MiniGrid environment, in MiniGrid's own terms.

This is the plain version of the game: `vec` is the same game compiled, and the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from ..arrays import check_flag, check_whole, short
from ..keys import for_gymnasium
from .tree import Tree

try:
    from minigrid.core.mission import MissionSpace
    from minigrid.core.roomgrid import RoomGrid
    from minigrid.core.world_object import Ball, Door, Goal, Key, WorldObj
    from minigrid.minigrid_env import MiniGridEnv
except ModuleNotFoundError as error:
    if error.name != "minigrid":
        raise
    raise ModuleNotFoundError(
        "the environment 'minigrid' needs the package minigrid: pip install 'minigrid>=3.2'", name="minigrid"
    ) from None

VIEW = 7
"""Width and height of what the agent sees, in cells."""
TILE = 9
"""Pixels along a cell: the largest tiles of which seven fit into the image."""
IMAGE = 64
MIN_ROOM_SIZE = 4
ROOMS = 5
"""Rooms of the default tree, which has SEA's time limit; larger trees have more time."""


def mission() -> str:
    return "find the keys, open the doors, and get to the green square"


class DoorKeyTreeEnv(RoomGrid):
    """Rooms on both sides of a hallway, each behind a door and most of them holding the key to another.

    The tree fixes which key opens which door; each episode draws the positions of the rooms, their doors, their
    contents and the agent anew. The first time in an episode that a door is opened, an object picked up or the goal
    reached gives a reward of 1; nothing else does. Reaching the goal ends the episode.

    The agent keeps a key until it has unlocked every door it fits, and then loses it; dropping does nothing. Under
    MiniGrid's own rules, by which a key can be dropped at any time and must be before the next is picked up, random
    exploration gets almost nowhere: ``keep_keys=False`` restores them.

    Observations are MiniGrid's (an encoded 7x7 view, the direction, the mission), so that its wrappers work;
    `PixelView` turns them into images. ``info["achievements"]`` holds the episode's achievements so far.

    Args:
        depth: length of the chain of rooms, from the unlocked one to the goal's.
        branching: doors that each key opens.
        tree: in place of those two, each room's parent: the earlier room whose key opens it, None for the first.
            The last room holds the goal.
        room_size: cells from wall to wall, both walls included.
        num_rows: rows of rooms, two rooms in each; by default as few as hold the tree.
        max_steps: steps until truncation; by default 30 * room_size**2, and with more than five rooms a fifth of that
            per room.
        keep_keys: whether a key is kept until it is used up, rather than dropped at will.

    Further arguments, such as ``render_mode``, are those of `MiniGridEnv`.
    """

    def __init__(
        self,
        depth: int = 5,
        branching: int = 1,
        tree: Sequence[int | None] | None = None,
        room_size: int = 5,
        num_rows: int | None = None,
        max_steps: int | None = None,
        keep_keys: bool = True,
        **kwargs: Any,
    ) -> None:
        self.tree = Tree.make(depth, branching, tree)
        room_size, num_rows, max_steps = check_layout(self.tree, room_size, num_rows, max_steps)
        self.keep_keys = check_flag("keep_keys", keep_keys)
        self.room_doors: list[Door] = []
        self.room_items: list[WorldObj] = []
        self._done = dict.fromkeys(self.tree.achievement_names, 0)
        super().__init__(
            mission_space=MissionSpace(mission_func=mission),
            room_size=room_size,
            num_rows=num_rows,
            num_cols=3,
            max_steps=max_steps,
            agent_view_size=VIEW,
            **kwargs,
        )

    @property
    def achievement_names(self) -> tuple[str, ...]:
        return self.tree.achievement_names

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """Return the keys of MiniGrid's own window, for `gymnasium.utils.play`."""
        return for_gymnasium("minigrid", [action.name for action in self.actions])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self._done = dict.fromkeys(self.achievement_names, 0)
        return obs, {**info, "achievements": dict(self._done)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(action, bool) or not self.action_space.contains(action):
            raise ValueError(f"an action is a whole number from 0 to {len(self.actions) - 1}, got {short(action)}")
        if not hasattr(self, "step_count"):  # MiniGrid's own, which reset() makes
            raise RuntimeError("the episode has not begun: call reset() before step()")
        if self.keep_keys and action == self.actions.drop:
            action = self.actions.done
        obs, _, terminated, truncated, info = super().step(action)
        reward = 0.0
        for name, true_now in zip(self.achievement_names, self._conditions(terminated), strict=True):
            if true_now and not self._done[name]:
                self._done[name] = 1
                reward += 1.0
        if self.keep_keys and self.carrying is not None and not self._is_useful(self.carrying):
            # A ball opens nothing, so it is gone as soon as it is collected.
            self.carrying = None
            obs = self.gen_obs()
        return obs, reward, terminated, truncated, {**info, "achievements": dict(self._done)}

    def _conditions(self, at_goal: bool) -> list[bool]:
        """Return whether each achievement's condition holds now; once true in an episode, it is achieved."""
        found: list[bool] = []
        for door, item in zip(self.room_doors, self.room_items, strict=True):
            found += [door.is_open, at_goal if item.type == "goal" else self.carrying is item]
        return found

    def _is_useful(self, item: WorldObj) -> bool:
        """Return whether there is a door left that it unlocks."""
        return item.type == "key" and any(door.is_locked and door.color == item.color for door in self.room_doors)

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        for row in range(self.num_rows - 1):
            self.remove_wall(1, row, 1)
        inside = (self.room_size - 2, self.room_size - 2)
        side_rooms = [(col, row) for row in range(self.num_rows) for col in (0, 2)]
        self.room_doors, self.room_items = [], []
        for room, (col, row) in enumerate(self._rand_subset(side_rooms, self.tree.rooms)):
            door, _ = self.add_door(
                col, row, 0 if col == 0 else 2, self.tree.door_colours[room], locked=self.tree.parents[room] is not None
            )
            item = make_item(*self.tree.items[room])
            left, top = self.get_room(col, row).top
            self.place_obj(item, (left + 1, top + 1), inside)
            self.room_doors.append(door)
            self.room_items.append(item)
        # The hallway spans all rows, so the agent is placed in it as a whole rather than in one of its rooms.
        MiniGridEnv.place_agent(self, (self.room_size, 1), (self.room_size - 2, height - 2))


def make_item(kind: str, colour: str) -> WorldObj:
    kinds: dict[str, type[WorldObj]] = {"key": Key, "ball": Ball, "goal": Goal}
    return kinds[kind](colour)  # type: ignore[call-arg]


def check_layout(tree: Tree, room_size: Any, num_rows: Any, max_steps: Any) -> tuple[int, int, int]:
    """Return room size, rows and step limit, with the defaults filled in."""
    room_size = check_whole("room_size", room_size, MIN_ROOM_SIZE, 100)
    rows_needed = (tree.rooms + 1) // 2
    num_rows = rows_needed if num_rows is None else check_whole("num_rows", num_rows, 1, 100)
    if num_rows < rows_needed:
        raise ValueError(f"{tree.rooms} rooms need {rows_needed} rows of two, got num_rows {num_rows}")
    enough = 30 * room_size**2 * max(ROOMS, tree.rooms) // ROOMS
    max_steps = enough if max_steps is None else check_whole("max_steps", max_steps, 1, 2**31 - 1)
    return room_size, num_rows, max_steps


class PixelView(gymnasium.ObservationWrapper[np.ndarray, int, Any]):
    """Show what the agent sees, as MiniGrid draws it: 7x7 tiles of 9 pixels in an image of 64x64.

    The last row and column of pixels are black, as they are in Crafter's images.
    """

    def __init__(self, env: gymnasium.Env[Any, int]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (IMAGE, IMAGE, 3), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        base: Any = self.unwrapped
        image = np.zeros((IMAGE, IMAGE, 3), np.uint8)
        image[: VIEW * TILE, : VIEW * TILE] = base.get_pov_render(TILE)
        return image


def pixel_env(**kwargs: Any) -> PixelView:
    """Return `DoorKeyTreeEnv` seen through `PixelView`: ``achieve/DoorKeyTree-v1``."""
    return PixelView(DoorKeyTreeEnv(**kwargs))
