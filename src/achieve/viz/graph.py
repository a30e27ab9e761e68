"""Achievement graphs in layers, the recovered one below the true one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path

from achieve.analysis.graphs import Edge, Edges, closure, layers, reduction
from achieve.analysis.hierarchy import Hierarchy
from achieve.scoring.episodes import title_case
from achieve.viz.style import COLOURS, FAINT, INK, new_figure

RIGHT, IMPLIED, WRONG, MISSED = COLOURS[2], COLOURS[0], COLOURS[1], "#b8bfc7"
SWEEPS = 12
HALF = 0.36
"""Half a box's width, where the distance of two layers is one."""


class Node(NamedTuple):
    """A box: its lines of text, and whether it stands back."""

    lines: tuple[str, ...]
    faint: bool = False


def draw_hierarchy(hierarchy: Hierarchy, true: Edges | None, names: Sequence[str], title: str = "") -> Figure:
    """Draw the recovered graph, and above it the true one, where it is known, with what was found and missed."""
    clusters = {
        cluster.name: Node((title_case(cluster.name), f"{cluster.size}, {cluster.share:.0f} % pure"))
        for cluster in hierarchy.clusters
    }
    label = hierarchy.by_label
    panels: list[tuple[str, dict[str, Node], dict[Edge, tuple[str, Any]]]] = []
    if true is not None and hierarchy.direct is not None:
        labels = set(label.values())
        nodes = {name: Node((title_case(name),), faint=name not in labels) for name in names}
        panels.append(("The true graph", nodes, {e: _true_style(e, hierarchy) for e in reduction(true)}))
    styles = {edge: _found_style((label[edge[0]], label[edge[1]]), true) for edge in hierarchy.edges}
    panels.append(("The graph recovered without labels", clusters, styles))
    columns = [layers(nodes, edges) for _, nodes, edges in panels]
    widest = max(map(len, columns))
    heights = [max(map(len, each)) + 0.5 for each in columns]
    figure = new_figure(max(7.0, 1.45 * widest), 0.8 + 0.55 * sum(heights), dpi=110)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True)[:, 0]
    for axes, (heading, nodes, edges) in zip(grid, panels, strict=True):
        _graph(axes, nodes, edges)
        axes.set_title(heading, fontsize=11, color=INK, loc="left")
        axes.set_xlim(-0.6, widest - 0.4)
    if true is not None:
        figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False, fontsize=9, labelcolor=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK, fontweight="bold")
    return figure


def layout(nodes: Iterable[str], edges: Iterable[Edge]) -> dict[str, tuple[float, float]]:
    """Place each node: its depth from the left, and close to the mean row of its neighbours, swept to and fro."""
    nodes, edges = list(nodes), list(edges)
    columns = layers(nodes, edges)
    neighbours: dict[str, list[str]] = {name: [] for name in nodes}
    for one, other in edges:
        neighbours[one].append(other)
        neighbours[other].append(one)
    rows: dict[str, float] = {}

    def number(column: list[str]) -> None:
        rows.update({name: row - (len(column) - 1) / 2 for row, name in enumerate(column)})

    def mean_row(name: str) -> float:
        # A node without edges goes below the others, out of their way.
        return sum(rows[n] for n in neighbours[name]) / len(neighbours[name]) if neighbours[name] else 99.0

    for column in columns:
        number(column)
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            column.sort(key=mean_row)
            number(column)
    return {name: (float(depth), -rows[name]) for depth, column in enumerate(columns) for name in column}


def _graph(axes: Axes, nodes: Mapping[str, Node], edges: Mapping[Edge, tuple[str, Any]]) -> None:
    places = layout(nodes, edges)
    for name, node in nodes.items():
        x, y = places[name]
        face, edge = ("white", MISSED) if node.faint else ("#eef4fb", "#9db7d5")
        axes.annotate(
            "\n".join(node.lines), (x, y), ha="center", va="center", fontsize=7, linespacing=1.25, zorder=3,
            color=FAINT if node.faint else INK,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": face, "edgecolor": edge},
        )  # fmt: skip
    for (one, other), (colour, style) in edges.items():
        (x1, y1), (x2, y2) = places[one], places[other]
        start, end = x1 + HALF, x2 - HALF
        # From the right side of one box to the left side of the other, level at both ends.
        path = Path([(start, y1), (start + 0.3, y1), (end - 0.3, y2), (end, y2)], [Path.MOVETO] + [Path.CURVE4] * 3)
        axes.add_patch(
            FancyArrowPatch(
                path=path, arrowstyle="-|>", mutation_scale=8, color=colour, linestyle=style, linewidth=1.3, zorder=2
            )
        )
    ys = [y for _, y in places.values()] or [0.0]
    axes.set_ylim(min(ys) - 0.7, max(ys) + 0.7)
    axes.set_axis_off()


def _true_style(edge: Edge, hierarchy: Hierarchy) -> tuple[str, Any]:
    assert hierarchy.direct is not None and hierarchy.order is not None
    if edge in hierarchy.direct.found:
        return RIGHT, "solid"
    return (IMPLIED, "solid") if edge in hierarchy.order.found else (MISSED, (0, (3, 2)))


def _found_style(edge: Edge, true: Edges | None) -> tuple[str, Any]:
    if true is None:
        return FAINT, "solid"
    if edge in reduction(true):
        return RIGHT, "solid"
    return (IMPLIED if edge in closure(true) else WRONG), "solid"


def _legend() -> list[Line2D]:
    rows: tuple[tuple[str, Any, str], ...] = (
        (RIGHT, "solid", "true edge, found"),
        (IMPLIED, "solid", "true order, implied by other edges"),
        (WRONG, "solid", "false: a habit of the agent, or an error"),
        (MISSED, (0, (3, 2)), "true edge, missed"),
    )
    return [Line2D([], [], color=colour, linestyle=style, linewidth=1.6, label=text) for colour, style, text in rows]
