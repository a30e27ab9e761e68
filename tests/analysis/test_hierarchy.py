"""Graphs and the recovered hierarchy: against plain versions and cases whose graph is known."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from achieve.analysis.graphs import closure, crafter_requirements, layers, reduction, true_requirements
from achieve.analysis.hierarchy import compare_edges, discover, order_graph, precedence
from achieve.config import EnvConfig
from achieve.envs.crafter.data import ACHIEVEMENTS
from achieve.errors import ConfigError


def test_precedence_counts_who_came_before() -> None:
    sequences = [[0, 1, 2], [1, 0], [0, 2], [2, 1, 1]]
    shares, support = precedence(sequences, 4)
    assert support.tolist() == [3, 3, 3, 0]
    for i, j in itertools.product(range(3), repeat=2):
        with_j = [s for s in sequences if j in s]
        before = [i in s and s.index(i) < s.index(j) for s in with_j]
        assert shares[i, j] == pytest.approx(np.mean(before)), (i, j)
    assert np.isnan(shares[:, 3]).all()


def test_order_graph_has_no_cycle_and_no_shortcut() -> None:
    names = ["a", "b", "c"]
    shares = np.array([[0, 1.0, 0.97], [0.0, 0, 0.99], [0.96, 0.0, 0]])
    # c before a is the weakest and would close a circle; a before c follows from the other two.
    assert order_graph(shares, names, 0.95) == [("a", "b"), ("b", "c")]
    assert order_graph(shares, names, 0.995) == [("a", "b")]


def test_closure_and_reduction_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    nodes = "abcdefg"
    pairs = list(itertools.combinations(nodes, 2))  # all forwards, so without a cycle
    for _ in range(20):
        edges = frozenset(pair for pair in pairs if rng.random() < 0.35)
        reach = set(edges)
        for k, i, j in itertools.product(nodes, repeat=3):
            if (i, k) in reach and (k, j) in reach:
                reach.add((i, j))
        assert closure(edges) == reach
        reduced = reduction(edges)
        assert closure(reduced) == reach
        assert all(closure(reduced - {edge}) != reach for edge in reduced)
        depth = {node: number for number, layer in enumerate(layers(nodes, edges)) for node in layer}
        assert all(depth[b] > depth[a] for a, b in edges)
        assert all(depth[n] == 0 or any(depth[a] == depth[n] - 1 for a, b in edges if b == n) for n in nodes)


def test_crafters_graph() -> None:
    edges = crafter_requirements()
    assert {node for edge in edges for node in edge} <= set(ACHIEVEMENTS)
    assert reduction(edges) == {
        ("collect_sapling", "place_plant"), ("place_plant", "eat_plant"), ("collect_wood", "place_table"),
        ("place_table", "make_wood_pickaxe"), ("place_table", "make_wood_sword"),
        ("make_wood_pickaxe", "collect_stone"), ("make_wood_pickaxe", "collect_coal"),
        ("collect_stone", "place_stone"), ("collect_stone", "place_furnace"),
        ("collect_stone", "make_stone_pickaxe"), ("collect_stone", "make_stone_sword"),
        ("make_stone_pickaxe", "collect_iron"),
        ("collect_iron", "make_iron_pickaxe"), ("collect_coal", "make_iron_pickaxe"),
        ("place_furnace", "make_iron_pickaxe"), ("collect_iron", "make_iron_sword"),
        ("collect_coal", "make_iron_sword"), ("place_furnace", "make_iron_sword"),
        ("make_iron_pickaxe", "collect_diamond"),
    }  # fmt: skip


def test_graphs_of_environments() -> None:
    assert true_requirements(EnvConfig()) == crafter_requirements()
    tree = true_requirements(EnvConfig(name="minigrid", options=("depth=2",)))
    assert tree is not None and ("collect_red_key", "open_red_door") in tree and len(tree) == 3
    assert true_requirements(EnvConfig(name="heist")) is None
    assert true_requirements(EnvConfig(name="tests.envs.gym.envs:Count")) is None
    assert true_requirements(EnvConfig(name="tests.envs.gym.envs:Ordered")) == {("walk", "rest")}
    with pytest.raises(ConfigError, match=r"the achievement_requirements of .*:Circular go in a circle"):
        true_requirements(EnvConfig(name="tests.envs.gym.envs:Circular"))
    with pytest.raises(ConfigError, match="depth"):
        true_requirements(EnvConfig(name="minigrid", options=("depth=0",)))


EDGES = frozenset({("a", "b"), ("b", "c"), ("b", "d"), ("e", "d")})
NODES = tuple("abcdef")


def play(episodes: int, noise: float, seed: int = 0) -> tuple[list[torch.Tensor], list[np.ndarray]]:
    """Random orders that respect EDGES, each stopped somewhere; representations are a node's own plus noise."""
    rng = np.random.default_rng(seed)
    own = F.normalize(torch.from_numpy(rng.normal(size=(len(NODES), 24))).float(), dim=1)
    nu, labels = [], []
    for _ in range(episodes):
        done: list[str] = []
        for _ in range(int(rng.integers(3, len(NODES) + 1))):
            ready = [n for n in NODES if n not in done and all(a in done for a, b in EDGES if b == n)]
            done.append(str(rng.choice(ready)))
        found = np.array([NODES.index(n) for n in done])
        labels.append(found)
        nu.append(F.normalize(own[found] + noise * torch.from_numpy(rng.normal(size=(len(found), 24))).float(), dim=1))
    return nu, labels


