"""The tree of keys and doors: shapes, colours, names and the achievement graph."""

from __future__ import annotations

from itertools import pairwise

import pytest

from achieve.envs.minigrid import Tree

TEN = (
    "open_grey_door",
    "collect_red_key",
    "open_red_door",
    "collect_blue_key",
    "open_blue_door",
    "collect_purple_key",
    "open_purple_door",
    "collect_yellow_key",
    "open_yellow_door",
    "reach_goal",
)


def test_the_default_has_ten_achievements_one_after_the_other() -> None:
    tree = Tree.make()
    assert tree.parents == (None, 0, 1, 2, 3)
    assert tree.achievement_names == TEN
    assert tree.requirements == tuple(pairwise(TEN))


def test_branching() -> None:
    tree = Tree.make(depth=3, branching=2)
    assert tree.parents == (None, 0, 0, 1, 1, 2, 2)
    assert tree.door_colours == ("grey", "red", "red", "blue", "blue", "purple", "purple")
    kinds = [kind for kind, _ in tree.items]
    assert kinds == ["key", "key", "key", "ball", "ball", "ball", "goal"]
    assert tree.achievement_names[:8] == (
        "open_grey_door",
        "collect_red_key",
        "open_red_door_1",
        "collect_blue_key",
        "open_red_door_2",
        "collect_purple_key",
        "open_blue_door_1",
        "collect_blue_ball_1",
    )
    assert tree.achievement_names[-2:] == ("open_purple_door_2", "reach_goal")
    assert ("collect_purple_key", "open_purple_door_2") in tree.requirements


@pytest.mark.parametrize("depth,branching", [(1, 1), (1, 9), (2, 62), (3, 4), (6, 1), (3, 1), (2, 5)])
def test_names_are_distinct_and_everything_follows_from_the_first_door(depth: int, branching: int) -> None:
    tree = Tree.make(depth, branching)
    names = tree.achievement_names
    assert len(set(names)) == len(names) == 2 * tree.rooms
    reached = {names[0]}
    for _ in range(2 * depth):
        reached |= {after for before, after in tree.requirements if before in reached}
    assert reached == set(names)


def test_an_own_tree() -> None:
    tree = Tree.make(parents=[None, 0, 0])
    assert tree == Tree((None, 0, 0))
    assert tree.items == (("key", "red"), ("ball", "red"), ("goal", "green"))


@pytest.mark.parametrize(
    "arguments,said",
    [
        ({"depth": 0}, "depth must be a whole number from 1, got 0"),
        ({"depth": 2.5}, "got 2.5"),
        ({"depth": True}, "got True"),
        ({"branching": "two"}, "branching must be a whole number from 1, got 'two'"),
        ({"depth": 7}, "depth 7 and branching 1 .* colours for 5 keys"),
        ({"depth": 10**12}, "colours for 5 keys"),
        ({"depth": 4, "branching": 2}, "depth 4 and branching 2"),
        ({"depth": 2, "branching": 63}, "at most 63 rooms"),
        ({"parents": ()}, "each room's parent"),
        ({"parents": "012"}, "each room's parent"),
        ({"parents": 5}, "got 5"),
        ({"parents": (0, 1)}, "first room .* got 0"),
        ({"parents": (None, 1)}, "room 1 must be an earlier room, 0 to 0, got 1"),
        ({"parents": (None, 0, -1)}, "got -1"),
        ({"parents": (None, 0, None)}, "got None"),
        ({"parents": (None, 0, 0.5)}, "got 0.5"),
        ({"parents": (None, 0, 1, 2, 3, 4, 5)}, "needs 6 keys, and there are colours for 5"),
        ({"parents": (None, *[0] * 63)}, "at most 63 rooms, got 64"),
    ],
)
def test_trees_that_do_not_fit_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tree.make(**arguments)
