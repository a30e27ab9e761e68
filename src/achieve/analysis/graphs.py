"""Achievement graphs as sets of edges, and the true ones of the worlds where they are known."""

from collections.abc import Iterable
from contextlib import closing

import networkx as nx

from achieve.config import EnvConfig
from achieve.envs import make_vec
from achieve.envs.crafter import data
from achieve.envs.registry import ENVIRONMENTS
from achieve.errors import ConfigError
from achieve.run.env_errors import making_env

Edge = tuple[str, str]
Edges = frozenset[Edge]


def crafter_requirements() -> Edges:
    """Return Crafter's graph, from the tables that its rules run on: (requirement, achievement).

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
    """Return the direct requirements in an environment, or None where they are not known.

    An environment of the user's own may say them in an attribute, `achievement_requirements`.
    """
    if env.name == "crafter":
        return crafter_requirements()
    if env.name == "minigrid":
        from achieve.envs.minigrid.tree import Tree

        shape = {name: value for name, value in env.own_settings.items() if name in ("depth", "branching")}
        with making_env(env.name):
            return frozenset(Tree.make(**shape, parents=env.own_settings.get("tree")).requirements)
    if env.name in ENVIRONMENTS:
        return None
    with making_env(env.name), closing(make_vec(env.name, num_envs=1, seed=0, threads=1, **env.arguments)) as envs:
        told = getattr(envs, "achievement_requirements", None)
    if told is None:
        return None
    if not nx.is_directed_acyclic_graph(nx.DiGraph(told)):
        raise ConfigError(f"the achievement_requirements of {env.name} go in a circle")
    return frozenset(told)


def closure(edges: Iterable[Edge]) -> Edges:
    """Return every pair of a node and one that a path leads to."""
    return frozenset(nx.transitive_closure(nx.DiGraph(list(edges))).edges)


def reduction(edges: Iterable[Edge]) -> Edges:
    """Return the fewest edges with the same closure. The graph has no cycle."""
    return frozenset(nx.transitive_reduction(nx.DiGraph(list(edges))).edges)


def layers(nodes: Iterable[str], edges: Iterable[Edge]) -> list[list[str]]:
    """Return the nodes by the length of the longest path to them, each layer in the order given. No cycle."""
    order = {node: place for place, node in enumerate(nodes)}
    graph = nx.DiGraph(list(edges))
    graph.add_nodes_from(order)
    return [sorted(layer, key=order.__getitem__) for layer in nx.topological_generations(graph)] or [[]]
