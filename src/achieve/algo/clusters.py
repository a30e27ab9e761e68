"""Clusters of unit vectors, their number unknown: average linkage, cut where the silhouette is best.

Where vectors come in groups of which no two can be the same thing (an episode rewards an achievement once), a cluster
with two of one group contradicts itself, and is split further along the tree. Where clusters are the fragments of
things, groups also tell which belong together: those that are somewhat alike and hardly ever share a group.

Pure functions on arrays. `n` vectors, `D` their size; distances are cosine distances, 0..2.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ALIKE = 0.65
"""Mean distance below which two clusters are joined, if their groups say nothing."""
WORTH = 6.0
"""What a distance of 1 counts for against a group that two clusters share, or do not."""
SHARED = 0.1
"""Groups that two clusters of one thing seem to share, by mistake, as a share of those that different things would."""
MOST_APART = 1.0
"""What groups count for at most that are not shared: different things may also be done in different circumstances."""


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


def cut(merges: Floats, count: int, groups: Ints | None = None, tolerance: float = 1.0) -> Ints:
    """Return the ``count`` clusters of a tree as numbers [n], the largest 0; those that contradict themselves split.

    groups: [n]. A cluster contradicts itself where more than ``tolerance`` of its points are not their group's first in
    it; it is then split into its two branches, and so on.
    """
    return cut_where(merges, count, lambda points: groups is None or _repeated(groups[points]) <= tolerance)


def _repeated(groups: Ints) -> float:
    """Return the share of points that are not their group's first."""
    return 1 - len(np.unique(groups)) / len(groups)


def cut_where(merges: Floats, count: int, is_one: Callable[[Ints], bool]) -> Ints:
    """Return the ``count`` clusters of a tree as :func:`cut` does; those whose points are not one thing are split."""
    from scipy.cluster.hierarchy import to_tree

    n = len(merges) + 1
    clusters, waiting = [], [to_tree(merges)]
    while waiting:
        node = waiting.pop()
        if node.id < 2 * n - count:  # merges are numbered from n on, the last ones nearest the root
            points = node.pre_order()
            if len(points) == 1 or is_one(np.array(points)):
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


def silhouettes(distances: ArrayLike, merges: Floats, most: int) -> dict[int, float]:
    """Return the :func:`silhouette` of the tree's cuts into 2 to ``most`` clusters, by their number.

    From one cut to the next two clusters join: their sums of distances are added, and no pair is looked at again.
    """
    matrix = np.asarray(distances, np.float64)
    n = len(matrix)
    most = min(most, n - 1)
    labels = cut(merges, most)
    # Columns are clusters; where two have joined, the second is left out.
    sizes = np.bincount(labels).astype(np.float64)
    sums = matrix @ np.eye(most)[labels]
    column = dict(_columns(merges, labels))
    found = {}
    for count in range(most, 1, -1):
        live = np.flatnonzero(sizes)
        own_size, own = sizes[labels], sums[np.arange(n), labels]
        within = own / np.maximum(own_size - 1, 1)
        means = sums[:, live] / sizes[live]
        means[np.arange(n), np.searchsorted(live, labels)] = np.inf
        other = means.min(1)
        values = (other - within) / np.maximum(np.maximum(within, other), 1e-12)
        found[count] = float(np.where(own_size > 1, values, 0).mean())
        row = n - count
        first, second = (column.pop(int(node)) for node in merges[row, :2])
        column[n + row] = first
        sums[:, first] += sums[:, second]
        sizes[first] += sizes[second]
        sizes[second] = 0
        labels = np.where(labels == second, first, labels)
    return dict(sorted(found.items()))


def _columns(merges: Floats, labels: Ints) -> Iterator[tuple[int, int]]:
    """Yield the nodes of a tree that are its clusters, with their labels."""
    n, count = len(labels), int(labels.max()) + 1
    made = {n + row: [int(node) for node in merges[row, :2]] for row in range(n - count)}
    inner = {node for pair in made.values() for node in pair}
    for node in {*range(n), *made} - inner:
        point = node
        while point >= n:
            point = made[point][0]
        yield node, int(labels[point])


def choose_clusters(
    vectors: ArrayLike, groups: ArrayLike, *, most: int = 64, tolerance: float = 0.05
) -> tuple[Ints, dict[int, float]]:
    """Cluster unit vectors [n, D] into 2 to ``most`` clusters by the best silhouette, and split contradictions.

    groups: [n], of which two points of one cannot be the same thing; ``tolerance`` is for those that are misplaced.
    Returns labels [n] and the silhouette of each number that was tried. No label is looked at.
    """
    own = np.asarray(groups, np.int64)
    return choose_by_distance(cosine_distances(vectors), lambda points: _repeated(own[points]) <= tolerance, most=most)


def choose_by_distance(
    distances: ArrayLike, is_one: Callable[[Ints], bool], *, most: int = 64
) -> tuple[Ints, dict[int, float]]:
    """:func:`choose_clusters` of points with these distances [n, n]; clusters whose points are not one are split."""
    n = len(np.asarray(distances))
    if n < 3:
        return np.arange(n, dtype=np.int64), {}
    merges = average_linkage(distances)
    tried = silhouettes(distances, merges, most)
    best = max(tried, key=lambda count: (tried[count], -count))
    return cut_where(merges, best, is_one), tried


def join_fragments(distances: ArrayLike, labels: Ints, masses: Floats, together: Floats, groups: float) -> Ints:
    """Join clusters [n] that are fragments of one thing. Returns numbers [n] of what they are joined to, from 0 on.

    A group has no thing twice. Different things, independent of each other, are found together in ``m m' / groups``
    groups; fragments of one thing, hardly ever. The logarithm of the ratio of both likelihoods, and how alike the
    clusters are, decide. The best pair is joined first.

    Args:
        distances: between points [n, n].
        labels: clusters of points [n], numbered from 0 on.
        masses: what each point stands for [n].
        together: groups in which what two points stand for is found together [n, n].
        groups: how many there are.
    """
    count = int(labels.max(initial=-1)) + 1
    member = np.eye(count)[labels]
    weighted = member * masses[:, None]
    size, sums, shared = weighted.sum(0), weighted.T @ np.asarray(distances) @ weighted, member.T @ together @ member
    joined = np.arange(count)

    def scores(one: Ints) -> Floats:
        """What speaks for joining these clusters with each."""
        product = np.outer(size[one], size)
        score = WORTH * (ALIKE - sums[one] / np.maximum(product, 1e-12))
        score += np.minimum((1 - SHARED) * product / max(groups, 1), MOST_APART) + np.log(SHARED) * shared[one]
        return score

    score = scores(joined)
    np.fill_diagonal(score, -np.inf)
    while count:
        one, other = np.unravel_index(score.argmax(), score.shape)
        if score[one, other] <= 0:
            break
        for table in (sums, shared):
            table[one] += table[other]
            table[:, one] += table[:, other]
        size[one] += size[other]
        joined[joined == other] = one
        gone = np.isneginf(score[one]) & (np.arange(count) != one)
        score[one] = score[:, one] = np.where(gone, -np.inf, scores(np.array([one]))[0])
        score[other] = score[:, other] = score[one, one] = -np.inf
    return np.unique(joined, return_inverse=True)[1][labels].astype(np.int64)
