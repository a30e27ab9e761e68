"""Learning curves: the world's measure and the mean return against environment steps."""

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from achieve.scoring.episodes import Episodes
from achieve.scoring.score import curve_grid, learning_curve, mean_std

# Okabe and Ito's palette, which stays distinct for colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT = "#24292f", "#8b949e"


class Baseline(NamedTuple):
    """An agent to compare with, drawn as a dashed line: its score (or success rate) and mean return."""

    label: str
    score: float
    mean_return: float


def draw_curves(
    groups: Mapping[str, Sequence[Episodes]],
    baseline: Baseline | None = None,
    title: str = "",
    points: int = 200,
    goal: str | None = None,
) -> Figure:
    """One line per group of runs; a group of several shows their mean and population deviation.

    With a goal, its success rate is drawn in the score's place.
    """
    figure = Figure(figsize=(9.6, 3.9), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for (label, runs), colour in zip(groups.items(), _cycle(len(groups)), strict=True):
        grid, window = curve_grid(runs, points, recent=goal is not None)
        curves = [learning_curve(run, grid, window, goal) for run in runs]
        name = f"{label} ({len(runs)} runs)" if len(runs) > 1 else label
        _line(left, grid, np.array([curve.score for curve in curves]), name, colour)
        _line(right, grid, np.array([curve.mean_return for curve in curves]), name, colour)
    if baseline is not None:
        _level(left, baseline.score, baseline.label, "{:.1f} %")
        _level(right, baseline.mean_return, baseline.label, "{:.1f}")
    if goal is None:
        _dress(left, "Score of all episodes so far", "score (%)")
    else:
        _dress(left, f"Success rate of recent episodes: {goal}", "success rate (%)")
    _dress(right, "Mean return of recent episodes", "return")
    left.set_ylim(bottom=0)
    handles, labels = left.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=legend_columns(labels, 4),
            frameon=False,
            fontsize=9,
            labelcolor=INK,
        )
    if title:
        figure.suptitle(title, fontsize=12, color=INK, fontweight="bold")
    return figure


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    # No metadata, so that the same data give the same file.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _line(axes: Axes, grid: np.ndarray, values: np.ndarray, label: str, colour: str) -> None:
    mean, std = mean_std(values)
    axes.plot(grid, mean, color=colour, linewidth=1.8, label=label)
    if len(values) > 1:
        axes.fill_between(grid, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)


def _level(axes: Axes, value: float, label: str, form: str) -> None:
    if not np.isfinite(value):
        return
    axes.axhline(value, color=FAINT, linewidth=1.3, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"{label} {form.format(value)}",
        (0.99, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="#57606a",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0},
        zorder=5,
    )


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=10.5, color=INK, loc="left")
    axes.set_xlabel("environment steps", fontsize=9, color=INK)
    axes.set_ylabel(unit, fontsize=9, color=INK)
    axes.set_xlim(left=0)
    axes.margins(x=0.01, y=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.tick_params(labelsize=8.5, colors=INK, length=0)
    axes.grid(color="#d0d7de", linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#d0d7de")


def legend_columns(labels: Sequence[str], most: int) -> int:
    """So many entries beside each other as fit under a figure."""
    return max(1, min(len(labels), most, 120 // max(map(len, labels))))


def short_number(value: float) -> str:
    """`250k`, `1M`, `1.2M`."""
    if abs(value) >= 999_500:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if abs(value) >= 1000 else f"{value:g}"


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
