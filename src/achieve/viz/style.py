"""What all pictures share: colours, axes, names, and how they become files."""

import io
from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, which stays distinct for colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, LINE = "#24292f", "#8b949e", "#d0d7de"


def colour(number: int) -> str:
    """Return the colour of the n-th series, over again where there are many."""
    return COLOURS[number % len(COLOURS)]


def new_figure(width: float, height: float, dpi: int = 150) -> Figure:
    """Return an empty figure that needs no display."""
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained", facecolor="white")


def dress(axes: Axes, title: str = "", x: str = "", y: str = "", grid: Literal["both", "x", "y"] = "both") -> None:
    """Give axes their labels and the look that all pictures share."""
    axes.set_title(title, fontsize=10.5, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, length=0, which="both")
    axes.grid(color=LINE, linewidth=0.6, alpha=0.7, axis=grid)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)


def note(axes: Axes, text: str, x: float, y: float, colour: str, align: Literal["left", "right"] = "left") -> None:
    """Write a line just above a height of the y axis, ``x`` of the way along the x axis."""
    axes.annotate(
        text, (x, y), xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points", ha=align,
        fontsize=8, color=colour, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0}, zorder=5,
    )  # fmt: skip


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file."""
    buffer = io.BytesIO()
    # No metadata, so that the same data give the same file.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def legend_columns(labels: Sequence[str], most: int) -> int:
    """Return how many entries of a legend fit side by side."""
    return max(1, min(len(labels), most, 120 // max(map(len, labels))))


def short_number(value: float, _: object = None) -> str:
    """Return `250k`, `1M`, `1.2M`; as matplotlib calls it, for the ticks of an axis."""
    if abs(value) >= 999_500:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if abs(value) >= 1000 else f"{value:g}"


def group_label(label: str, runs: Sequence[object]) -> str:
    """Return a group's name in a legend: `ad (3 runs)`, and `ad` of a single run."""
    return f"{label} ({len(runs)} runs)" if len(runs) > 1 else label


def count(number: int, noun: str) -> str:
    """Return `1 seed`, `3 seeds`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
