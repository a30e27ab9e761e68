"""What the page is made of, and its pictures."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from achieve.analysis.runs import Run
from achieve.scoring.score import MeanStd
from achieve.viz.curves import draw_curves
from achieve.viz.style import COLOURS, FAINT, INK, dress, new_figure, png
from achieve.viz.table import Table

OURS = COLOURS[0]
COLOURS_KEPT = 128


@dataclass(frozen=True)
class Media:
    """A PNG or MP4 with its caption; `name` is the stem of its file."""

    name: str
    caption: str
    data: bytes


@dataclass
class Section:
    """A part of the page under one heading."""

    key: str
    title: str
    about: str = ""
    tables: list[Table] = field(default_factory=list)
    pictures: list[Media] = field(default_factory=list)
    videos: list[Media] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """What to type to get it, or more of it."""
    notes: list[str] = field(default_factory=list)
    folded: list[tuple[str, str]] = field(default_factory=list)
    """Long texts behind a title, opened by a click."""
    missing: str | None = None
    """What to say where nothing was run."""
    collapsed: bool = False
    """Whether it holds none of our runs: it then stands at the end, and is opened by a click."""


def draw_scores(scores: Mapping[str, tuple[MeanStd | None, Sequence[float]]], unit: str) -> bytes:
    """Draw each agent's published score as a grey diamond, and below it our seeds as dots around their mean. PNG."""
    figure = new_figure(9.6, 0.9 + 0.5 * len(scores))
    axes = figure.subplots()
    for place, (published, ours) in enumerate(scores.values()):
        if published is not None:
            axes.errorbar(
                published.mean, place - 0.16, xerr=published.std, fmt="D", color=FAINT,
                markersize=6, capsize=3, linewidth=1.3,
            )  # fmt: skip
        if values := [value for value in ours if np.isfinite(value)]:
            axes.plot(values, np.full(len(values), place + 0.16), "o", color=OURS, alpha=0.45, markersize=6, mew=0)
            axes.plot([np.mean(values)] * 2, [place + 0.02, place + 0.3], color=OURS, linewidth=2.4)
        else:
            axes.annotate(
                "not run", (0.005, place + 0.16), xycoords=("axes fraction", "data"),
                va="center", fontsize=8.5, color=FAINT, style="italic",
            )  # fmt: skip
    dress(axes, x=unit, grid="x")
    axes.set_yticks(range(len(scores)), list(scores), fontsize=9)
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.margins(x=0.05)
    figure.legend(
        handles=[
            Line2D([], [], color=FAINT, marker="D", linestyle="", label="published, mean ± std"),
            Line2D([], [], color=OURS, marker="o", linestyle="", alpha=0.45, label="ours, each seed"),
            Line2D([], [], color=OURS, marker="|", markersize=11, mew=2.4, linestyle="", label="ours, mean"),
        ],
        loc="outside upper right", ncols=3, frameon=False, fontsize=8.5, labelcolor=INK,
    )  # fmt: skip
    return compact(figure)


def draw_runs(groups: Mapping[str, Sequence[Run]], published: Mapping[str, MeanStd] | None = None) -> Figure:
    """Draw the learning curves of groups of runs in one environment; `published` are final scores."""
    goal = next(run for runs in groups.values() for run in runs).spec.goal
    episodes = {label: [run.episodes for run in runs] for label, runs in groups.items()}
    return draw_curves(episodes, published=published, goal=goal)


def compact(figure: Figure, **metadata: str) -> bytes:
    """Return a PNG with a palette, a third of the size: few colours are all a drawing has."""
    with Image.open(io.BytesIO(png(figure))) as image:
        drawing = image.convert("RGB").quantize(COLOURS_KEPT, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer, info = io.BytesIO(), PngInfo()
    for name, text in metadata.items():
        info.add_text(name, text)
    drawing.save(buffer, format="png", optimize=True, pnginfo=info)
    return buffer.getvalue()
