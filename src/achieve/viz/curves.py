"""Learning curves: score (or success rate) and mean return against environment steps."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from achieve.scoring.episodes import Episodes
from achieve.scoring.score import MeanStd, curve_grid, learning_curve
from achieve.viz.style import FAINT, INK, colour, dress, group_label, legend_columns, new_figure, note, short_number


class Baseline(NamedTuple):
    """An agent to compare with, drawn as a dashed line: its score (or success rate) and mean return."""

    label: str
    score: float
    mean_return: float


def draw_curves(
    groups: Mapping[str, Sequence[Episodes]],
    baseline: Baseline | None = None,
    published: Mapping[str, MeanStd] | None = None,
    goal: str | None = None,
) -> Figure:
    """Draw one line per group of runs: of several, their mean and population standard deviation.

    With a goal, its success rate replaces the score. published: final scores by group, as dotted lines in the colours
    of their groups.
    """
    figure = new_figure(9.6, 3.9)
    left, right = figure.subplots(1, 2)
    for number, (label, runs) in enumerate(groups.items()):
        grid, window = curve_grid(runs, recent=goal is not None)
        curves = [learning_curve(run, grid, window, goal) for run in runs]
        for axes, figures in ((left, "score"), (right, "mean_return")):
            values = np.array([getattr(curve, figures) for curve in curves])
            mean, std = values.mean(0), values.std(0)
            axes.plot(grid, mean, color=colour(number), linewidth=1.8, label=group_label(label, runs))
            if len(runs) > 1:
                axes.fill_between(grid, mean - std, mean + std, color=colour(number), alpha=0.18, linewidth=0)
    if baseline is not None:
        for axes, value, unit in ((left, baseline.score, " %"), (right, baseline.mean_return, "")):
            if np.isfinite(value):
                axes.axhline(value, color=FAINT, linewidth=1.3, linestyle=(0, (4, 3)), zorder=1)
                note(axes, f"{baseline.label} {value:.1f}{unit}", 0.99, value, "#57606a", "right")
    if goal is None:
        _dress(left, "Score over all episodes so far", "score (%)")
    else:
        _dress(left, f"Success rate of recent episodes: {goal}", "success rate (%)")
    _dress(right, "Mean return of recent episodes", "return")
    left.set_ylim(bottom=0)
    _levels(left, {label: (published or {}).get(label) for label in groups})
    handles, labels = left.get_legend_handles_labels()
    if len(labels) > 1:
        columns = legend_columns(labels, 4)
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, labelcolor=INK
        )
    return figure


def _levels(axes: Axes, published: Mapping[str, MeanStd | None]) -> None:
    highest = max((level.mean for level in published.values() if level), default=0.0)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.1 * highest))
    drawn: list[float] = []
    for number, (label, level) in enumerate(published.items()):
        if level is not None:
            axes.axhline(level.mean, color=colour(number), linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
            # A label that would lie on another's stands beside it.
            near = sum(abs(level.mean - other) < 0.05 * axes.get_ylim()[1] for other in drawn)
            drawn.append(level.mean)
            text = f"{label}, published {level.mean:.{level.digits}f} %"
            note(axes, text, 0.01 + 0.34 * near, level.mean, colour(number))


def _dress(axes: Axes, title: str, unit: str) -> None:
    dress(axes, title, "environment steps", unit)
    axes.set_xlim(left=0)
    axes.margins(x=0.01, y=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(short_number)
