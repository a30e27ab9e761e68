"""The hierarchy an agent has discovered, recovered without labels and then compared with the true one.

1. Representations of the achievements of many episodes are clustered, their number found from the data (`clusters`):
   by the silhouette, and because an episode rewards an achievement once, so that no two of one episode are the same.
2. Of the episodes in which cluster j occurs, how often did cluster i occur before it? If almost always, i is taken to
   be a requirement of j. Requirements that others imply are left out (transitive reduction).
3. Only now are labels used: each cluster is named after its members' most frequent label, and clusters and graph are
   compared with the truth.

Precedence shows requirements only as far as the expert's habits vary: what it always does first looks required.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from achieve.analysis.clusters import Ints, choose_clusters
from achieve.analysis.graphs import Edges, closure, reduction
from achieve.errors import ConfigError
from achieve.scoring.score import or_none

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
    """Recovered edges against true ones."""

    found: Edges
    """In both."""
    missed: Edges
    extra: Edges

    @property
    def precision(self) -> float:
        """Percent of the edges that are true; nan without one."""
        return _percent(len(self.found), len(self.found) + len(self.extra))

    @property
    def recall(self) -> float:
        """Percent of the true edges that were found; nan without one."""
        return _percent(len(self.found), len(self.found) + len(self.missed))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "precision": or_none(self.precision),
            "recall": or_none(self.recall),
            **{name: sorted(map(list, getattr(self, name))) for name in ("found", "missed", "extra")},
        }


@dataclass(frozen=True)
class Hierarchy:
    """What was recovered, and how well it agrees with the truth.

    Attributes:
        clusters: those with support, by size.
        dropped: how many others there are, and `dropped_items` how many achievements they hold.
        labels: the true achievements that occur as often as a cluster must to be judged.
        purity: percent of all achievements that have their cluster's label. One cluster each would be pure, so:
        completeness: percent of all achievements that lie in the largest cluster of their label.
        edges: the recovered graph over cluster names, reduced.
        direct: its edges against the true direct ones, by label; None where the truth is not known.
        order: the same for all pairs of before and after (transitive closures).
    """

    items: int
    episodes: int
    clusters: tuple[Cluster, ...]
    dropped: int
    dropped_items: int
    purity: float
    completeness: float
    labels: tuple[str, ...]
    edges: Edges
    direct: EdgeScore | None
    order: EdgeScore | None
    silhouettes: dict[int, float]

    @property
    def by_label(self) -> dict[str, str]:
        """Cluster name to label."""
        return {cluster.name: cluster.label for cluster in self.clusters}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "achievements": self.items,
            "episodes": self.episodes,
            "clusters": [vars(cluster) for cluster in self.clusters],
            "clusters_without_support": {"clusters": self.dropped, "achievements": self.dropped_items},
            "labels_with_support": list(self.labels),
            "labels_found": sorted({cluster.label for cluster in self.clusters}),
            "purity": self.purity,
            "completeness": self.completeness,
            "edges": sorted(map(list, self.edges)),
            "direct_edges": None if self.direct is None else self.direct.as_dict(),
            "order": None if self.order is None else self.order.as_dict(),
            "silhouettes": {str(count): value for count, value in self.silhouettes.items()},
        }


def precedence(sequences: Sequence[Sequence[int]], count: int) -> tuple[NDArray[np.float64], Ints]:
    """Return, of the sequences with j, the share in which i came before j's first, and how many have j.

    sequences: of numbers 0..count-1. Returns [count, count], nan where j never occurs, and [count].
    """
    before = np.zeros((count, count))
    support = np.zeros(count, np.int64)
    for sequence in sequences:
        seen: list[int] = []
        for item in sequence:
            if item not in seen:
                before[seen, item] += 1
                support[item] += 1
                seen.append(item)
    with np.errstate(invalid="ignore"):
        return np.where(support > 0, before / support, np.nan), support


def order_graph(shares: NDArray[np.float64], names: Sequence[str], threshold: float) -> Edges:
    """Return the reduced graph of what almost always precedes what: shares [c, c] of at least ``threshold``.

    Strongest first; an edge that would close a cycle is left out.
    """
    pairs = [(float(shares[i, j]), i, j) for i, j in np.argwhere(shares >= threshold) if i != j]
    chosen: set[tuple[str, str]] = set()
    reach: Edges = frozenset()
    for _, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if (names[j], names[i]) in reach:
            continue
        chosen.add((names[i], names[j]))
        if (names[i], names[j]) not in reach:
            reach = closure(chosen)
    return reduction(chosen)


def compare_edges(found: Edges, true: Edges) -> EdgeScore:
    """Return the edges found, missed and false."""
    return EdgeScore(found & true, true - found, found - true)


def discover(
    representations: Sequence[Tensor],
    labels: Sequence[Ints],
    names: Sequence[str],
    requirements: Edges | None = None,
    *,
    threshold: float = 0.95,
    min_support: float = 0.02,
    most: int = MOST,
) -> Hierarchy:
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
    used = _first(representations, most)
    vectors = np.concatenate([representations[i].numpy() for i in range(used)])
    truth = np.concatenate([labels[i] for i in range(used)])
    if len(vectors) < 3:
        raise ConfigError(f"{len(vectors)} achievements are too few to cluster; play more episodes")
    sizes = [len(representations[i]) for i in range(used)]
    clusters, silhouettes = choose_clusters(vectors, np.repeat(np.arange(used), sizes))
    sequences = [part.tolist() for part in np.split(clusters, np.cumsum(sizes)[:-1])]
    count = int(clusters.max()) + 1
    shares, support = precedence(sequences, count)
    kept = np.flatnonzero(support >= max(LEAST, min_support * used))
    described = _name(clusters, truth, names, kept)
    edges = order_graph(shares[np.ix_(kept, kept)], [cluster.name for cluster in described], threshold)
    table = np.zeros((count, len(names)), np.int64)
    np.add.at(table, (clusters, truth), 1)
    dropped = np.setdiff1d(np.arange(count), kept)
    frequent = table.sum(0) >= max(LEAST, min_support * used)
    occurring = tuple(name for name, often in zip(names, frequent, strict=True) if often)
    direct, order = _scores(edges, {c.name: c.label for c in described}, requirements, occurring)
    return Hierarchy(
        items=len(vectors),
        episodes=used,
        clusters=tuple(described),
        dropped=len(dropped),
        dropped_items=int(table[dropped].sum()),
        purity=100 * table.max(1).sum() / len(truth),
        completeness=100 * table.max(0).sum() / len(truth),
        labels=occurring,
        edges=edges,
        direct=direct,
        order=order,
        silhouettes=silhouettes,
    )


def _scores(
    edges: Edges, label: dict[str, str], requirements: Edges | None, occurring: Sequence[str]
) -> tuple[EdgeScore | None, EdgeScore | None]:
    """Compare the graph by label with the truth among the labels that occur: what hardly happens cannot be found."""
    if requirements is None:
        return None, None
    true = frozenset((a, b) for a, b in closure(requirements) if a in occurring and b in occurring)
    by_label = frozenset((label[a], label[b]) for a, b in edges if label[a] != label[b])
    all_pairs = frozenset((label[a], label[b]) for a, b in closure(edges) if label[a] != label[b])
    return compare_edges(by_label, reduction(true)), compare_edges(all_pairs, true)


def _name(clusters: Ints, truth: Ints, names: Sequence[str], kept: Ints) -> list[Cluster]:
    described: list[Cluster] = []
    for number in kept:
        counts = np.bincount(truth[clusters == number], minlength=len(names))
        label = names[int(counts.argmax())]
        same = sum(cluster.label == label for cluster in described)
        name = f"{label} ({same + 1})" if same else label
        described.append(Cluster(name, label, int(counts.sum()), 100 * float(counts.max() / counts.sum())))
    return described


def _first(representations: Sequence[Tensor], most: int) -> int:
    sizes = np.cumsum([len(episode) for episode in representations])
    return max(1, int(np.searchsorted(sizes, most, side="right")))


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else float("nan")

