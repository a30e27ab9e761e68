"""Matrices of two episodes' achievements as labelled heat maps, and how matchings improve through training."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from achieve.scoring.episodes import title_case
from achieve.viz.style import COLOURS, INK, LINE, colour, dress, new_figure, short_number

RIGHT, WRONG = COLOURS[2], COLOURS[1]


class Panel(NamedTuple):
    """A matrix to draw: ``values`` [m, n] in 0..``top``; ``matches`` a mask whose cells get a dot."""

    title: str
    values: ArrayLike
    top: float = 1.0
    matches: ArrayLike | None = None
    colours: str = "Blues"


def draw_matrices(
    rows: Mapping[str, Sequence[Panel]], first: Sequence[str], second: Sequence[str], same: ArrayLike
) -> Figure:
    """Draw one row of panels per agent, over the same two episodes.

    first, second: names of the achievements along the two sides; same: mask [m, n] of the true matches, whose cells are
    framed. A dot is a match: green where it is right, red where it is wrong.
    """
    truth = np.asarray(same, np.bool_)
    columns = len(next(iter(rows.values())))
    cell = 0.17
    width, height = 1.4 + cell * len(second), 1.5 + cell * len(first)
    figure = new_figure(columns * max(width, 2.6), len(rows) * max(height, 2.4), dpi=110)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (agent, panels) in zip(grid, rows.items(), strict=True):
        for number, (axes, panel) in enumerate(zip(line, panels, strict=True)):
            _matrix(axes, panel, [""] * len(first) if number else first, second, truth)
        line[0].set_ylabel(agent, fontsize=11, color=INK, fontweight="bold")
    return figure


def draw_stages(
    steps: Sequence[float], lines: Mapping[str, Sequence[float]], label: str = "environment steps"
) -> Figure:
    """Draw percentages through training, one line each; "Hungarian" lines are dashed."""
    figure = new_figure(6.2, 3.6)
    axes = figure.subplots()
    for number, (name, values) in enumerate(lines.items()):
        style: Any = (0, (4, 3)) if "ungarian" in name else "solid"
        axes.plot(
            steps, values, "o", color=colour(number % 2), linestyle=style, linewidth=1.7, markersize=3.5, label=name
        )
    dress(axes, x=label, y="%")
    axes.set_ylim(0, 102)
    axes.xaxis.set_major_formatter(short_number)
    axes.legend(fontsize=8.5, frameon=False, labelcolor=INK, loc="lower right")
    return figure


def _matrix(axes: Axes, panel: Panel, first: Sequence[str], second: Sequence[str], truth: np.ndarray) -> None:
    axes.imshow(np.asarray(panel.values, np.float64), cmap=panel.colours, vmin=0, vmax=panel.top, aspect="equal")
    for i, j in np.argwhere(truth):
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=0.8))
    for i, j in np.argwhere([] if panel.matches is None else panel.matches):
        axes.plot(j, i, "o", markersize=4.5, color=RIGHT if truth[i, j] else WRONG, markeredgewidth=0)
    axes.set_title(panel.title, fontsize=9.5, color=INK)
    axes.set_xticks(range(len(second)), list(map(title_case, second)), rotation=90, fontsize=6.5)
    axes.set_yticks(range(len(first)), list(map(title_case, first)), fontsize=6.5)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_color(LINE)
