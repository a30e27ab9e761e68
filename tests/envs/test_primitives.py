"""The parts the game is made of, each against the library it reproduces, to the bit."""

from __future__ import annotations

import crafter
import numpy as np
import opensimplex
import pytest
from PIL import Image, ImageEnhance

from achieve.envs.crafter import data, random, render, simplex, textures
from achieve.envs.crafter.batch import Batch, Config
from achieve.envs.crafter.compiler import Program
from achieve.envs.crafter.daylight import daylight_table
from achieve.envs.crafter.state import WORLD
from achieve.envs.crafter.terrain import NOISE_DEPTH, NUM_NOISES, noise_point

SEEDS = (0, 1, 42, 2**31 - 2, 2**32 - 1)


@pytest.fixture(scope="module")
def compiled():
    return Program(callable=True).functions


def generator(compiled, seed: int) -> np.ndarray:
    worlds = np.zeros(1, WORLD)
    compiled["seed_generator"](worlds[0], seed)
    return worlds


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_is_that_of_random_state(compiled, seed):
    worlds, reference = generator(compiled, seed), np.random.RandomState(seed)
    ours = [compiled["uniform"](worlds[0]) for _ in range(3000)]
    assert ours == [reference.uniform() for _ in range(3000)]


@pytest.mark.parametrize("seed", SEEDS)
def test_randint_is_that_of_random_state(compiled, seed):
    worlds, reference = generator(compiled, seed), np.random.RandomState(seed)
    highs = [1, 2, 3, 4, 7, 100, 2**20 + 1, 2**31 - 1] * 200
    ours = [int(compiled["randint"](worlds[0], high)) for high in highs]
    assert ours == [reference.randint(0, high) for high in highs]


def test_words_in_bulk_are_the_words_one_by_one(compiled):
    worlds, reference = generator(compiled, 5), np.random.RandomState(5)
    for count in (1, 623, 624, 625, 2, 5000):
        words = np.zeros(count, np.uint32)
        compiled["fill_words"](worlds[0], words)
        assert (words == reference.randint(0, 2**32, count, np.uint32)).all()


@pytest.mark.parametrize("seed", [0, 1, -1, -2, 7, 2**31, 2**61 - 2, 2**61 - 1, 2**64, -(2**70)])
def test_world_seeds_are_pythons_tuple_hash(compiled, seed):
    for episode in (1, 2, 3, 1000, 2**40):
        ours = compiled["world_seed"](hash(seed), episode)
        assert ours == hash((seed, episode)) % (2**31 - 1)


@pytest.mark.parametrize("seed", [0, 3, 12345, 2**31 - 2])
def test_noise_is_that_of_opensimplex(compiled, seed):
    perm, source = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
    compiled["permutation"](seed, perm, source)
    reference = opensimplex.OpenSimplex(seed)
    assert perm.tolist() == reference._perm.tolist()
    rng = np.random.default_rng(seed)
    points = np.concatenate(
        [
            rng.uniform(-30, 30, (4000, 3)),
            rng.integers(-40, 40, (1000, 3)) / rng.integers(1, 7, (1000, 1)),
            rng.integers(-9, 9, (500, 3)),
        ]
    )
    room = np.zeros((simplex.MAX_CORNERS, 3), np.int64), np.zeros((simplex.MAX_CORNERS, 4))
    for x, y, z in points:
        assert compiled["noise3"](perm, x, y, z, *room) == reference.noise3(x, y, z)


def test_noise_tables_hold_what_direct_evaluation_gives(compiled):
    """Every kind of noise the terrain reads, for every cell, from tables and without."""
    batch = Batch(Config.make((24, 17), (9, 9), (64, 64), True, 0), 1, rules=None, autoreset=True)
    survey, terrain = batch.workspace.survey, batch.terrain.record
    compiled["permutation"](99, survey[0]["perm"], survey[0]["source"])
    compiled["look_up_gradients"](terrain[0], survey[0])
    direct = terrain.copy()
    direct["blocks"] = 0
    reference = opensimplex.OpenSimplex(99)
    for kind in range(NUM_NOISES):
        depth = int(NOISE_DEPTH[kind])
        for x in range(24):
            for y in range(17):
                value = compiled["noise"](terrain[0], survey[0], kind, x, y)
                assert value == compiled["noise"](direct[0], survey[0], kind, x, y)
                px, py = noise_point(kind, x, y)
                assert value == reference.noise3(px, py, depth)


