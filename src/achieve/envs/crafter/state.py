"""What an environment consists of: the records and arrays behind a world.

Every environment owns one row of each array in `Worlds`. Rules get the row's `WORLD` record, which holds the addresses
of the other parts; the functions of `world` access them. All sizes are fixed, so a saved state is a copy of the used
parts (see `snapshot`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .data import ACHIEVEMENTS, CHUNK, ITEMS, NUM_KINDS, NUM_MATERIALS
from .random import WORDS

# An environment's status.
NEW, RUNNING, OVER = 0, 1, 2

WORLD = np.dtype(
    [
        # Addresses of the larger parts; see `bind`.
        ("objects", np.int64),  # OBJECT[capacity]
        ("material", np.int64),  # uint8[width, height]
        ("object_at", np.int64),  # int32[width, height]: index + 1, or 0
        ("chunks", np.int64),  # CHUNK_RECORD[...]
        ("width", np.int64),
        ("height", np.int64),
        ("capacity", np.int64),
        ("chunk_rows", np.int64),  # chunks along the height
        ("chunk_count", np.int64),
        ("seed_hash", np.int64),  # Python's hash of the environment's seed
        ("episode", np.int64),
        ("step", np.int64),
        ("entries", np.int64),  # times an object entered a chunk; orders objects in a chunk
        ("daylight", np.float64),
        ("episode_return", np.float64),
        ("hunger", np.float64),
        ("thirst", np.float64),
        ("fatigue", np.float64),
        ("recover", np.float64),
        ("status", np.int64),
        ("num_objects", np.int64),
        ("num_removed", np.int64),
        ("num_chunks", np.int64),
        ("sleeping", np.int64),
        ("hurt_health", np.int64),  # health after the player's last update: less of it wakes
        ("reward_health", np.int64),  # health at the last reward
        ("pos", np.int64),
        ("frame_pos", np.int64),
        ("inventory", np.int64, (len(ITEMS),)),
        ("achievements", np.int64, (len(ACHIEVEMENTS),)),
        ("unlocked", np.int64, (len(ACHIEVEMENTS),)),
        ("key", np.uint32, (WORDS,)),  # the generator, see `random`
        ("ready", np.uint32, (WORDS,)),
        ("frame_key", np.uint32, (WORDS,)),  # the generator as it was before the last observation
    ],
    align=True,
)

BOUND = ("objects", "material", "object_at", "chunks", "width", "height", "capacity", "chunk_rows", "chunk_count")
"""The fields that `bind` fills in."""

assert WORLD.fields is not None
INVENTORY_OFFSET = WORLD.fields["inventory"][1]

OBJECT = np.dtype(
    [
        ("kind", np.int64),
        ("removed", np.int64),
        ("facing_x", np.int64),
        ("facing_y", np.int64),
        ("x", np.int64),
        ("y", np.int64),
        ("health", np.int64),  # the player's own is in the inventory
        ("cooldown", np.int64),  # zombies
        ("reload", np.int64),  # skeletons
        ("grown", np.int64),  # plants
        ("entered", np.int64),  # value of `entries` when it entered its chunk
    ],
    align=True,
)

CHUNK_RECORD = np.dtype(
    [
        ("materials", np.int64, (NUM_MATERIALS,)),  # cells of each material
        ("creatures", np.int64, (NUM_KINDS,)),  # objects of each kind
        ("touched", np.int64),
        ("sequence", np.int64),  # row k: the chunk that was the k-th to hold an object
    ],
    align=True,
)

RESULT = np.dtype(
    [
        ("reward", np.float64),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("player_pos", np.int64, (2,)),
        # Of the episode that ended in this step, if one did:
        ("length", np.int64),
        ("episode_return", np.float64),
        ("achievements", np.int64, (len(ACHIEVEMENTS),)),
        ("inventory", np.int64, (len(ITEMS),)),
    ],
    align=True,
)

SETTINGS = np.dtype(
    [
        ("length", np.int64),  # 0: no limit
        ("reach", np.int64),  # objects closer than this to the player are updated
        ("autoreset", np.int64),
        ("daylight", np.int64),  # float64[steps]
        # Arrays over all environments, or 0 if nobody wants them:
        ("semantic", np.int64),  # after the step (before a reset, for those that ended)
        ("first_semantic", np.int64),  # after the reset that followed an end
        ("final_obs", np.int64),  # the last observation of those that ended
    ],
    align=True,
)

CONTEXT = np.dtype(
    [
        # Addresses of records (of the first, for the two that there is one of per environment).
        (name, np.int64)
        for name in ("worlds", "results", "settings", "terrain", "layout", "survey", "canvas", "job")
    ],
    align=True,
)
"""Everything a thread needs to run environments."""


class Worlds(NamedTuple):
    """All environments of a batch, one row each."""

    var: np.ndarray  # WORLD[n]
    objects: np.ndarray  # OBJECT[n, capacity]
    material: np.ndarray  # uint8[n, width, height]
    object_at: np.ndarray  # int32[n, width, height]
    chunks: np.ndarray  # CHUNK_RECORD[n, chunks]


def chunk_grid(area: tuple[int, int]) -> tuple[int, int]:
    return -(-area[0] // CHUNK), -(-area[1] // CHUNK)


def object_capacity(area: tuple[int, int]) -> int:
    """Return a number of slots that can never run out.

    Living objects have a cell each; within one step their number can at most double (every skeleton shoots) before
    removed ones are cleared away, and balancing adds at most three per chunk.
    """
    chunks = chunk_grid(area)
    return 2 * area[0] * area[1] + 3 * chunks[0] * chunks[1] + 2


def allocate(num_envs: int, area: tuple[int, int]) -> Worlds:
    chunks = chunk_grid(area)
    worlds = Worlds(
        var=np.zeros(num_envs, WORLD),
        objects=np.zeros((num_envs, object_capacity(area)), OBJECT),
        material=np.zeros((num_envs, *area), np.uint8),
        object_at=np.zeros((num_envs, *area), np.int32),
        chunks=np.zeros((num_envs, chunks[0] * chunks[1]), CHUNK_RECORD),
    )
    bind(worlds)
    return worlds


def bind(worlds: Worlds) -> None:
    """Write into each world's record where its other parts are."""
    var = worlds.var
    for name in ("objects", "material", "object_at", "chunks"):
        part = getattr(worlds, name)
        var[name] = part.ctypes.data + part.strides[0] * np.arange(len(var))
    var["width"], var["height"] = worlds.material.shape[1:]
    var["capacity"] = worlds.objects.shape[1]
    var["chunk_rows"] = -(-worlds.material.shape[2] // CHUNK)
    var["chunk_count"] = worlds.chunks.shape[1]
