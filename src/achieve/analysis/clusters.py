"""Clusters of unit vectors, their number unknown: average linkage, cut where the silhouette is best.

Where vectors come in groups of which no two can be the same thing (an episode rewards an achievement once), a cluster
with two of one group contradicts itself, and is split further along the tree.

Pure functions on arrays. `n` vectors, `D` their size; distances are cosine distances, 0..2.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.spatial.distance import squareform

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
    return linkage(squareform(np.asarray(distances, np.float64), checks=False), "average")


def cut(merges: Floats, count: int, groups: Ints | None = None, tolerance: float = 1.0) -> Ints:
    """Return the ``count`` clusters of a tree as numbers [n], the largest 0; those that contradict themselves split.

    groups: [n]. A cluster contradicts itself where more than ``tolerance`` of its points are not their group's first in
    it; it is then split into its two branches, and so on.
    """
    n = len(merges) + 1
    clusters, waiting = [], [to_tree(merges)]
    while waiting:
        node = waiting.pop()
        if node.id < 2 * n - count:  # merges are numbered from n on, the last ones nearest the root
            points = node.pre_order()
            if groups is None or 1 - len(np.unique(groups[points])) / len(points) <= tolerance:
                clusters.append(points)
                continue
        waiting += [node.left, node.right]
    labels = np.zeros(n, np.int64)
    for number, points in enumerate(sorted(clusters, key=lambda points: (-len(points), min(points)))):
        labels[points] = number
    return labels


def silhouette(distances: ArrayLike, labels: Ints) -> float:
    """Return the mean over points of (b - a) / max(a, b): a the mean distance to the own cluster, b to the nearest.

    A point alone in its cluster counts zero (Rousseeuw 1987). At least two clusters.
    """
    matrix = np.asarray(distances)
    one_hot = np.eye(int(labels.max()) + 1, dtype=matrix.dtype)[labels]
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
    return cut(merges, best, np.asarray(groups, np.int64), tolerance), tried
