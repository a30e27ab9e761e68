"""How episodes end and where rare achievements are lost, agents side by side: tables and a picture.

Both are made from what `achieve failures` writes as JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from achieve.analysis.failures import ENDS, PARTS, Question, nights
from achieve.analysis.statistics import Interval, Share
from achieve.config import EXTERNAL
from achieve.viz.style import INK, LINE, colour, count, dress, legend_columns, new_figure
from achieve.viz.table import Column, Table

Record = Mapping[str, Any]
"""What `achieve failures` writes as JSON, or a part of it."""

NIGHT = "#e3e5f1"
_DEATHS = [
    Question(key, text.removeprefix("dies ").removeprefix("with ")) for key, text in ENDS if text.startswith("dies ")
]


def failures_tables(record: Record) -> list[Table]:
    """Return a table for each part, a column for each agent."""
    columns = [
        Column("episode", f"% of {count(record['episodes'], 'episode')}: the agent"),
        *(Column(agent["name"], agent["name"], Interval) for agent in record["agents"]),
    ]
    return [
        Table(
            f"failures-{number}",
            title,
            columns,
            [[question.text, *(_share(agent, question, record) for agent in record["agents"])] for question in part],
        )
        for number, (title, part) in enumerate(PARTS.items())
    ]


def failures_note(record: Record) -> str:
    """Say how the episodes were played, how long they were, and how long plants stood."""
    how = "greedy" if record["greedy"] else "sampled actions"
    # Which worlds an agent of another library has seen is not known.
    worlds = "random" if any(agent["preset"] == EXTERNAL for agent in record["agents"]) else "unseen"
    lines = [f"Final policies ({how}) in {worlds} worlds, seed {record['seed']}; in brackets, Wilson's 95 % intervals."]
    for agent in record["agents"]:
        lengths, stood = [episode["length"] for episode in agent["played"]], agent["longest_plant"]
        plants = (
            f"{count(agent['plants'], 'plant')}; where any was placed, the one that stood longest stood for "
            f"{np.median(stood):.0f} steps (median; at most {max(stood)})"
            if stood
            else "no plants"
        )
        lines.append(f"{agent['name']}: episodes of {np.median(lengths):.0f} steps (median); {plants}.")
    return "\n".join(lines)


def draw_failures(record: Record) -> Figure:
    """Draw how many episodes last how long, with the nights shaded, and the shares of every table as bars."""
    agents: Sequence[Record] = record["agents"]
    ways = [(title, part) for title, part in PARTS.items() if part is not ENDS]
    longest = max(len(part) for _, part in ways)
    heights = [1.3 + 0.08 * (1 + len(agents)) * lines for lines in (len(_DEATHS), longest)]
    figure = new_figure(12, sum(heights))
    # Each row has its own margins: the names of some bars are long.
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    alive, ending = upper.subplots(1, 2)
    _survival(alive, agents)
    _bars(ending, "The agent dies", _DEATHS, agents, len(_DEATHS))
    for axes, (title, part) in zip(lower.subplots(1, len(ways)), ways, strict=True):
        _bars(axes, title, part, agents, longest)
    handles, labels = alive.get_legend_handles_labels()
    columns = legend_columns(labels, 5)
    upper.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=9, labelcolor=INK
    )
    return figure


def _survival(axes: Axes, agents: Sequence[Record]) -> None:
    lengths = [np.sort([episode["length"] for episode in agent["played"]]) for agent in agents]
    longest = max(int(steps[-1]) for steps in lengths)
    for number, (first, last) in enumerate(nights(longest)):
        axes.axvspan(first, last, color=NIGHT, linewidth=0, label="" if number else "night", zorder=0)
    for number, (agent, steps) in enumerate(zip(agents, lengths, strict=True)):
        left = 100 * (1 - np.arange(1, len(steps) + 1) / len(steps))
        axes.step([0, *steps], [100, *left], where="post", color=colour(number), linewidth=1.8, label=agent["name"])
    dress(axes, "Episodes that have not ended", "step", "% of episodes")
    axes.set_xlim(0, longest)
    axes.set_ylim(0, 101)


def _bars(axes: Axes, title: str, part: Sequence[Question], agents: Sequence[Record], lines: int) -> None:
    """Draw a bar with its interval for each question and agent, from the top, with room for so many questions."""
    height = 0.8 / len(agents)
    for number, agent in enumerate(agents):
        shares = [agent["shares"][question.key] for question in part]
        at = np.arange(len(part)) - 0.4 + (number + 0.5) * height
        values = np.array([one["percent"] for one in shares])
        limits = np.array([one["interval"] for one in shares]).T
        axes.barh(at, values, 0.88 * height, color=colour(number))
        axes.errorbar(
            values, at, xerr=np.abs(limits - values), fmt="none", ecolor=INK, elinewidth=0.8, alpha=0.6, capsize=0
        )
    dress(axes, title, "% of episodes", grid="x")
    axes.set_yticks(range(len(part)), [question.text for question in part])
    axes.set_ylim(lines - 0.45, -0.55)
    axes.set_xlim(0, 101)
    axes.axvline(0, color=LINE, linewidth=0.8)


def _share(agent: Record, question: Question, record: Record) -> Share:
    one = agent["shares"][question.key]
    low, high = one["interval"]
    return Share(one["percent"], low, high, one["count"], record["episodes"])