@pytest.mark.parametrize("area", [(64, 64), (31, 50), (9, 9)])
def test_noise_stays_within_the_bound_that_world_making_relies_on(area):
    batch = Batch(Config.make(area, (9, 9), (64, 64), True, 0), 1, rules=None, autoreset=True)
    weights = batch.terrain.parts[0]["weights"]
    largest = np.abs(weights[..., 1:] @ simplex.GRADIENTS.T).max(-1)
    assert (weights[..., 0] * largest).sum(-1).max() / simplex.NORM < 1.5


def always(water, mountain, most):
    return True


@pytest.mark.long
def test_worlds_do_not_depend_on_the_short_cut(compiled):
    """Leaving out the start area's noise where it cannot matter changes no cell."""
    plain = Program("plain", {"start_matters": always}, callable=True).functions
    batch = Batch(Config.make(64, 9, 64, True, 0), 2, rules=None, autoreset=True)
    survey, terrain = batch.workspace.survey[0], batch.terrain.record[0]
    for seed in range(400):
        for i, functions in enumerate((compiled, plain)):
            world = batch.worlds.var[i]
            functions["seed_generator"](world, seed)
            functions["clear_world"](world)
            functions["worldgen"](world, terrain, survey)
        material, var = batch.worlds.material, batch.worlds.var
        assert (material[0] == material[1]).all()
        assert (var["key"][0] == var["key"][1]).all() and var["pos"][0] == var["pos"][1]


def test_daylight_is_that_of_the_original():
    table = daylight_table(12_000)
    env = crafter.Env(seed=0)
    for step in range(12_001):
        env._step = step
        env._update_time()
        assert table[step] == env._world.daylight


@pytest.mark.parametrize("width,height", [(63, 49), (9, 7), (200, 31), (512, 398)])
def test_vignette_is_that_of_the_original(width, height):
    local_view = crafter.Env(seed=0)._local_view
    expected = local_view._vignette((width, height, 3), 0.5)
    assert (textures.vignette(width, height) == expected).all()


def test_grey_is_pillows_for_every_colour():
    for red in range(0, 256, 15):
        green, blue = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
        colours = np.stack([np.full_like(green, red), green, blue], -1)
        expected = np.array(Image.fromarray(colours.astype(np.uint8)).convert("L"))
        assert (render.luma(red, green, blue) == expected).all()


def test_desaturation_is_pillows_for_every_pair():
    grey, colour = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    images = [Image.fromarray(values.astype(np.uint8)) for values in (grey, colour)]
    assert (render.saturate(grey, colour) == np.array(Image.blend(*images, 0.4))).all()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 300, 3))
    expected = np.array(ImageEnhance.Color(Image.fromarray(pixels.astype(np.uint8))).enhance(0.4))
    levels = render.luma(*np.moveaxis(pixels, -1, 0))[..., None]
    assert (render.saturate(levels, pixels) == expected).all()


def test_generator_words_survive_being_read():
    key = np.arange(624, dtype=np.uint32)
    random.temper(key)
    assert (key == np.arange(624)).all()


def test_tables_say_what_crafters_data_says():
    constants = crafter.constants
    assert list(data.ACTIONS) == constants.actions
    assert list(data.MATERIALS) == constants.materials
    assert list(data.WALKABLE) == constants.walkable
    assert list(data.ACHIEVEMENTS) == constants.achievements
    assert list(data.ITEMS) == list(constants.items)
    assert data.ITEM_MAX.tolist() == [item["max"] for item in constants.items.values()]
    assert data.ITEM_INITIAL.tolist() == [item["initial"] for item in constants.items.values()]
    assert constants.collect == data.COLLECT
    assert constants.place == data.PLACE
    assert constants.make == data.MAKE
    assert list(data.PLACE) == [a[6:] for a in data.ACTIONS if a.startswith("place_")]
    assert list(data.MAKE) == [a[5:] for a in data.ACTIONS if a.startswith("make_")]