def test_a_known_hierarchy_is_recovered() -> None:
    nu, labels = play(150, noise=0.05)
    found = discover(nu, labels, NODES, EDGES)
    assert (found.purity, found.completeness) == (100, 100)
    assert found.clusters_without_support == {"clusters": 0, "achievements": 0}
    assert sorted(cluster.name for cluster in found.clusters) == list(NODES) == found.labels_with_support
    assert found.edges == sorted(EDGES) and found.episodes == 150
    assert found.direct_edges is not None and found.order is not None
    assert (found.direct_edges.precision, found.direct_edges.recall) == (100, 100)
    assert found.order.found == sorted(closure(EDGES)) and not found.order.missed and not found.order.extra
    assert found.labels_found == list(NODES) and found.direct_edges.missed == []


def test_labels_decide_names_alone() -> None:
    nu, labels = play(60, noise=0.1)
    shifted = [(label + 1) % len(NODES) for label in labels]
    found, other = discover(nu, labels, NODES), discover(nu, shifted, NODES)
    assert [c.size for c in found.clusters] == [c.size for c in other.clusters]
    renamed = {a: NODES[(NODES.index(a) + 1) % len(NODES)] for a in NODES}
    assert {(renamed[a], renamed[b]) for a, b in found.edges} == set(other.edges)
    assert found.direct_edges is None and found.order is None


def test_noise_costs_purity_and_is_counted() -> None:
    nu, labels = play(120, noise=0.05)
    rng = np.random.default_rng(1)
    wrong = [np.where(rng.random(len(label)) < 0.2, 5, label) for label in labels]
    found = discover(nu, wrong, NODES, EDGES)
    right = sum(int((label == given).sum()) for label, given in zip(labels, wrong, strict=True))
    assert found.purity == pytest.approx(100 * right / sum(map(len, labels)))


def test_what_hardly_occurs_is_not_judged() -> None:
    nu, labels = play(40, noise=0.05)
    stranger = F.normalize(torch.randn(1, 24, generator=torch.Generator().manual_seed(9)), dim=1)
    for episode in range(4):  # four times, always last: it would seem to need everything
        nu[episode] = torch.cat([nu[episode], stranger])
        labels[episode] = np.append(labels[episode], 6)
    found = discover(nu, labels, (*NODES, "g"), EDGES | {("f", "g")})
    assert "g" not in found.labels_with_support and all(cluster.label != "g" for cluster in found.clusters)
    assert found.clusters_without_support == {"clusters": 1, "achievements": 4}
    assert found.direct_edges is not None
    assert not any("g" in edge for edge in found.direct_edges.missed + found.edges)


def test_only_as_many_episodes_as_fit() -> None:
    nu, labels = play(50, noise=0.05)
    found = discover(nu, labels, NODES, most=80)
    assert found.achievements <= 80 < found.achievements + len(nu[found.episodes])


def test_edges_are_compared() -> None:
    score = compare_edges(frozenset({("a", "b"), ("a", "c")}), EDGES)
    assert (score.found, score.extra) == ([("a", "b")], [("a", "c")])
    assert score.precision == 50 and score.recall == 25
    assert compare_edges(frozenset(), frozenset()).precision is None


def test_bad_input() -> None:
    nu, labels = play(5, noise=0.1)
    with pytest.raises(ConfigError, match=r"threshold is 0\.5"):
        discover(nu, labels, NODES, threshold=0.5)
    with pytest.raises(ConfigError, match="2 achievements are too few"):
        discover([nu[0][:2]], [labels[0][:2]], NODES)
