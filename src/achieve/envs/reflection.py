"""What a learner needs to know to show itself an environment's world in a mirror."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Reflection:
    """Tables that take an image and an action to those of the mirrored world.

    The image consists of T tiles of P pixels in a grid, and of whatever else is not mirrored. Tiles change places; what
    is on them does not change sides, as in a game that draws a tree the same way everywhere. Pictures that have a
    direction are exchanged: that of the player, whose tile is known, and others, which may be on any tile. The
    brightness of pictures varies; the player's tells how bright it is.

    The first of the R reflections leaves everything as it is.

    Attributes:
        actions: [R, A], what each action is in the mirror.
        corner: top and left of the grid in the image, in pixels.
        grid: its rows and columns.
        unit: height and width of a tile, in pixels.
        tiles: [R, T], the tile that comes to each place.
        centre: the player's tile.
        looks: [K, 3 P], all the player can look like.
        turned: [R, K], what it then looks like in the mirror.
        brightness: [K], how bright it is where the player looks like that, as a row of ``directed``.
        directed: [L, V, 3 P], the other pictures that have a direction.
        directed_turned: [R, V], what they are in the mirror.
        tolerance: mean squared distance up to which the player is recognised; images it is not in stay as they are.
    """

    actions: IntArray
    corner: tuple[int, int]
    grid: tuple[int, int]
    unit: tuple[int, int]
    tiles: IntArray
    centre: int
    looks: ByteArray
    turned: IntArray
    brightness: IntArray
    directed: ByteArray
    directed_turned: IntArray
    tolerance: float
