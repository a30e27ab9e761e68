"""Success rates of all achievements on a log axis, ours beside published ones."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from achieve.analysis.published import HUMAN_SUCCESS_RATES, SUCCESS_CLAIMS
from achieve.scoring.episodes import title_case
from achieve.viz.style import INK, colour, dress, group_label, legend_columns, new_figure

FLOOR = 0.001
"""The lowest rate on the axis, percent. An agent that never succeeds has no bar, and a cross on the floor instead."""


def draw_success_rates(
    groups: Mapping[str, Sequence[ArrayLike]], names: Sequence[str], *, crafter: bool = False
) -> Figure:
    """Draw one bar per achievement and group.

    groups: by label, success rates in percent [A] of each run; the bar is their mean, a dot each run where there are
    several. In Crafter, human players' rates are grey bars, and beside the full method, called `ad`, those that the
    paper's text gives are lines across the bars of their achievement.
    """
    figure = new_figure(max(9.6, 0.42 * len(names) + 1), 4.2)
    axes = figure.subplots()
    width = 0.8 / max(len(groups) + crafter, 1)
    at = np.arange(len(names), dtype=np.float64)
    for number, (label, runs) in enumerate(groups.items()):
        rates = np.array([np.asarray(run, np.float64) for run in runs]).reshape(len(runs), len(names))
        where, mean = at - 0.4 + (number + 0.5) * width, rates.mean(0)
        bars = np.where(mean > 0, mean, np.nan)
        axes.bar(where, bars, width * 0.92, bottom=0, color=colour(number), label=group_label(label, runs))
        never = where[mean == 0]
        axes.plot(never, np.full(len(never), FLOOR * 1.25), "x", color=colour(number), markersize=4)
        if len(runs) > 1:
            for run in rates:
                axes.plot(where[run > 0], run[run > 0], "o", color=INK, markersize=1.8, alpha=0.55, markeredgewidth=0)
    if crafter:
        human = [HUMAN_SUCCESS_RATES.get(name, np.nan) for name in names]
        where = at - 0.4 + (len(groups) + 0.5) * width
        axes.bar(where, human, width * 0.92, color="0.55", label="human players")
        if "ad" in groups:
            _mark_claims(axes, list(names))
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 130)
    axes.set_xlim(-0.7, len(names) - 0.3)
    dress(axes, y="success rate (%)", grid="y")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(at, [title_case(name) for name in names], rotation=40, ha="right", fontsize=8)
    columns = legend_columns(axes.get_legend_handles_labels()[1], 5)
    figure.legend(loc="outside upper center", ncols=columns, frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def _mark_claims(axes: Axes, names: list[str]) -> None:
    label = "full method, from the paper's text"
    for name, (relation, percent) in SUCCESS_CLAIMS.items():
        if name in names:
            at = names.index(name)
            axes.hlines(percent, at - 0.45, at + 0.45, colors=INK, linewidth=1.3, label=label)
            axes.annotate(
                f"{relation} {percent:g}", (at, percent), xytext=(0, 3.5), textcoords="offset points", ha="center",
                fontsize=6.5, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
            )  # fmt: skip
            label = "_"  # one entry in the legend stands for all
