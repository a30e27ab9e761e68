"""The hierarchy an agent has discovered, recovered without labels and then compared with the true one.

1. Representations of the achievements of many episodes are clustered, their number found from the data (`clusters`):
   by the silhouette, and because an episode rewards an achievement once, so that no two of one episode are the same.
2. Of the episodes in which cluster j occurs, how often did cluster i occur before it? If almost always, i is taken to
   be a requirement of j. Requirements that others imply are left out (transitive reduction).
3. Only now are labels used: each cluster is named after its members' most frequent label, and clusters and graph are
   compared with the truth.

Precedence shows requirements only as far as the expert's habits vary: what it always does first looks required.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from achieve.algo.clusters import Ints, choose_clusters
from achieve.analysis.graphs import Edge, closure, reduction
from achieve.errors import ConfigError

MOST = 3000
"""Achievements to cluster at most: distances of all pairs are held in memory."""

LEAST = 10
"""Episodes a cluster must occur in: in two or three, anything can have come first by chance."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that occurs in enough episodes to be judged."""

    name: str
    """The label that most members have, with a number where several clusters have the same."""
    label: str
    size: int
    share: float
    """Percent of the members with that label."""


@dataclass(frozen=True)
class EdgeScore:
    """Recovered edges against true ones, in percent; None where there is no edge to count."""

    precision: float | None
    recall: float | None
    found: list[Edge]
    missed: list[Edge]
    extra: list[Edge]


@dataclass(frozen=True)
class Hierarchy:
    """What was recovered, and how well it agrees with the truth.

    Attributes:
        achievements: how many were clustered.
        clusters: those with support, by size.
        clusters_without_support: how many others there are, and how many achievements they hold.
        labels_with_support: the true achievements that occur as often as a cluster must to be judged.
        labels_found: those that a cluster with support is named after.
        purity: percent of all achievements that have their cluster's label. One cluster each would be pure, so:
        completeness: percent of all achievements that lie in the largest cluster of their label.
        edges: the recovered graph over cluster names, reduced.
        direct_edges: its edges against the true direct ones, by label; None where the truth is not known.
        order: the same for all pairs of before and after (transitive closures).
        silhouettes: by the number of clusters that was tried.
    """

    achievements: int
    episodes: int
    clusters: list[Cluster]
    clusters_without_support: dict[str, int]
    labels_with_support: list[str]
    labels_found: list[str]
    purity: float
    completeness: float
    edges: list[Edge]
    direct_edges: EdgeScore | None
    order: EdgeScore | None
    silhouettes: dict[int, float]


def precedence(sequences: Sequence[Sequence[int]], count: int) -> tuple[NDArray[np.float64], Ints]:
    """Return, of the sequences with j, the share in which i came before j's first, and how many have j.

    sequences: of numbers 0..count-1. Returns [count, count], nan where j never occurs, and [count].
    """
    before = np.zeros((count, count))
    support = np.zeros(count, np.int64)
    for sequence in sequences:
        firsts = list(dict.fromkeys(sequence))
        support[firsts] += 1
        for place, item in enumerate(firsts):
            before[firsts[:place], item] += 1
    with np.errstate(invalid="ignore"):
        return np.where(support > 0, before / support, np.nan), support


