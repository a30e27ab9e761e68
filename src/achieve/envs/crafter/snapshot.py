"""The body of a saved state: one batch of worlds as bytes, and the checks it must pass.

One block per environment: the variables, the objects, the materials and the order of the chunks; everything else
follows from them. A state is checked completely before anything is changed.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ..arrays import StateError, require
from .batch import Batch
from .data import ARROW, CHUNK, NUM_KINDS, NUM_MATERIALS, PLAYER
from .daylight import daylight_table
from .random import temper
from .state import BOUND, NEW, OBJECT, OVER, WORLD, Worlds, allocate, bind

KIND, VERSION = "crafter", 2
_BLOCK = struct.Struct("<II")
MAX_STEP = 10_000_000
"""No saved episode may be longer, because the time of day is tabulated up to the step."""


def made_for(batch: Batch) -> dict[str, Any]:
    """Return what must be equal where a state is loaded: the configuration and the rules."""
    config = batch.config
    return {
        "area": list(config.area),
        "view": list(config.view),
        "size": list(config.size),
        "length": config.length,
        "num_envs": batch.num_envs,
        "rules": batch.program.identity,
    }


def save(batch: Batch) -> bytes:
    parts = []
    worlds = batch.worlds
    for i in range(batch.num_envs):
        objects, chunks = (int(worlds.var[name][i]) for name in ("num_objects", "num_chunks"))
        parts.append(_BLOCK.pack(objects, chunks))
        parts.append(_without_addresses(worlds.var[i : i + 1]).tobytes())
        parts.append(worlds.objects[i, :objects].tobytes())
        parts.append(worlds.material[i].tobytes())
        parts.append(worlds.chunks["sequence"][i, :chunks].tobytes())
    return b"".join(parts)


def _without_addresses(var: np.ndarray) -> np.ndarray:
    """Return a copy without addresses, and without what follows from the rest."""
    clean = var.copy()
    for name in (*BOUND, "ready"):
        clean[name] = 0
    return clean


def read(batch: Batch, body: bytes) -> Worlds:
    """Return the saved worlds, complete and checked; a `StateError` for a state no game can reach."""
    new = allocate(batch.num_envs, batch.config.area)
    position = 0
    for i in range(batch.num_envs):
        position = _read_block(new, i, body, position)
    if position != len(body):
        raise StateError(f"the saved state has {len(body) - position} bytes too many")
    new.var["ready"] = temper(new.var["key"])
    for i in range(batch.num_envs):
        _check(new, i)
        _derive(new, i)
    new.var["daylight"] = daylight_table(int(new.var["step"].max()))[new.var["step"]]
    return new


def restore(batch: Batch, worlds: Worlds) -> None:
    """Continue the batch with these worlds; the caller holds its lock."""
    for old, fresh in zip(batch.worlds, worlds, strict=True):
        old[:] = fresh
    bind(batch.worlds)
    batch.longest = int(batch.worlds.var["step"].max())


def _read_block(worlds: Worlds, i: int, body: bytes, position: int) -> int:
    def take(dtype: Any, count: int) -> np.ndarray:
        nonlocal position
        size = np.dtype(dtype).itemsize * count
        if position + size > len(body):
            raise StateError("the saved state is too short")
        values = np.frombuffer(body, dtype, count, position)
        position += size
        return values

    objects, chunks = (int(n) for n in take("<u4", 2))
    cells = worlds.material[i].size
    if objects > cells or chunks > worlds.chunks.shape[1]:
        raise StateError(f"the saved state has {objects} objects in {chunks} chunks: too many")
    worlds.var[i] = _without_addresses(take(WORLD, 1))[0]
    worlds.objects[i, :objects] = take(OBJECT, objects)
    worlds.material[i] = take(np.uint8, cells).reshape(worlds.material.shape[1:])
    worlds.chunks["sequence"][i, :chunks] = take(np.int64, chunks)
    worlds.var["num_objects"][i] = objects
    worlds.var["num_chunks"][i] = chunks
    return position


def _within(values: np.ndarray, bound: int) -> np.ndarray:
    return (values > -bound) & (values < bound)  # the smallest int64 has no absolute value


def _check(worlds: Worlds, i: int) -> None:
    """Check everything that compiled code takes for granted."""
    var = worlds.var[i]
    width, height = worlds.material.shape[1:]
    count, chunks = int(var["num_objects"]), int(var["num_chunks"])
    for name in ("hunger", "thirst", "fatigue", "recover", "episode_return"):
        require(np.isfinite(var[name]), name)
    require(NEW <= var["status"] <= OVER, "status")
    require(0 <= var["step"] <= MAX_STEP, "step")
    require(0 <= var["episode"] < 2**62, "episode")
    require(var["num_removed"] == 0, "removed objects")
    require(var["sleeping"] in (0, 1), "sleeping")
    for name in ("pos", "frame_pos"):
        require(0 <= var[name] <= len(var["key"]), "random generator")
    require(_within(var["inventory"], 2**20), "inventory")
    require(_within(var["achievements"], 2**30), "achievements")
    require((var["unlocked"] >= 0) & (var["unlocked"] <= 1), "unlocked achievements")
    if var["status"] == NEW:
        require(count == 0 and chunks == 0, "objects before the first reset")
        return
    require((worlds.material[i] >= 1) & (worlds.material[i] < NUM_MATERIALS), "material")
    objects = worlds.objects[i, :count]
    kinds, xs, ys = objects["kind"], objects["x"], objects["y"]
    require(count >= 1 and kinds[0] == PLAYER and (kinds[1:] > PLAYER).all(), "player")
    require(kinds < NUM_KINDS, "kind of object")
    require(objects["removed"] == 0, "removed objects")
    require((xs >= 0) & (xs < width) & (ys >= 0) & (ys < height), "position")
    require(len(np.unique(xs.astype(np.int64) * height + ys)) == count, "shared cell")
    for name in ("facing_x", "facing_y"):
        require(_within(objects[name], 2), "direction")
    facing = np.abs(objects["facing_x"]) + np.abs(objects["facing_y"])
    require(facing[(kinds == PLAYER) | (kinds == ARROW)] == 1, "direction")
    require(facing <= 1, "direction")
    require((objects["entered"] >= 0) & (objects["entered"] < var["entries"]), "order of objects")
    require(len(np.unique(objects["entered"])) == count, "order of objects")
    for name in ("health", "cooldown", "reload", "grown"):
        require(_within(objects[name], 2**30), name)
    sequence = worlds.chunks["sequence"][i, :chunks]
    require((sequence >= 0) & (sequence < worlds.chunks.shape[1]), "chunk")
    require(len(np.unique(sequence)) == chunks, "order of chunks")
    rows = -(-height // CHUNK)
    require(np.isin(xs // CHUNK * rows + ys // CHUNK, sequence), "order of chunks")


def _derive(worlds: Worlds, i: int) -> None:
    """Fill in what follows from the saved parts."""
    height = worlds.material.shape[2]
    rows = -(-height // CHUNK)
    count, chunks = int(worlds.var["num_objects"][i]), int(worlds.var["num_chunks"][i])
    objects = worlds.objects[i, :count]
    worlds.object_at[i, objects["x"], objects["y"]] = np.arange(1, count + 1)
    table = worlds.chunks[i]
    table["touched"][table["sequence"][:chunks]] = 1
    homes = objects["x"] // CHUNK * rows + objects["y"] // CHUNK
    np.add.at(table["creatures"], (homes, objects["kind"]), 1)
    if worlds.var["status"][i] != NEW:
        xs, ys = np.indices(worlds.material.shape[1:])
        np.add.at(table["materials"], (xs // CHUNK * rows + ys // CHUNK, worlds.material[i]), 1)
