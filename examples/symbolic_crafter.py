"""Crafter seen as 190 numbers, for agents that train on one CPU core within minutes.

    achieve train --preset quick --name symbols --env.options rules=examples.symbolic_crafter:RULES size=18 \
        --model.encoder examples.symbolic_crafter:SymbolEncoder

The game stays the same, only what the agent sees of it changes: where the nearest thing of each kind in view is, what
the player faces, the inventory, where the player looks, whether it sleeps, and the time of day. The numbers are written
over the image of 18 x 18 pixels; images of any other size, as for videos, are drawn as ever.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from achieve.config import ModelConfig
from achieve.envs.crafter import mod
from achieve.envs.crafter.data import ITEM_MAX, ITEMS, MATERIALS, OBJECT_TEXTURES
from achieve.envs.crafter.memory import array_at
from achieve.envs.crafter.render import direction, render, texture
from achieve.envs.crafter.typing import Canvas, View, World
from achieve.envs.crafter.world import entity, material_at, occupant
from achieve.nn.encoder import MLPEncoder

KINDS = ("outside", *MATERIALS, "cow", "zombie", "skeleton", "arrow", "plant", "plant-ripe")
NEAREST = ("seen", "left", "right", "up", "down", "adjacent", "distance")
SYMBOLS = (
    *(f"{kind} {what}" for kind in KINDS for what in NEAREST),
    *(f"faces {kind}" for kind in KINDS),
    *(f"{item} {what}" for item in ITEMS for what in ("count", "any")),
    "looks left", "looks right", "looks up", "looks down", "asleep", "daylight",
)  # fmt: skip
"""What each number means. They are bytes, 255 for yes."""

PIXELS = 18
"""Width of the images that are symbols."""
ABOUT, FACES = len(NEAREST), SYMBOLS.index("faces outside")
HAS, LOOKS, SIZE = SYMBOLS.index("health count"), SYMBOLS.index("looks left"), len(SYMBOLS)
KIND_OF_TEXTURE = np.array(
    [max((i for i, kind in enumerate(KINDS) if name and name.startswith(kind)), default=-1) for name in OBJECT_TEXTURES]
)
YES = 255


def symbols(world: World, view: View, canvas: Canvas, image: int) -> None:
    """Draw the image, which draws random numbers at night, and then write symbols over it."""
    render(world, view, canvas, image)  # inside its replacement, a rule's name means the original
    if view.width != PIXELS:
        return
    out = array_at(image, np.uint8, SIZE)
    out[:] = 0
    me = entity(world, 0)
    for dx in range(-(view.grid_x // 2), view.grid_x // 2 + 1):
        for dy in range(-(view.grid_y // 2), view.grid_y // 2 + 1):
            if dx == 0 and dy == 0:
                continue
            faced = dx == me.facing_x and dy == me.facing_y
            see(out, material_at(world, me.x + dx, me.y + dy), dx, dy, faced)
            index = occupant(world, me.x + dx, me.y + dy)
            if index >= 0:
                see(out, KIND_OF_TEXTURE[texture(world, index)], dx, dy, faced)
    for item in range(len(ITEMS)):
        out[HAS + 2 * item] = YES * world.inventory[item] // ITEM_MAX[item]
        out[HAS + 2 * item + 1] = YES * (world.inventory[item] > 0)
    out[LOOKS + direction(me.facing_x, me.facing_y)] = YES
    out[LOOKS + 4] = YES * (world.sleeping != 0)
    out[LOOKS + 5] = int(YES * min(max(world.daylight, 0.0), 1.0))


def see(out: np.ndarray, kind: int, dx: int, dy: int, faced: bool) -> None:
    """Note a thing of a kind, if it is the nearest so far."""
    about = kind * ABOUT
    distance = 18 * (abs(dx) + abs(dy))  # at most 252
    if faced:
        out[FACES + kind] = YES
    if out[about] == 0 or distance < out[about + 6]:
        out[about] = YES
        out[about + 1] = YES * (dx < 0)
        out[about + 2] = YES * (dx > 0)
        out[about + 3] = YES * (dy < 0)
        out[about + 4] = YES * (dy > 0)
        out[about + 5] = YES * (abs(dx) <= 1 and abs(dy) <= 1)
        out[about + 6] = distance


RULES = mod("symbols", render=symbols)


class SymbolEncoder(MLPEncoder):
    """Dense layers on the symbols."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__((SIZE,), config)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(1)[:, :SIZE])
