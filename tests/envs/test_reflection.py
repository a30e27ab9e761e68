"""Crafter's mirror against the game: worlds mirrored in the engine's own arrays, and drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from achieve.algo.reflection import Tables, make_tables, reflect
from achieve.envs import make_vec
from achieve.envs.crafter.data import (
    ACTIONS,
    ARROW,
    DO,
    GRASS,
    HEALTH,
    MOVE_DOWN,
    MOVE_LEFT,
    MOVE_RIGHT,
    MOVE_UP,
    NOOP,
    PATH,
    SAND,
    SLEEP,
    WATER,
)
from achieve.envs.crafter.reflection import FLIPS, make_reflection
from achieve.envs.crafter.vec import CrafterVecEnv
from tests.envs.rules import RULES

ENVS = 6
MIRRORS = {"columns": 1, "rows": 2, "both": 3}


@pytest.fixture(scope="module")
def tables() -> Tables:
    reflection = make_reflection((9, 9), (64, 64))
    assert reflection is not None
    return make_tables(reflection, torch.device("cpu"))


def played(steps: int, *, seed: int = 0) -> CrafterVecEnv:
    """Games some steps on, whose players have walked into things, with arrows of all directions put around them."""
    env = CrafterVecEnv(ENVS, seed=seed, threads=1)
    env.reset()
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        env.step(rng.choice([MOVE_LEFT, MOVE_RIGHT, MOVE_UP, MOVE_DOWN, DO], ENVS))
    return env


def add_arrows(env: CrafterVecEnv, materials: tuple[int, ...] = (GRASS, PATH, SAND, WATER)) -> int:
    """Put arrows on free cells in view; returns how many."""
    worlds, added = env._batch.worlds, 0
    for number in range(ENVS):
        var, me = worlds.var[number], worlds.objects[number, 0]
        for dx, dy, facing in ((-3, 1, (1, 0)), (2, -2, (-1, 0)), (4, 3, (0, 1)), (-1, -3, (0, -1)), (1, 0, (0, -1))):
            x, y = me["x"] + dx, me["y"] + dy
            if not (0 <= x < 64 and 0 <= y < 64) or worlds.object_at[number, x, y]:
                continue
            worlds.material[number, x, y] = materials[added % len(materials)]
            place = int(var["num_objects"])
            arrow = worlds.objects[number, place]
            arrow["kind"], arrow["removed"], arrow["x"], arrow["y"] = ARROW, 0, x, y
            arrow["facing_x"], arrow["facing_y"] = facing
            worlds.object_at[number, x, y] = place + 1
            worlds.var["num_objects"][number] += 1
            added += 1
    return added


def mirror(env: CrafterVecEnv, which: int) -> None:
    """Turn the worlds around."""
    columns, rows = FLIPS[which]
    worlds = env._batch.worlds
    for flipped, axis, coordinate in ((columns, 1, "x"), (rows, 2, "y")):
        if flipped:
            for name in ("material", "object_at"):
                part = getattr(worlds, name)
                part[:] = np.flip(part, axis).copy()
            worlds.objects[coordinate] = 63 - worlds.objects[coordinate]
            worlds.objects[f"facing_{coordinate}"] *= -1


def drawn(env: CrafterVecEnv) -> torch.Tensor:
    return torch.from_numpy(np.stack([env._batch.draw(number) for number in range(ENVS)]))


def turned(env: CrafterVecEnv, name: str, tables: Tables) -> tuple[torch.Tensor, torch.Tensor]:
    """What reflection makes of the images, and the images of the mirrored worlds."""
    which = torch.full((ENVS,), MIRRORS[name])
    found, made = reflect(drawn(env), which, tables)
    assert torch.equal(made, which), "the player is recognised in every image"
    mirror(env, MIRRORS[name])
    return found, drawn(env)


@pytest.mark.parametrize("name", MIRRORS)
@pytest.mark.parametrize("steps", [0, 25, 120])
def test_by_day_it_is_the_image_of_the_mirrored_world(name: str, steps: int, tables: Tables) -> None:
    env = played(steps)
    assert add_arrows(env) > 2 * ENVS and (env._batch.worlds.var["daylight"] >= 0.5).all()
    before = drawn(env)
    found, wanted = turned(env, name, tables)
    assert torch.equal(found, wanted)
    assert (found != before).flatten(1).any(1).all()
    facing = env._batch.worlds.objects[:, 0][["facing_x", "facing_y"]]
    assert steps == 0 or len(np.unique(facing)) > 2, "players look in different directions"


@pytest.mark.parametrize("name", MIRRORS)
def test_asleep_by_day(name: str, tables: Tables) -> None:
    env = played(25)
    add_arrows(env)
    env._batch.worlds.var["sleeping"] = 1
    found, wanted = turned(env, name, tables)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", MIRRORS)
@pytest.mark.parametrize("daylight", [0.45, 0.2, 0.0])
@pytest.mark.parametrize("sleeping", [0, 1])
def test_at_night_it_is_the_mirrored_world_but_for_the_noise(
    name: str, daylight: float, sleeping: int, tables: Tables
) -> None:
    env = played(40)
    env._batch.worlds.var["daylight"], env._batch.worlds.var["sleeping"] = daylight, sleeping
    found, wanted = turned(env, name, tables)
    assert (player(found) - player(wanted)).abs().max() <= 8, "the player looks where it looks in the mirrored world"
    tiles = [images[:, :49, :63].float().view(ENVS, 7, 7, 9, 7, 3).mean((2, 4, 5)) for images in (found, wanted)]
    assert (tiles[0] - tiles[1]).abs().mean() < 4, "every tile is in its place, as bright as it should be"
    assert torch.equal(found[:, 49:], wanted[:, 49:]), "the inventory stays"


def player(images: torch.Tensor) -> torch.Tensor:
    """The tile in the middle."""
    return images[:, 21:28, 28:35].int()


def test_the_player_is_recognised_at_all_hours(tables: Tables) -> None:
    """Through a day and a night, awake and asleep: its direction is always found."""
    env = CrafterVecEnv(ENVS, seed=3, threads=1)
    observation, _ = env.reset()
    rng = np.random.default_rng(0)
    checked = 0
    for step in range(300):
        actions = rng.choice([MOVE_LEFT, MOVE_RIGHT, MOVE_UP, MOVE_DOWN, SLEEP], ENVS, p=[0.24] * 4 + [0.04])
        observation, *_ = env.step(actions)
        if step % 5:
            continue
        env._batch.worlds.var["inventory"][:, HEALTH] = 9  # nobody dies
        images = torch.from_numpy(observation)
        which = torch.ones(ENVS, dtype=torch.int64)
        turned, made = reflect(images, which, tables)
        assert torch.equal(made, which)
        same = (player(turned) == player(images)).flatten(1).all(1)
        me, var = env._batch.worlds.objects[:, 0], env._batch.worlds.var
        changes = (me["facing_x"] != 0) & (var["sleeping"] == 0)
        assert (~same.numpy() == changes).all(), f"step {step}"
        checked += int(changes.sum())
    assert checked > 50


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "both" else [pytest.mark.long]) for name in MIRRORS]
)
def test_mirrored_actions_do_the_same_in_the_mirrored_world(name: str) -> None:
    """What the player does to itself and around it; creatures draw their moves in another order of places."""
    reflection = make_reflection((9, 9), (64, 64))
    assert reflection is not None
    names = reflection.actions[MIRRORS[name]]
    for action in range(len(ACTIONS)):
        env, other = (played(60, seed=action) for _ in range(2))
        mirror(other, MIRRORS[name])
        for one in (env, other):
            one._batch.worlds.var["inventory"][:, 4:] = 5  # enough for every recipe
        env.step(np.full(ENVS, action))
        other.step(np.full(ENVS, names[action]))
        mirror(other, MIRRORS[name])
        mine, theirs = (one._batch.worlds.objects[:, 0] for one in (env, other))
        for field in ("x", "y", "facing_x", "facing_y"):
            np.testing.assert_array_equal(mine[field], theirs[field], f"{ACTIONS[action]}: {field}")
        items = [np.delete(one._batch.worlds.var["inventory"], HEALTH, 1) for one in (env, other)]
        np.testing.assert_array_equal(*items, ACTIONS[action])
        x, y = (mine[c] + mine[f"facing_{c}"] for c in ("x", "y"))
        inside = (x >= 0) & (x < 64) & (y >= 0) & (y < 64)
        faced = [one._batch.worlds.material[np.arange(ENVS)[inside], x[inside], y[inside]] for one in (env, other)]
        np.testing.assert_array_equal(*faced, ACTIONS[action])


def test_twice_in_the_mirror_is_as_before(tables: Tables) -> None:
    env = played(25)
    add_arrows(env)
    before = drawn(env)
    for which in range(4):
        how = torch.full((ENVS,), which)
        once, _ = reflect(before, how, tables)
        assert torch.equal(reflect(once, how, tables)[0], before)
        assert which or torch.equal(once, before)
        assert torch.equal(once[:, 49:], before[:, 49:]), "the inventory stays"


def test_an_image_without_a_player_stays_as_it_is(tables: Tables) -> None:
    images = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[1] = drawn(played(5))[0]
    found, made = reflect(images, torch.tensor([1, 2, 3]), tables)
    assert made.tolist() == [0, 2, 0]
    assert torch.equal(found[[0, 2]], images[[0, 2]]) and not torch.equal(found[1], images[1])


def test_actions_in_the_mirror(tables: Tables) -> None:
    kept, columns, rows, both = tables.actions.tolist()
    assert kept == list(range(len(ACTIONS)))
    assert columns[MOVE_LEFT] == MOVE_RIGHT and columns[MOVE_RIGHT] == MOVE_LEFT and columns[MOVE_UP] == MOVE_UP
    assert rows[MOVE_UP] == MOVE_DOWN and rows[MOVE_DOWN] == MOVE_UP and rows[MOVE_LEFT] == MOVE_LEFT
    assert [columns[a] for a in rows] == both
    assert all(names[a] == a for names in (columns, rows, both) for a in (NOOP, *range(DO, len(ACTIONS))))


def test_who_says_what_it_looks_like() -> None:
    assert CrafterVecEnv(1).reflection is not None
    assert CrafterVecEnv(1, size=(96, 96)).reflection is not None
    assert CrafterVecEnv(1, view=(8, 8)).reflection is None, "the player is not in the middle"
    assert CrafterVecEnv(1, rules=RULES).reflection is None, "nobody knows of other rules"
    assert make_vec("minigrid", 1).reflection is None
