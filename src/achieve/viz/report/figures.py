"""The report's pictures: each experiment's figures beside the published ones, and its learning curves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from achieve.analysis.published import Figure as PublishedFigure
from achieve.analysis.runs import Run
from achieve.viz.curves import COLOURS, FAINT, INK, draw_curves, png

OURS = COLOURS[0]
COLOURS_KEPT = 128


@dataclass(frozen=True)
class Row:
    """One agent: what was published for it, and what each of our seeds reached."""

    label: str
    published: PublishedFigure | None
    ours: Sequence[float]


def comparison(rows: Sequence[Row], unit: str) -> bytes:
    """Our seeds as dots around their mean, the published mean ± deviation as a grey diamond above. PNG."""
    figure = Figure(figsize=(9.6, 0.9 + 0.5 * len(rows)), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        if row.published is not None:
            axes.errorbar(
                row.published.mean, place - 0.16, xerr=row.published.std, fmt="D", color=FAINT,
                markersize=6, capsize=3, linewidth=1.3,
            )  # fmt: skip
        values = [value for value in row.ours if np.isfinite(value)]
        if values:
            axes.plot(values, np.full(len(values), place + 0.16), "o", color=OURS, alpha=0.45, markersize=6, mew=0)
            mean = float(np.mean(values))
            axes.plot([mean, mean], [place + 0.02, place + 0.3], color=OURS, linewidth=2.4)
        else:
            axes.annotate(
                "not run", (0.005, place + 0.16), xycoords=("axes fraction", "data"),
                va="center", fontsize=8.5, color=FAINT, style="italic",
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.margins(x=0.05)
    axes.set_xlabel(unit, fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(axis="x", color="#d0d7de", linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#d0d7de")
    figure.legend(
        handles=[
            Line2D([], [], color=FAINT, marker="D", linestyle="", label="published, mean ± std"),
            Line2D([], [], color=OURS, marker="o", linestyle="", alpha=0.45, label="this software, each seed"),
            Line2D([], [], color=OURS, marker="|", markersize=11, mew=2.4, linestyle="", label="their mean"),
        ],
        loc="outside upper right", ncols=3, frameon=False, fontsize=8.5, labelcolor=INK,
    )  # fmt: skip
    return compact(figure)


def compact(figure: Figure, **told: str) -> bytes:
    """PNG with a palette: a third of the size, and few colours are all a drawing has. Texts go into its metadata."""
    with Image.open(io.BytesIO(png(figure))) as image:
        drawing = image.convert("RGB").quantize(COLOURS_KEPT, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer, info = io.BytesIO(), PngInfo()
    for name, text in told.items():
        info.add_text(name, text)
    drawing.save(buffer, format="png", optimize=True, pnginfo=info)
    return buffer.getvalue()


def curves(groups: Mapping[str, Sequence[Run]], published: Mapping[str, PublishedFigure] | None = None) -> Figure:
    """Mean and spread of each group through training, with the published final figure as a dotted level.

    The runs are of one world, and each has finished an episode. The levels carry the colours of their groups.
    """
    goal = next(run for runs in groups.values() for run in runs).world.goal
    figure = draw_curves({label: [run.episodes for run in runs] for label, runs in groups.items()}, goal=goal)
    left = figure.axes[0]
    levels = {label: level for label in groups if (level := (published or {}).get(label))}
    top = max((level.mean for level in levels.values()), default=0.0)
    left.set_ylim(top=max(left.get_ylim()[1], 1.1 * top))
    taken: list[float] = []
    for label, level in levels.items():
        colour = COLOURS[list(groups).index(label) % len(COLOURS)]
        left.axhline(level.mean, color=colour, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
        # A label that would lie on another's stands beside it.
        near = sum(abs(level.mean - other) < 0.05 * left.get_ylim()[1] for other in taken)
        taken.append(level.mean)
        left.annotate(
            f"{label}, published {level.mean:.{level.digits}f} %", (0.01 + 0.34 * near, level.mean),
            xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points", fontsize=8, color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0}, zorder=5,
        )  # fmt: skip
    return figure
