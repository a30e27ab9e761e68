"""Histograms of confidence, one outline per agent over the same bins."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from achieve.viz.style import INK, colour, dress, new_figure


def draw_confidence(panels: Mapping[str, Mapping[str, tuple[Sequence[float], float]]]) -> Figure:
    """Draw a panel for each entry; in it, for each agent, its bars (shares of equal bins of 0..1) and its median."""
    figure = new_figure(4.8 * len(panels), 3.7)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, agents) in zip(grid, panels.items(), strict=True):
        dress(axes, title, "confidence in the true next achievement", grid="y")
        for number, (agent, (bars, median)) in enumerate(agents.items()):
            edges = np.linspace(0, 1, len(bars) + 1)
            axes.stairs(bars, edges, fill=True, alpha=0.22, color=colour(number))
            label = f"{agent} (median {median:.3f})"
            axes.stairs(bars, edges, color=colour(number), linewidth=1.4, label=label)
            axes.axvline(median, color=colour(number), linewidth=1.1, linestyle=(0, (4, 3)))
        axes.set_xlim(0, 1)
        axes.legend(fontsize=8, labelcolor=INK, loc="upper center", framealpha=0.9, edgecolor="none")
    highest = max((max(bars) for agents in panels.values() for bars, _ in agents.values()), default=1.0)
    grid[0].set_ylim(0, 1.3 * highest)  # shared, with room for the legend
    grid[0].set_ylabel("share of test states")
    return figure
