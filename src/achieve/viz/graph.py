"""Achievement graphs in layers, the recovered one below the true one."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path

from achieve.analysis.graphs import Edge, Edges, closure, layers, reduction
from achieve.analysis.hierarchy import Hierarchy
from achieve.scoring.episodes import title_case
from achieve.viz.style import COLOURS, FAINT, INK, new_figure

SWEEPS = 12
COLUMN = 1.45
"""Inches from layer to layer."""
HALF = 0.36
"""Half a box's width, where the distance of two layers is one."""

STYLES: Mapping[str, tuple[str, Any, str]] = {
    "found": (COLOURS[2], "solid", "true edge, found"),
    "implied": (COLOURS[0], "solid", "true order, implied by other edges"),
    "false": (COLOURS[1], "solid", "false: a habit of the agent, or an error"),
    "missed": ("#b8bfc7", (0, (3, 2)), "true edge, missed"),
    "unknown": (FAINT, "solid", ""),
}
"""By what an edge is: its colour and line, and what the legend says."""


def draw_hierarchy(hierarchy: Hierarchy, true: Edges | None, names: Sequence[str], title: str = "") -> Figure:
    """Draw the recovered graph, and above it the true one, where it is known, with what was found and missed."""
    label = {cluster.name: cluster.label for cluster in hierarchy.clusters}
    panels: list[tuple[str, dict[str, str], dict[Edge, str]]] = []
    kinds = dict.fromkeys(hierarchy.edges, "unknown")
    if true is not None and hierarchy.direct_edges and hierarchy.order:
        direct, order = reduction(true), closure(true)
        found = dict.fromkeys(hierarchy.order.found, "implied") | dict.fromkeys(hierarchy.direct_edges.found, "found")
        boxes = {name: title_case(name) for name in names}
        panels.append(("The true graph", boxes, {edge: found.get(edge, "missed") for edge in sorted(direct)}))
        for a, b in hierarchy.edges:
            edge = (label[a], label[b])
            kinds[a, b] = "found" if edge in direct else "implied" if edge in order else "false"
    boxes = {c.name: f"{title_case(c.name)}\n{c.size}, {c.share:.0f} % pure" for c in hierarchy.clusters}
    panels.append(("The graph recovered without labels", boxes, kinds))
    columns = [layers(boxes, edges) for _, boxes, edges in panels]
    widest = max(map(len, columns))
    heights = [max(map(len, each)) + 0.5 for each in columns]
    columns_wide = max(7.0 / COLUMN, float(widest))  # a few do not fill the figure: boxes have the width of their text
    figure = new_figure(COLUMN * columns_wide, 0.8 + 0.55 * sum(heights), dpi=110)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True)[:, 0]
    for axes, (heading, boxes, edges) in zip(grid, panels, strict=True):
        # Of the true graph, what no cluster is named after stands back.
        _graph(axes, boxes, edges, faint=set(boxes) - {*label, *label.values()})
        axes.set_title(heading, fontsize=11, color=INK, loc="left")
        axes.set_xlim(-0.6, columns_wide - 0.4)
    if true is not None:
        told = [STYLES[kind] for kind in ("found", "implied", "false", "missed")]
        lines = [Line2D([], [], color=c, linestyle=style, linewidth=1.6, label=text) for c, style, text in told]
        figure.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=9, labelcolor=INK)
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


def _graph(axes: Axes, boxes: Mapping[str, str], edges: Mapping[Edge, str], faint: Collection[str]) -> None:
    """Draw boxes with their texts, and edges by what they are; boxes in ``faint`` stand back."""
    places = layout(boxes, edges)
    for name, text in boxes.items():
        face, rim, ink = ("white", STYLES["missed"][0], FAINT) if name in faint else ("#eef4fb", "#9db7d5", INK)
        axes.annotate(
            text, places[name], ha="center", va="center", fontsize=7, linespacing=1.25, zorder=3, color=ink,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": face, "edgecolor": rim},
        )  # fmt: skip
    for (one, other), kind in edges.items():
        (x1, y1), (x2, y2) = places[one], places[other]
        start, end = x1 + HALF, x2 - HALF
        # From the right side of one box to the left side of the other, level at both ends.
        path = Path([(start, y1), (start + 0.3, y1), (end - 0.3, y2), (end, y2)], [Path.MOVETO] + [Path.CURVE4] * 3)
        colour, style, _ = STYLES[kind]
        axes.add_patch(
            FancyArrowPatch(
                path=path, arrowstyle="-|>", mutation_scale=8, color=colour, linestyle=style, linewidth=1.3, zorder=2
            )
        )
    ys = [y for _, y in places.values()] or [0.0]
    axes.set_ylim(min(ys) - 0.7, max(ys) + 0.7)
    axes.set_axis_off()
