"""The paper's experiments: the published figures beside those of our runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from achieve.analysis.published import PUBLISHED, Published
from achieve.analysis.published import Figure as PublishedFigure
from achieve.analysis.runs import Gathered, Run
from achieve.analysis.statistics import PERCENT, Estimate, caution, improvement_with_interval, iqm_with_interval
from achieve.envs.worlds import find_world
from achieve.scoring.score import score_run
from achieve.viz.report.figures import Row, compact, comparison, curves
from achieve.viz.report.section import Picture, Section
from achieve.viz.report.table import NOT_PUBLISHED, NOT_RUN, Cell, Column, Interval, MeanStd, Missing, Table, estimate

SEEDS = 10
"""Seeds behind the published figures, and so what the commands ask for."""
FEW = Missing("one seed")
"""In place of a statistic that takes two."""


@dataclass(frozen=True)
class Heading:
    """How an experiment is introduced."""

    title: str
    about: str


HEADINGS: Mapping[str, Heading] = {
    "table1": Heading(
        "Table 1: scores and rewards in Crafter",
        "Geometric mean of the success rates of 22 achievements over all training episodes of 1M steps, "
        "and mean return of the episodes that ended in the last 100,000.",
    ),
    "figure-ppo": Heading(
        "PPO, from common practice to a strong baseline",
        "The motivation figure: a larger network, then its norms, then normalised values.",
    ),
    "ablation": Heading(
        "Ablation",
        "I: prediction within an episode; C: matching across episodes; M: the last achievement as memory.",
    ),
    "small": Heading("Small model", "The full method in a network of 1M parameters, between the full method and PPO."),
    "qrdqn": Heading("QR-DQN", "The value-based learner, with and without achievement distillation, in Crafter."),
    "heist": Heading(
        "Procgen Heist", "Hard mode, 25M steps: success rate of the gem, and mean return, over the last 1M steps."
    ),
    "minigrid": Heading(
        "MiniGrid",
        "A tree of doors and keys with ten achievements, 1M steps. The paper's layout is not published, so ours is "
        "another one: compare the agents with each other, not with the published figures.",
    ),
}

# What is set against what: every step of a ladder against the one before, and the method against its base.
_OVER: Mapping[str, Sequence[tuple[str, str]]] = {
    "table1": [("ad", "ppo")],
    "small": [("ad-small", "ppo")],
    "qrdqn": [("qrdqn-ad", "qrdqn")],
    "heist": [("heist-ad", "heist-ppo")],
    "minigrid": [("minigrid-ad", "minigrid-ppo")],
}


def experiment_section(name: str, gathered: Gathered) -> Section:
    """One of the paper's experiments: table, comparison, curves, and the command that makes it."""
    entries = PUBLISHED[name]
    runs = {entry.preset: gathered.seeds(entry.preset, entry.world) for entry in entries if entry.preset}
    there = {preset: found for preset, found in runs.items() if found}
    measure = _measure(entries[0].world)
    heading = HEADINGS[name]
    # An experiment of which only what is drawn elsewhere was run has nothing to add.
    new = there.keys() - _drawn_before(name)
    pictures = []
    if new:
        rows = [Row(method(entry), entry.score, _scores(runs.get(entry.preset or "", []))) for entry in entries]
        told = {entry.preset: entry.score for entry in entries if entry.preset and entry.score}
        pictures = [
            Picture(f"{name}-scores", f"Each seed's {measure}, beside the published one.", comparison(rows, measure)),
            Picture(f"{name}-curves", _caption(there), compact(curves(there, told))),
        ]
    tables = [_figures(name, entries, runs, measure)]
    if new:
        tables.append(_improvements(name, runs))
    if shorter := shorter_table(name, gathered):
        short = shorter_runs(name, gathered)
        tables.append(shorter)
        pictures.append(Picture(f"{name}-shorter", f"{_groups(short)}.", compact(curves(short))))
    missing = None
    if not new:
        missing = f"Not run{' to the end' if shorter else ''}{', except ' + ' and '.join(there) if there else ''}."
    return Section(
        key=name,
        title=heading.title,
        about=heading.about,
        tables=tables,
        pictures=pictures,
        commands=[f"achieve reproduce {name} --seeds 0-{SEEDS - 1}"],
        notes=[*_seed_notes(runs), *_caution(runs), *_uncounted(runs, gathered), f"Published: {_sources(entries)}."],
        missing=missing,
        collapsed=not there and not shorter,
    )


def shorter_runs(name: str, gathered: Gathered) -> dict[str, list[Run]]:
    """Runs that ended early, of the agents of this experiment that have no others."""
    own = {entry.preset: entry.world for entry in PUBLISHED[name] if entry.preset}
    found = {
        preset: gathered.shorter(preset, world)
        for preset, world in own.items()
        if preset not in _drawn_before(name) and not gathered.seeds(preset, world)
    }
    return {preset: runs for preset, runs in found.items() if runs}


def drawn_as_shorter(gathered: Gathered) -> set[Path]:
    """The folders of all runs that an experiment shows though they ended early."""
    return {run.path for name in PUBLISHED for runs in shorter_runs(name, gathered).values() for run in runs}


def _drawn_before(name: str) -> set[str]:
    """The method and its baseline, which Table 1 shows, and other experiments need not show again."""
    return set() if name == "table1" else {entry.preset for entry in PUBLISHED["table1"] if entry.preset}


def _uncounted(presets: Iterable[str], gathered: Gathered) -> list[str]:
    """A word on runs of these presets that do not count, each with its reason in the table of all runs."""
    some = [run for run in gathered.runs if run.preset in set(presets) and run.uncounted and not run.twin]
    shown = drawn_as_shorter(gathered)
    names = [run.path.name for run in some if run.path not in shown]
    return [f"Not counted, but drawn under Other runs: {', '.join(sorted(names))}."] if names else []


