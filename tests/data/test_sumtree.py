"""The tree of sums against sums over all places."""

from __future__ import annotations

import numpy as np
import pytest

from achieve.data.sumtree import SumTree


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100, 129])
def test_find_is_a_search_in_the_running_sum(size: int) -> None:
    rng = np.random.default_rng(size)
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(20):
        places = rng.integers(0, size, 7)
        new = rng.integers(0, 5, 7).astype(float)  # whole numbers: sums are exact in any order; some are zero
        tree.set(places, new)
        for place, weight in zip(places, new, strict=True):
            weights[place] = weight
        np.testing.assert_array_equal(tree.weights, weights)
        np.testing.assert_array_equal(tree.get(places), weights[places])
        assert tree.total == weights.sum()
        if tree.total:
            points = rng.random(50) * tree.total
            expected = [int(np.flatnonzero(np.cumsum(weights) > point)[0]) for point in points]
            assert tree.find(points).tolist() == expected


def test_draws_follow_the_weights_and_never_find_nothing() -> None:
    rng = np.random.default_rng(0)
    weights = np.array([0.0, 0.1, 0.0, 0.7, 0.2, 0.0])
    tree = SumTree(6)
    tree.fill(weights)
    found = np.bincount(tree.find(rng.random(20_000) * tree.total), minlength=6) / 20_000
    assert np.abs(found - weights).max() < 0.02
    assert not found[weights == 0].any()
    past = np.array([tree.total, np.nextafter(tree.total, 2)])
    assert tree.find(past).tolist() == [4, 4], "rounding past the end finds the last place with a weight"


def test_a_rebuilt_tree_is_the_same_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    tree, other = SumTree(1000), SumTree(1000)
    for _ in range(50):
        tree.set(rng.integers(0, 1000, 30), rng.random(30))
    other.fill(tree.weights)
    assert (tree._nodes == other._nodes).all()