def order_graph(shares: NDArray[np.float64], names: Sequence[str], threshold: float) -> list[Edge]:
    """Return the reduced graph of what almost always precedes what: shares [c, c] of at least ``threshold``.

    Strongest first; an edge that would close a cycle is left out.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    pairs = [(i, j) for i, j in np.argwhere(shares >= threshold) if i != j]
    for i, j in sorted(pairs, key=lambda pair: -shares[pair]):
        if not nx.has_path(graph, names[j], names[i]):
            graph.add_edge(names[i], names[j])
    return sorted(reduction(graph.edges))


def compare_edges(found: Iterable[Edge], true: Iterable[Edge]) -> EdgeScore:
    """Return the edges found, missed and false."""
    found, true = set(found), set(true)
    right = found & true
    return EdgeScore(
        100 * len(right) / len(found) if found else None,
        100 * len(right) / len(true) if true else None,
        sorted(right),
        sorted(true - found),
        sorted(found - true),
    )


@dataclass(frozen=True)
class Discovered:
    """A hierarchy, and where its clusters lie: what tells of any later achievement which of them it is."""

    hierarchy: Hierarchy
    centres: NDArray[np.float32]
    """Unit vectors [clusters, D], in the order of ``hierarchy.clusters``."""


def discover(
    representations: Sequence[Tensor],
    labels: Sequence[Ints],
    names: Sequence[str],
    requirements: Iterable[Edge] | None = None,
    **settings: Any,
) -> Hierarchy:
    """Return the hierarchy alone of :func:`discover_with_centres`, whose arguments it takes."""
    return discover_with_centres(representations, labels, names, requirements, **settings).hierarchy


def discover_with_centres(
    representations: Sequence[Tensor],
    labels: Sequence[Ints],
    names: Sequence[str],
    requirements: Iterable[Edge] | None = None,
    *,
    threshold: float = 0.95,
    min_support: float = 0.02,
    most: int = MOST,
) -> Discovered:
    """Recover a hierarchy from episodes and compare it with the truth.

    Args:
        representations: [k, D] of each episode, unit vectors, in order of time.
        labels: [k] of each episode, used for naming and evaluation only.
        names: the labels' names.
        requirements: the true direct requirements between names.
        threshold: share of episodes in which a requirement must come first.
        min_support: clusters in fewer than this share of the episodes, or in fewer than 10, are not judged.
        most: take the first episodes that together have no more achievements than this.
    """
    if not 0.5 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold}; it must be above 0.5 and at most 1")
    sizes = np.array([len(episode) for episode in representations])
    used = max(1, int(np.searchsorted(sizes.cumsum(), most, side="right")))
    sizes = sizes[:used]
    vectors = np.concatenate([episode.numpy() for episode in representations[:used]])
    truth = np.concatenate(labels[:used])
    if len(vectors) < 3:
        raise ConfigError(f"{len(vectors)} achievements are too few to cluster; play more episodes")
    numbers, silhouettes = choose_clusters(vectors, np.repeat(np.arange(used), sizes))
    table = np.zeros((int(numbers.max()) + 1, len(names)), np.int64)  # achievements by cluster and label
    np.add.at(table, (numbers, truth), 1)
    sequences = [part.tolist() for part in np.split(numbers, sizes.cumsum()[:-1])]
    shares, support = precedence(sequences, len(table))
    enough = max(LEAST, min_support * used)
    kept, dropped = np.flatnonzero(support >= enough), np.flatnonzero(support < enough)
    clusters = _name(table[kept], names)
    edges = order_graph(shares[np.ix_(kept, kept)], [cluster.name for cluster in clusters], threshold)
    occurring = [name for name, count in zip(names, table.sum(0), strict=True) if count >= enough]
    direct = order = None
    if requirements is not None:
        label = {cluster.name: cluster.label for cluster in clusters}
        # What hardly happens cannot be found.
        true = [(a, b) for a, b in closure(requirements) if a in occurring and b in occurring]
        direct, order = (
            compare_edges([(label[a], label[b]) for a, b in found if label[a] != label[b]], right)
            for found, right in ((edges, reduction(true)), (closure(edges), true))
        )
    sums = np.stack([vectors[numbers == number].sum(0) for number in kept]) if len(kept) else vectors[:0]
    centres = (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)
    hierarchy = Hierarchy(
        achievements=len(vectors),
        episodes=used,
        clusters=clusters,
        clusters_without_support={"clusters": len(dropped), "achievements": int(table[dropped].sum())},
        labels_with_support=occurring,
        labels_found=sorted({cluster.label for cluster in clusters}),
        purity=100 * table.max(1).sum() / len(truth),
        completeness=100 * table.max(0).sum() / len(truth),
        edges=edges,
        direct_edges=direct,
        order=order,
        silhouettes=silhouettes,
    )
    return Discovered(hierarchy, centres)


def _name(table: Ints, names: Sequence[str]) -> list[Cluster]:
    """Name each cluster after its most frequent label. table: achievements by cluster and label."""
    clusters: list[Cluster] = []
    for counts in table:
        label = names[int(counts.argmax())]
        same = sum(cluster.label == label for cluster in clusters)
        name = f"{label} ({same + 1})" if same else label
        clusters.append(Cluster(name, label, int(counts.sum()), 100 * float(counts.max() / counts.sum())))
    return clusters
