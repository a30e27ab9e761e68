"""Changed rules: compiled like the original, and they do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from achieve.envs import make_vec
from achieve.envs.crafter import StateError, mod
from achieve.envs.crafter.data import SAND
from achieve.envs.crafter.typing import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "modded_crafter.py"


def test_the_example_is_a_valid_change_of_rules():
    spec = importlib.util.spec_from_file_location("modded_crafter", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    named = example.RULES.functions
    assert named["zombie"].py_func.__code__ is example.cowardly_zombie.__code__
    # Inside the replacement, the rule's name is the original, and the user's helper is compiled.
    inside = named["zombie"].py_func.__globals__
    assert inside["zombie"].py_func.__code__ is example.zombie.__code__
    assert hasattr(inside["armed"], "py_func")
    assert named["update"].py_func.__globals__["zombie"] is named["zombie"]
    assert named["ripe"].py_func.__globals__["RIPE_AFTER"] == 100


def desert(world: World, terrain, shop, x: int, y: int) -> int:
    return SAND


def no_balance(world: World) -> None:
    pass


@pytest.mark.long
def test_a_changed_world_is_changed_in_play():
    rules = mod("desert", generate_material=desert, balance=no_balance)
    vec = make_vec("crafter", num_envs=2, seed=0, rules=rules, infos="all")
    _, infos = vec.reset()
    assert np.isin(infos["semantic"], (5, 13, 15)).all()  # sand, the player, zombies
    state = vec.save_state()
    for actions in np.random.default_rng(0).integers(0, 17, (50, 2)):
        vec.step(actions)
    plain = make_vec("crafter", num_envs=2, seed=0, infos="all")
    with pytest.raises(StateError, match="rules"):
        plain.load_state(state)
