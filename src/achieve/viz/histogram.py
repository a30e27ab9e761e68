"""Histograms of confidence, one outline per agent over the same bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from achieve.viz.curves import COLOURS, INK


def draw_confidence(panels: Mapping[str, Mapping[str, tuple[Sequence[float], float]]]) -> Figure:
    """One panel for each entry; in it, for each agent, its bars (shares of equal bins of 0..1) and its median."""
    figure = Figure(figsize=(4.8 * len(panels), 3.7), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for at, (title, agents) in zip(axes, panels.items(), strict=True):
        for number, (agent, (bars, median)) in enumerate(agents.items()):
            _bars(at, bars, median, agent, COLOURS[number % len(COLOURS)])
        _dress(at, title)
    highest = max((max(bars) for agents in panels.values() for bars, _ in agents.values()), default=1.0)
    axes[0].set_ylim(0, 1.3 * highest)  # shared, with room for the legend
    axes[0].set_ylabel("share of test states", fontsize=9, color=INK)
    return figure


def _bars(axes: Axes, bars: Sequence[float], median: float, label: str, colour: str) -> None:
    edges = np.linspace(0, 1, len(bars) + 1)
    axes.stairs(bars, edges, fill=True, alpha=0.22, color=colour)
    axes.stairs(bars, edges, color=colour, linewidth=1.4, label=f"{label} (median {median:.3f})")
    axes.axvline(median, color=colour, linewidth=1.1, linestyle=(0, (4, 3)))


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10.5, color=INK, loc="left")
    axes.set_xlabel("confidence in the true next achievement", fontsize=9, color=INK)
    axes.set_xlim(0, 1)
    axes.tick_params(labelsize=8.5, colors=INK, length=0)
    axes.grid(color="#d0d7de", linewidth=0.6, alpha=0.7, axis="y")
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, labelcolor=INK, loc="upper center", framealpha=0.9, edgecolor="none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
