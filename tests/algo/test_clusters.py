"""Clusters of unit vectors: against plain versions, and cases whose clusters are known."""

import itertools

import numpy as np
import pytest

from achieve.algo import clusters
from achieve.algo.clusters import (
    average_linkage,
    choose_clusters,
    cosine_distances,
    cut,
    join_fragments,
    silhouette,
    silhouettes,
)


def random_units(count: int, seed: int, size: int = 5) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, size))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def slow_linkage(distances: np.ndarray) -> list[tuple[frozenset[int], float]]:
    """Always join the two clusters with the least mean distance between their points."""
    clusters = [frozenset([i]) for i in range(len(distances))]
    made = []
    while len(clusters) > 1:
        near = min(
            itertools.combinations(clusters, 2),
            key=lambda pair: np.mean([distances[i, j] for i in pair[0] for j in pair[1]]),
        )
        height = float(np.mean([distances[i, j] for i in near[0] for j in near[1]]))
        clusters = [c for c in clusters if c not in near] + [near[0] | near[1]]
        made.append((near[0] | near[1], height))
    return made


def symmetric(vectors: np.ndarray) -> np.ndarray:
    distances = cosine_distances(vectors).astype(np.float64)
    return (distances + distances.T) / 2


@pytest.mark.parametrize("count", [2, 3, 12, 25])
def test_linkage_joins_the_closest(count: int) -> None:
    distances = symmetric(random_units(count, count))
    merges = average_linkage(distances)
    members = {i: frozenset([i]) for i in range(count)}
    for row, (made, height) in enumerate(slow_linkage(distances)):
        one, other, at, size = merges[row]
        members[count + row] = members[int(one)] | members[int(other)]
        assert members[count + row] == made and size == len(made)
        assert at == pytest.approx(height)


def test_cut_numbers_clusters_by_size() -> None:
    distances = symmetric(np.repeat(np.eye(3), [2, 4, 3], axis=0))
    assert cut(average_linkage(distances), 3).tolist() == [2] * 2 + [0] * 4 + [1] * 3
    assert cut(average_linkage(distances), 1).tolist() == [0] * 9


def test_silhouette_point_by_point() -> None:
    distances = symmetric(random_units(14, 1))
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 0, 1, 3, 2, 0])
    values = []
    for i in range(14):
        own = [distances[i, j] for j in range(14) if labels[j] == labels[i] and j != i]
        if not own:
            values.append(0.0)
            continue
        others = [np.mean([distances[i, j] for j in range(14) if labels[j] == k]) for k in range(4) if k != labels[i]]
        a, b = np.mean(own), min(others)
        values.append((b - a) / max(a, b))
    assert silhouette(distances, labels) == pytest.approx(np.mean(values))


@pytest.mark.parametrize(("count", "most"), [(3, 64), (12, 5), (40, 64), (150, 20)])
def test_silhouettes_of_all_cuts(count: int, most: int) -> None:
    distances = symmetric(random_units(count, count))
    merges = average_linkage(distances)
    expected = {k: silhouette(distances, cut(merges, k)) for k in range(2, min(most, count - 1) + 1)}
    found = silhouettes(distances, merges, most)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected)


def test_clusters_that_contradict_themselves_are_split() -> None:
    # Two kinds so close that they look like one; that both occur in each of six episodes tells them apart.
    kinds = np.eye(4)[[0, 1, 2]] + 0.0
    kinds[1] = [0.98, 0.199, 0, 0]
    points = np.concatenate([np.tile(kinds[0], (6, 1)), np.tile(kinds[1], (6, 1)), np.tile(kinds[2], (6, 1))])
    points += 0.02 * random_units(18, 0, 4)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    episodes = np.tile(np.arange(6), 3)
    merges = average_linkage(symmetric(points))
    together = cut(merges, 2)
    assert together.tolist() == [0] * 12 + [1] * 6
    expected = [0] * 6 + [1] * 6 + [2] * 6
    assert cut(merges, 2, episodes, 0.05).tolist() == expected
    assert cut(merges, 2, episodes, 0.49).tolist() == expected
    assert cut(merges, 2, episodes, 0.5).tolist() == together.tolist(), "half of its points are an episode's second"
    assert choose_clusters(points, episodes)[0].tolist() == expected
    assert len(choose_clusters(points, np.arange(18))[1]) == 16


def slow_join(
    distances: np.ndarray, labels: np.ndarray, masses: np.ndarray, together: np.ndarray, groups: float
) -> set[frozenset[int]]:
    """Always join the two clusters that are likeliest to be one thing, point by point."""

    def score(one: frozenset[int], other: frozenset[int]) -> float:
        sizes = sum(masses[i] for i in one), sum(masses[i] for i in other)
        apart = sum(masses[i] * masses[j] * distances[i, j] for i in one for j in other) / (sizes[0] * sizes[1])
        shared = sum(together[i, j] for i in one for j in other)
        missing = min((1 - clusters.SHARED) * sizes[0] * sizes[1] / groups, clusters.MOST_APART)
        return clusters.WORTH * (clusters.ALIKE - apart) + missing + np.log(clusters.SHARED) * shared

    left = [frozenset(np.flatnonzero(labels == k).tolist()) for k in np.unique(labels)]
    while len(left) > 1:
        best = max(itertools.combinations(left, 2), key=lambda pair: score(*pair))
        if score(*best) <= 0:
            break
        left = [c for c in left if c not in best] + [best[0] | best[1]]
    return set(left)


@pytest.mark.parametrize("seed", range(6))
def test_fragments_are_joined_by_likeness_and_groups(seed: int) -> None:
    rng = np.random.default_rng(seed)
    distances = symmetric(random_units(24, seed, 3)) * 0.8
    labels = np.concatenate([np.arange(9), rng.integers(9, size=15)])
    masses, shared = rng.uniform(0.5, 3, 24), rng.random((24, 24)) * (rng.random((24, 24)) < 0.04)
    together = shared + shared.T
    found = join_fragments(distances, labels, masses, together, 20.0)
    expected = slow_join(distances, labels, masses, together, 20.0)
    assert {frozenset(np.flatnonzero(found == k).tolist()) for k in range(found.max() + 1)} == expected
    assert 1 < len(expected) < 9


def test_what_shares_its_groups_is_not_joined() -> None:
    """Three clusters, equally alike: the first two are in no group together, the third is with both."""
    distances = (clusters.ALIKE + 0.05) * (1 - np.eye(3))
    together = np.array([[0, 0, 5.0], [0, 0, 5], [5, 5, 0]])
    assert join_fragments(distances, np.arange(3), np.full(3, 10.0), together, 20.0).tolist() == [0, 0, 1]
    far = distances + 0.2 * (1 - np.eye(3))
    assert join_fragments(far, np.arange(3), np.full(3, 10.0), together, 20.0).tolist() == [0, 1, 2]
    assert join_fragments(distances, np.arange(3), np.full(3, 0.1), 0 * together, 20.0).tolist() == [0, 1, 2]
