"""Clusters of unit vectors, their number unknown: average linkage, cut where the silhouette is best.

Where vectors come in groups of which no two can be the same thing (an episode rewards an achievement once), a cluster
with two of one group contradicts itself, and is split further along the tree.

Pure functions on arrays. `n` vectors, `D` their size; distances are cosine distances, 0..2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def cosine_distances(vectors: ArrayLike) -> NDArray[np.float32]:
    """Return ``1 - u_i . u_j`` of unit vectors [n, D] -> [n, n]."""
    units = np.asarray(vectors, np.float32)
    distances = 1 - units @ units.T
    np.fill_diagonal(distances, 0)
    return np.clip(distances, 0, 2)


def average_linkage(distances: ArrayLike) -> Floats:
    """Cluster by the mean distance between clusters: distances [n, n] -> scipy's merges [n - 1, 4]."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(np.asarray(distances, np.float64), checks=False), "average")


def cut(merges: Floats, count: int) -> Ints:
    """Return the ``count`` clusters of a tree as numbers [n]; the largest cluster is 0, and so on."""
    n = len(merges) + 1
    members: dict[int, list[int]] = {i: [i] for i in range(n)}
    for row in range(n - count):
        one, other = int(merges[row, 0]), int(merges[row, 1])
        members[n + row] = members.pop(one) + members.pop(other)
    return _numbered(list(members.values()), n)


def contradiction(points: ArrayLike, groups: Ints) -> float:
    """Return the share of a cluster's points that are not their group's first in it. points: indices of groups [n]."""
    inside = groups[np.asarray(points)]
    return 1 - len(np.unique(inside)) / len(inside)


def split_contradictions(merges: Floats, labels: Ints, groups: Ints, tolerance: float) -> Ints:
    """Split every cluster of a cut whose `contradiction` is above ``tolerance`` into its two branches, and so on.

    merges: the tree of n points; labels: [n], from `cut` of that tree; groups: [n].
    """
    n = len(labels)
    members: list[list[int]] = [[i] for i in range(n)]
    for one, other in merges[:, :2].astype(np.int64):
        members.append(members[one] + members[other])
    # The node of each cluster is the first, from the leaves up, that has all its points.
    sizes = np.bincount(labels)
    nodes = {}
    for node, points in enumerate(members):
        label = int(labels[points[0]])
        if len(points) == sizes[label] and (labels[points] == label).all():
            nodes[label] = node
    accepted, waiting = [], list(nodes.values())
    while waiting:
        node = waiting.pop()
        if node >= n and contradiction(members[node], groups) > tolerance:
            waiting += merges[node - n, :2].astype(np.int64).tolist()
        else:
            accepted.append(members[node])
    return _numbered(accepted, n)


def _numbered(clusters: list[list[int]], n: int) -> Ints:
    labels = np.zeros(n, np.int64)
    for number, points in enumerate(sorted(clusters, key=lambda points: (-len(points), min(points)))):
        labels[points] = number
    return labels


def silhouette(distances: ArrayLike, labels: Ints) -> float:
    """Return the mean over points of (b - a) / max(a, b): a the mean distance to the own cluster, b to the nearest.

    A point alone in its cluster counts zero (Rousseeuw 1987). At least two clusters.
    """
    matrix = np.asarray(distances)
    count = int(labels.max()) + 1
    one_hot = np.zeros((len(labels), count), matrix.dtype)
    one_hot[np.arange(len(labels)), labels] = 1
    sizes = one_hot.sum(0)
    sums = (matrix @ one_hot).astype(np.float64)
    own_size = sizes[labels].astype(np.float64)
    own = np.take_along_axis(sums, labels[:, None], 1)[:, 0] / np.maximum(own_size - 1, 1)
    means = sums / sizes
    np.put_along_axis(means, labels[:, None], np.inf, 1)
    other = means.min(1)
    values = (other - own) / np.maximum(np.maximum(own, other), 1e-12)
    return float(np.where(own_size > 1, values, 0).mean())


def choose_clusters(
    vectors: ArrayLike, groups: ArrayLike, *, most: int = 64, tolerance: float = 0.05
) -> tuple[Ints, dict[int, float]]:
    """Cluster unit vectors [n, D] into 2 to ``most`` clusters by the best silhouette, and split contradictions.

    groups: [n], of which two points of one cannot be the same thing; ``tolerance`` is for those that are misplaced.
    Returns labels [n] and the silhouette of each number that was tried. No label is looked at.
    """
    distances = cosine_distances(vectors)
    n = len(distances)
    if n < 3:
        return np.arange(n, dtype=np.int64), {}
    merges = average_linkage(distances)
    tried = {count: silhouette(distances, cut(merges, count)) for count in range(2, min(most, n - 1) + 1)}
    best = max(tried, key=lambda count: (tried[count], -count))
    labels = split_contradictions(merges, cut(merges, best), np.asarray(groups, np.int64), tolerance)
    return labels, tried
