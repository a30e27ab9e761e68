"""What an environment consists of: the arrays behind a world, and how many of each there are.

Every environment owns one row of each array in `Worlds`; a `World` is those rows. All fields have
fixed sizes, so a saved state is a copy of the used parts (see `snapshot`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .data import ACHIEVEMENTS, CHUNK, ITEMS, NUM_KINDS, NUM_MATERIALS

# Where an environment stands in its life.
NEW, RUNNING, OVER = 0, 1, 2

VARIABLES = np.dtype(
    [
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
        ("status", np.int32),
        ("num_objects", np.int32),
        ("num_removed", np.int32),
        ("num_chunks", np.int32),
        ("sleeping", np.int32),
        ("hurt_health", np.int32),  # health after the player's last update: less of it wakes
        ("reward_health", np.int32),  # health at the last reward
        ("pos", np.int32),
        ("frame_pos", np.int32),
        ("inventory", np.int32, (len(ITEMS),)),
        ("achievements", np.int32, (len(ACHIEVEMENTS),)),
        ("unlocked", np.uint8, (len(ACHIEVEMENTS),)),
        ("key", np.uint32, (624,)),  # the generator
        ("frame_key", np.uint32, (624,)),  # the generator as it was before the last observation
    ],
    align=True,
)

OBJECT = np.dtype(
    [
        ("kind", np.uint8),
        ("removed", np.uint8),
        ("facing_x", np.int8),
        ("facing_y", np.int8),
        ("x", np.int32),
        ("y", np.int32),
        ("health", np.int32),  # the player's own is in the inventory
        ("cooldown", np.int32),  # zombies
        ("reload", np.int32),  # skeletons
        ("grown", np.int32),  # plants
        ("entered", np.int64),  # value of `entries` when it entered its chunk
    ],
    align=True,
)

CHUNK_RECORD = np.dtype(
    [
        ("materials", np.int32, (NUM_MATERIALS,)),  # cells of each material
        ("creatures", np.int32, (NUM_KINDS,)),  # objects of each kind
        ("touched", np.int32),
        ("sequence", np.int32),  # row k: the chunk that was the k-th to hold an object
    ],
    align=True,
)

FINISHED = np.dtype(
    [
        ("length", np.int64),
        ("episode_return", np.float64),
        ("achievements", np.int64, (len(ACHIEVEMENTS),)),
        ("inventory", np.int64, (len(ITEMS),)),
        ("player_pos", np.int64, (2,)),
    ],
    align=True,
)


class World(NamedTuple):
    """One environment."""

    var: Any
    objects: Any
    material: Any
    object_at: Any
    chunks: Any


class Worlds(NamedTuple):
    """All environments of a batch: an additional first axis everywhere."""

    var: np.ndarray
    objects: np.ndarray
    material: np.ndarray
    object_at: np.ndarray
    chunks: np.ndarray


class Outputs(NamedTuple):
    """Where results go. The last three may have zero rows when nobody wants them."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    finished: np.ndarray
    semantic: np.ndarray  # after the step (before a reset, for those that ended)
    final_obs: np.ndarray
    first_semantic: np.ndarray  # after the reset that followed an end


class Settings(NamedTuple):
    """What a batch was made for, as plain numbers."""

    length: int  # 0: no limit
    reach: int  # objects closer than this to the player are updated
    autoreset: int


def chunk_grid(area: tuple[int, int]) -> tuple[int, int]:
    return -(-area[0] // CHUNK), -(-area[1] // CHUNK)


def object_capacity(area: tuple[int, int]) -> int:
    """Slots that can never run out.

    Living objects have a cell each; within one step the living can at most double (every skeleton
    shoots) before removed ones are cleared away, and balancing adds at most three per chunk.
    """
    chunks = chunk_grid(area)
    return 2 * area[0] * area[1] + 3 * chunks[0] * chunks[1] + 2


def allocate(num_envs: int, area: tuple[int, int]) -> Worlds:
    chunks = chunk_grid(area)
    return Worlds(
        var=np.zeros(num_envs, VARIABLES),
        objects=np.zeros((num_envs, object_capacity(area)), OBJECT),
        material=np.zeros((num_envs, *area), np.uint8),
        object_at=np.zeros((num_envs, *area), np.int32),
        chunks=np.zeros((num_envs, chunks[0] * chunks[1]), CHUNK_RECORD),
    )
