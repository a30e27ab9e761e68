"""Every tile that can be seen, drawn once by MiniGrid itself."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.world_object import Door, Goal, Wall, WorldObj

from .engine import CLOSED, LOCKED, OPEN, num_codes
from .env import TILE, make_item
from .tree import Tree

_UP = 3  # in its own view the agent looks up


@lru_cache(maxsize=16)
def tile_table(tree: Tree) -> np.ndarray:
    """Return uint8[tiles, 9, 27]: each cell code in view, a cell out of sight, the agent with each item to carry."""
    carried = [make_item(*item) for item in tree.items[:-1]]
    doors = [
        Door(colour, is_open=state == OPEN, is_locked=state == LOCKED)
        for colour in tree.door_colours
        for state in (OPEN, CLOSED, LOCKED)
    ]
    cells: list[WorldObj | None] = [None, Wall(), Goal(), *doors, *carried]
    assert len(cells) == num_codes(tree.rooms)
    drawn = [Grid.render_tile(cell, highlight=True, tile_size=TILE) for cell in cells]
    drawn.append(Grid.render_tile(None, tile_size=TILE))
    drawn += [Grid.render_tile(thing, _UP, True, TILE) for thing in (None, *carried)]
    # MiniGrid averages pixels to fractions, which it truncates when it puts a tile into an image.
    table = np.stack(drawn).astype(np.uint8).reshape(len(drawn), TILE, TILE * 3)
    table.setflags(write=False)
    return table
