"""Changed rules: compiled like the original, and they do what they say."""

from __future__ import annotations

import importlib
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


NAMED = "tests.envs.rules"


def test_rules_named_by_their_module_are_the_option_of_the_world():
    vec = make_vec("crafter", num_envs=2, seed=0, rules=f"{NAMED}:RULES")
    same = make_vec("crafter", num_envs=2, seed=5, rules=importlib.import_module(NAMED).RULES)
    vec.reset()
    same.load_state(vec.save_state())
    assert same.save_state() == vec.save_state()


@pytest.mark.parametrize("rules", [None, f"{NAMED}:OTHERS"])
def test_a_state_is_refused_under_other_rules(rules):
    """Also under rules of the same name."""
    vec, other = (make_vec("crafter", num_envs=2, seed=0, rules=r) for r in (f"{NAMED}:RULES", rules))
    vec.reset()
    before = other.save_state()
    with pytest.raises(StateError, match=r"another environment: rules 'ripe at once \(\w+\)' \(here "):
        other.load_state(vec.save_state())
    assert other.save_state() == before


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("no_such_module:RULES", "rules=no_such_module:RULES cannot be used: Python does not find its module"),
        (f"{NAMED}:MISSING", f"the module {NAMED} has no 'MISSING'"),
        (f"{NAMED}:NUMBER", "is of type int; make rules with achieve.envs.crafter.mod"),
        ("RULES", "give module:NAME"),
        (7, "rules=7 is of type int"),
    ],
)
def test_rules_that_are_none_are_refused(rules, said):
    with pytest.raises(ValueError, match=said):
        make_vec("crafter", num_envs=1, rules=rules)


def test_the_fingerprint_tells_changes_apart_and_nothing_else():
    def rule(world: World) -> None:
        world.hunger = 1.0

    def same(world: World) -> None:
        world.hunger = 1.0

    def other(world: World) -> None:
        world.hunger = 2.0

    one, two, three = (mod("a", balance=f).changes_fingerprint for f in (rule, same, other))
    assert one == two != three
    free = 3
    with pytest.raises(TypeError, match="uses free of the function around it"):
        mod("a", balance=lambda world: free)
    with pytest.raises(TypeError, match="RIPE_AFTER needs a number"):
        mod("a", RIPE_AFTER=[1])
