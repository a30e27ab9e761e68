"""Which achievement needs which: graphs as sets of edges, and the true ones of the worlds we know."""

from __future__ import annotations

from collections.abc import Iterable

from achieve.config import EnvConfig
from achieve.envs.crafter import data
from achieve.run.env_errors import making_env

Edge = tuple[str, str]
Edges = frozenset[Edge]


def crafter_requirements() -> Edges:
    """Crafter's graph, read off the tables that its rules run on: (needed, for what).

    A tool needed to collect something must have been made, a material used up must have been collected, and what must
    stand nearby must have been placed. No table says that a plant is eaten after it was placed: none grows wild.
    """
    edges: set[Edge] = {("place_plant", "eat_plant")}
    for recipe in data.COLLECT.values():
        (item,) = recipe["receive"]
        edges |= {(f"make_{tool}", f"collect_{item}") for tool in recipe["require"]}
    for thing, recipe in data.PLACE.items():
        edges |= {(f"collect_{item}", f"place_{thing}") for item in recipe["uses"]}
    for tool, recipe in data.MAKE.items():
        edges |= {(f"collect_{item}", f"make_{tool}") for item in recipe["uses"]}
        edges |= {(f"place_{thing}", f"make_{tool}") for thing in recipe["nearby"]}
    return frozenset(edges)


def true_requirements(env: EnvConfig) -> Edges | None:
    """The direct requirements in a world, or None where they are not written down (Heist, worlds of others)."""
    if env.name == "crafter":
        return crafter_requirements()
    if env.name == "minigrid":
        from achieve.envs.minigrid.tree import Tree

        shape = {name: value for name, value in env.own_settings.items() if name in ("depth", "branching")}
        with making_env(env.name):
            return frozenset(Tree.make(**shape, parents=env.own_settings.get("tree")).requirements)
    return None


def closure(edges: Iterable[Edge]) -> Edges:
    """Every pair of a node and one that a path leads to."""
    after: dict[str, set[str]] = {}
    for one, other in edges:
        after.setdefault(one, set()).add(other)
    found: set[Edge] = set()
    for start in after:
        open_nodes, seen = [start], set[str]()
        while open_nodes:
            for node in after.get(open_nodes.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    open_nodes.append(node)
        found |= {(start, node) for node in seen}
    return frozenset(found)


def reduction(edges: Iterable[Edge]) -> Edges:
    """The fewest edges with the same closure: those that no longer path stands for. The graph has no cycle."""
    edges = frozenset(edges)
    reach = closure(edges)
    nodes = {node for edge in edges for node in edge}
    return frozenset(
        (a, b) for a, b in edges if not any((a, c) in reach and (c, b) in reach for c in nodes if c not in (a, b))
    )


def depths(nodes: Iterable[str], edges: Iterable[Edge]) -> dict[str, int]:
    """For each node the length of the longest path to it. The graph has no cycle."""
    before: dict[str, list[str]] = {}
    for one, other in edges:
        before.setdefault(other, []).append(one)
    found: dict[str, int] = {}

    def depth(node: str) -> int:
        if node not in found:
            found[node] = max((depth(b) + 1 for b in before.get(node, ())), default=0)
        return found[node]

    return {node: depth(node) for node in nodes}