def method(entry: Published) -> str:
    """The paper's name of a method, which does not call it ours."""
    name = entry.method.replace("Ours", "achievement distillation")
    name = f"{name}, pre-trained" if entry.group == "Pre-training" else name
    return name[0].upper() + name[1:]


def printed(figure: PublishedFigure | None) -> Cell:
    """A published figure as a cell."""
    return NOT_PUBLISHED if figure is None else MeanStd(figure.mean, figure.std, figure.digits)


def interval(estimated: Estimate) -> Cell:
    """An estimate as a cell; of one seed alone there is none."""
    if estimated.interval is None:
        return FEW
    return Interval(estimated.value, estimated.low, estimated.high, str(estimated))


def _measure(world: str) -> str:
    goal = find_world(world).goal
    return "score %" if goal is None else f"{goal} success %"


def _scores(runs: Sequence[Run]) -> list[float]:
    return [run.score.score for run in runs]


def _figures(name: str, entries: Sequence[Published], runs: Mapping[str, Sequence[Run]], measure: str) -> Table:
    rewards = any(entry.reward for entry in entries)
    sizes = any(entry.parameters for entry in entries)
    columns = [
        Column("method", "method"),
        Column("preset", "preset"),
        *([Column("published_parameters", "published size", int)] if sizes else []),
        Column("published_score", f"published {measure}", MeanStd),
        *([Column("published_reward", "published reward", MeanStd)] if rewards else []),
        *([Column("parameters", "our size", int)] if sizes else []),
        Column("score", f"our {measure}", MeanStd),
        Column("reward", "our reward", MeanStd),
        Column("iqm", "IQM [95 %]", Interval),
        Column("seeds", "seeds", int),
    ]
    rows = []
    for entry in entries:
        found = runs.get(entry.preset or "", [])
        scores = [score for score in _scores(found) if math.isfinite(score)]
        row: list[Cell] = [method(entry), entry.preset or Missing("no preset")]
        row += [entry.parameters or Missing("-")] if sizes else []
        row += [printed(entry.score)]
        row += [printed(entry.reward)] if rewards else []
        row += [_size(found)] if sizes else []
        row += [estimate(scores), estimate([run.score.reward for run in found])]
        row += [interval(iqm_with_interval(scores, PERCENT)) if scores else NOT_RUN, len(found)]
        rows.append(row)
    return Table(name, HEADINGS[name].title, columns, rows)


def shorter_table(name: str, gathered: Gathered) -> Table | None:
    """An experiment's runs that ended early beside each other, read where the shortest of them ended."""
    short = shorter_runs(name, gathered)
    if not short:
        return None
    entries = PUBLISHED[name]
    at = min(run.score.read_at for runs in short.values() for run in runs)
    methods = {entry.preset: method(entry) for entry in entries}
    none = Missing("no episode")
    rows: list[list[Cell]] = []
    for preset, runs in short.items():
        for run in runs:
            read = score_run(run.episodes, run.summary.get("steps"), at, run.world)
            figures = [estimate([read.score], missing=none), estimate([read.reward], missing=none)]
            rows.append([methods[preset], preset, run.seed, at, *figures])
    columns = [
        Column("method", "method"),
        Column("preset", "preset"),
        Column("seed", "seed", int),
        Column("steps", "read at step", int),
        Column("score", _measure(entries[0].world), MeanStd),
        Column("reward", "reward", MeanStd),
    ]
    return Table(f"{name}-shorter", "Runs that did not go as far as the published ones", columns, rows)


def _size(runs: Sequence[Run]) -> Cell:
    known = {run.summary["parameters"] for run in runs if "parameters" in run.summary}
    return known.pop() if len(known) == 1 else Missing("unknown") if runs else NOT_RUN


def _improvements(name: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    pairs = _OVER.get(name) or [(later, earlier) for earlier, later in pairwise(runs)]
    rows: list[list[Cell]] = []
    for one, other in pairs:
        found: Cell = NOT_RUN
        if runs[one] and runs[other]:
            found = interval(improvement_with_interval(_scores(runs[one]), _scores(runs[other])))
        rows.append([one, other, found, len(runs[one]), len(runs[other])])
    columns = [
        Column("agent", "agent"),
        Column("over", "over"),
        Column("probability", "probability of improvement [95 %]", Interval),
        Column("seeds", "seeds", int),
        Column("seeds_over", "seeds of the other", int),
    ]
    return Table(f"{name}-improvement", "Probability that a run of one agent beats one of the other", columns, rows)


def _seed_notes(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """All seeds, by agent."""
    found = [f"{preset}: {', '.join(str(run.seed) for run in some)}" for preset, some in runs.items() if some]
    return [f"Seeds counted: {'; '.join(found)}."] if found else []


def _caution(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    told = caution((preset, len(some)) for preset, some in runs.items())
    return [told] if told else []


def _sources(entries: Sequence[Published]) -> str:
    return "; ".join(dict.fromkeys(entry.source for entry in entries))


def _caption(groups: Mapping[str, Sequence[Run]]) -> str:
    return f"{_groups(groups)}. Dotted: published, at the end."


def _groups(groups: Mapping[str, Sequence[Run]]) -> str:
    told = ", ".join(f"{preset} ({len(runs)} seed{'' if len(runs) == 1 else 's'})" for preset, runs in groups.items())
    several = any(len(runs) > 1 for runs in groups.values())
    return f"{told}{': mean and population deviation over seeds' if several else ''}"
