"""The paper's experiments: the published figures beside those of our runs, where the two can be compared."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from achieve.analysis.published import PUBLISHED, Published
from achieve.analysis.runs import Gathered, Run, at_equal_steps
from achieve.analysis.statistics import PERCENT, Interval, caution, difference, improvement, iqm_with_interval
from achieve.envs.registry import find_env_spec
from achieve.scoring.score import MeanStd
from achieve.viz.report.section import Media, Section, compact, draw_runs, draw_scores
from achieve.viz.style import count
from achieve.viz.table import NOT_PUBLISHED, NOT_RUN, ONE_SEED, Cell, Missing, Table, estimate, tabulate

SEEDS = 10
"""Seeds behind the published figures, and so what the commands ask for."""
NO_EPISODE = Missing("no episode")
RECORDED = Missing("recorded")
OTHER_LAYOUT = Missing("other layout")
Runs = Mapping[str, Sequence[Run]]

HEADINGS: Mapping[str, tuple[str, str]] = {
    "table1": (
        "Table 1: scores and rewards in Crafter",
        "Score: geometric mean of the success rates of 22 achievements over all training episodes within 1M steps. "
        "Reward: mean return of the episodes that ended in the last 100,000 of them.",
    ),
    "figure-ppo": (
        "PPO, from common practice to a strong baseline",
        "The motivating figure: a larger network, then layer normalisation, then value normalisation.",
    ),
    "ablation": (
        "Ablation",
        "I: intra-trajectory prediction; C: cross-trajectory matching; M: the last achievement as memory.",
    ),
    "small": ("Small model", "The full method in a network of 1M parameters, between the full method and PPO."),
    "recurrent": ("Recurrent core", "Not in the paper: a GRU between encoder and heads (docs/recurrent.md)."),
    "beyond": (
        "Beyond the paper",
        "Not in the paper: a small agent that reads tiles as tokens and imitates rare unlocks (docs/beyond.md). It is "
        "told the grid of Crafter's images, as the others are not.",
    ),
    "qrdqn": ("QR-DQN", "The value-based learner, with and without achievement distillation, in Crafter."),
    "heist": ("Procgen Heist", "Hard mode, 25M steps: success rate of the gem and mean return over the last 1M steps."),
    "minigrid": (
        "MiniGrid",
        "A tree of doors and keys with ten achievements, 1M steps. The paper's layout is not published. Of ours, the "
        "time limit was chosen to bring PPO near the published score, by one seed for each limit; over three seeds, "
        "PPO's mean is still far above it. So agents can be compared with each other, but not with the published "
        "figures. A run gets past the second door and then nearly to the end, or it does not, so "
        "scores vary widely between seeds (docs/minigrid.md).",
    ),
    "minigrid-easy": (
        "MiniGrid with more time",
        "Not in the paper: the same tree with the environment's own time limit, 750 steps instead of 350.",
    ),
}
"""Each experiment's title, and what it is about."""

# Each agent and its baseline; in the other experiments, each step of a ladder and the one before.
_BASELINES = {
    "table1": ("ad", "ppo"),
    "small": ("ad-small", "ppo"),
    "qrdqn": ("qrdqn-ad", "qrdqn"),
    "heist": ("heist-ad", "heist-ppo"),
    "minigrid": ("minigrid-ad", "minigrid-ppo"),
    "minigrid-easy": ("minigrid-easy-ad", "minigrid-easy-ppo"),
}


def experiment_section(name: str, gathered: Gathered) -> Section:
    """Make one of the paper's experiments: table, comparison, curves, and the command that runs it."""
    title, about = HEADINGS[name]
    entries = PUBLISHED[name]
    runs = {entry.preset: gathered.seeds(entry.preset) for entry in entries if entry.preset}
    recorded = {entry.recorded: gathered.recorded(entry.recorded) for entry in entries if entry.recorded}
    runs |= {name: some for name, some in recorded.items() if some}
    # An agent and its baseline come first, in the order that they have in the bars of success rates: colours go by it.
    there = {preset: runs[preset] for preset in dict.fromkeys((*_BASELINES.get(name, ()), *runs)) if runs.get(preset)}
    measure = _measure(entries[0].env)
    # An experiment of which only what Table 1 draws was run has nothing to add.
    new = there.keys() - _drawn_before(name)
    tables, pictures = [_figures(name, runs, measure)], []
    if new:
        ours = {entry.method: _scores(runs.get(entry.agent or "", [])) for entry in entries}
        scores = {entry.method: (entry.comparable_score, ours[entry.method]) for entry in entries}
        levels = {entry.agent: entry.comparable_score for entry in entries if entry.agent and entry.comparable_score}
        dotted = " Dotted: published final score." if levels else ""
        pictures = [
            Media(f"{name}-scores", f"The {measure} of each seed.", draw_scores(scores, measure)),
            Media(f"{name}-curves", f"{_groups(there)}.{dotted}", compact(draw_runs(there, levels))),
        ]
        tables.append(_improvements(name, runs))
    if short := shorter_runs(name, gathered):
        tables += shorter_tables(name, gathered)
        drawn = furthest(short)
        pictures.append(Media(f"{name}-shorter", f"{_groups(drawn)}.", compact(draw_runs(drawn))))
    missing = f"Not run{' to the end' if short else ''}{', except ' + ' and '.join(there) if there else ''}."
    return Section(
        key=name,
        title=title,
        about=about,
        tables=tables,
        pictures=pictures,
        commands=[f"achieve reproduce {name} --seeds 0-{SEEDS - 1}"],
        notes=_notes(entries, runs, gathered),
        missing=None if new else missing,
        collapsed=not there and not short,
    )


def shorter_runs(name: str, gathered: Gathered) -> dict[str, list[Run]]:
    """Return runs to be shown at equal steps, where some agent of an experiment has none that goes to the end.

    They are those that stopped early and, to compare them with, the whole ones of the other agents.
    """
    presets = [entry.preset for entry in PUBLISHED[name] if entry.preset and entry.preset not in _drawn_before(name)]
    whole, short = ({preset: gathered.seeds(preset, short=cut) for preset in presets} for cut in (False, True))
    if not any(short[preset] and not whole[preset] for preset in presets):
        return {}
    both = {preset: sorted(whole[preset] + short[preset], key=lambda run: run.seed) for preset in presets}
    return {preset: runs for preset, runs in both.items() if runs}


def furthest(short: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """Return the runs of each agent that go as far as every agent has a run; means over others would end before."""
    far = min(max(run.score.read_at for run in runs) for runs in short.values())
    return {preset: [run for run in runs if run.score.read_at >= far] for preset, runs in short.items()}


def drawn_as_shorter(gathered: Gathered) -> set[Path]:
    """Return the folders of all runs that an experiment shows though they stopped early."""
    return {run.path for name in PUBLISHED for runs in shorter_runs(name, gathered).values() for run in runs}


def _drawn_before(name: str) -> set[str]:
    """Return the method and its baseline, which Table 1 shows and other experiments need not repeat."""
    return set() if name == "table1" else {entry.preset for entry in PUBLISHED["table1"] if entry.preset}


def published(entry: Published, figure: MeanStd | None) -> Cell:
    """Return a published figure as a cell, where ours can stand beside it."""
    if figure is None:
        return NOT_PUBLISHED
    return figure if entry.comparable else OTHER_LAYOUT


def beside_published(entry: Published, figure: MeanStd | None, ours: Sequence[float]) -> Cell:
    """Return how far our mean lies from a published figure."""
    cell, finite = published(entry, figure), [value for value in ours if math.isfinite(value)]
    if not isinstance(cell, MeanStd):
        return cell
    return interval(difference(finite, cell.mean, cell.std, SEEDS)) if finite else NOT_RUN


def interval(estimated: Interval) -> Cell:
    """Return an estimate as a cell; one seed alone has no interval."""
    return ONE_SEED if estimated.limits is None else estimated


def _measure(env: str) -> str:
    goal = find_env_spec(env).goal
    return "score %" if goal is None else f"{goal} success rate %"


def _scores(runs: Sequence[Run]) -> list[float]:
    return [run.score.score for run in runs]


def _figures(name: str, runs: Runs, measure: str) -> Table:
    entries = PUBLISHED[name]

    def ours(entry: Published) -> Sequence[Run]:
        return runs.get(entry.agent or "", [])

    def iqm(entry: Published) -> Cell:
        scores = [score for score in _scores(ours(entry)) if math.isfinite(score)]
        return interval(iqm_with_interval(scores, PERCENT)) if scores else NOT_RUN

    def size(entry: Published) -> Cell:
        known = {run.summary["parameters"] for run in ours(entry) if "parameters" in run.summary}
        return known.pop() if len(known) == 1 else Missing("unknown") if ours(entry) else NOT_RUN

    columns = [
        ("method", "method", str, lambda entry: entry.method),
        ("preset", "preset", str, lambda entry: entry.preset or (RECORDED if entry.recorded else Missing("no preset"))),
        ("published_parameters", "published size", int, lambda entry: entry.parameters or Missing("-")),
        ("published_score", f"published {measure}", MeanStd, lambda entry: published(entry, entry.score)),
        ("published_reward", "published reward", MeanStd, lambda entry: published(entry, entry.reward)),
        ("parameters", "our size", int, size),
        ("score", f"our {measure}", MeanStd, lambda entry: estimate(_scores(ours(entry)))),
        ("reward", "our reward", MeanStd, lambda entry: estimate(run.score.reward for run in ours(entry))),
        (
            "difference",
            f"{measure}, ours minus published [95 %]",
            Interval,
            lambda entry: beside_published(entry, entry.score, _scores(ours(entry))),
        ),
        ("iqm", "IQM [95 %]", Interval, iqm),
        ("seeds", "seeds", int, lambda entry: len(ours(entry))),
    ]
    left_out = set() if any(entry.reward for entry in entries) else {"published_reward"}
    left_out |= set() if any(entry.parameters for entry in entries) else {"published_parameters", "parameters"}
    return tabulate(name, HEADINGS[name][0], entries, [column for column in columns if column[0] not in left_out])


def shorter_tables(name: str, gathered: Gathered) -> list[Table]:
    """Return an experiment's runs that stopped early in a table; none without.

    All are evaluated where the shortest ends; those that went on, also where each agent's longest run ends that stopped
    early.
    """
    groups = list(shorter_runs(name, gathered).values())
    if not groups:
        return []
    ends = [[run.score.read_at for run in runs if run.short] for runs in groups]
    steps = sorted({min(end for of_agent in ends for end in of_agent), *(max(end) for end in ends if end)})
    rows = []
    for step in steps:
        there = [run for runs in groups for run in runs if run.score.read_at >= step]
        rows += [(step, run) for run in at_equal_steps(there, step)]
    methods = {entry.preset: entry.method for entry in PUBLISHED[name]}
    measure = _measure(groups[0][0].spec.name)
    columns = [
        ("method", "method", str, lambda row: methods[row[1].preset]),
        ("preset", "preset", str, lambda row: row[1].preset),
        ("seed", "seed", int, lambda row: row[1].seed),
        ("steps", "evaluated at step", int, lambda row: row[0]),
        ("score", measure, MeanStd, lambda row: estimate([row[1].score.score], missing=NO_EPISODE)),
        ("reward", "reward", MeanStd, lambda row: estimate([row[1].score.reward], missing=NO_EPISODE)),
    ]
    return [tabulate(f"{name}-shorter", "Runs that stop early", rows, columns)]


def _improvements(name: str, runs: Runs) -> Table:
    pairs = [_BASELINES[name]] if name in _BASELINES else [(later, earlier) for earlier, later in pairwise(runs)]

    def probability(pair: tuple[str, str]) -> Cell:
        ours, theirs = (_scores(runs[preset]) for preset in pair)
        return interval(improvement(ours, theirs)) if ours and theirs else NOT_RUN

    columns = [
        ("agent", "agent", str, lambda pair: pair[0]),
        ("over", "over", str, lambda pair: pair[1]),
        ("probability", "probability of improvement [95 %]", Interval, probability),
        ("seeds", "seeds", int, lambda pair: len(runs[pair[0]])),
        ("seeds_over", "seeds of the other", int, lambda pair: len(runs[pair[1]])),
    ]
    title = "Probability that a run of one agent beats a run of the other"
    return tabulate(f"{name}-improvement", title, pairs, columns)


def _notes(entries: Sequence[Published], runs: Runs, gathered: Gathered) -> list[str]:
    """Say which seeds count and which runs do not, and where the published figures are from."""
    notes = []
    if seeds := [f"{preset}: {', '.join(str(run.seed) for run in some)}" for preset, some in runs.items() if some]:
        notes.append(f"Seeds counted: {'; '.join(seeds)}.")
    notes += caution((preset, len(some)) for preset, some in runs.items())
    shown = drawn_as_shorter(gathered)
    others = [run for run in gathered.runs if run.preset in runs and run.uncounted and not run.twin]
    if names := sorted(run.path.name for run in others if run.path not in shown):
        notes.append(f"Not counted, but drawn under Other runs: {', '.join(names)}.")
    if apart := [f"{entry.method} {entry.score} %" for entry in entries if entry.score and not entry.comparable]:
        notes.append(f"Published, in another layout: {'; '.join(apart)}.")
    return [*notes, f"Published: {'; '.join(dict.fromkeys(entry.source for entry in entries))}."]


def _groups(groups: Runs) -> str:
    names = ", ".join(f"{preset} ({count(len(runs), 'seed')})" for preset, runs in groups.items())
    several = any(len(runs) > 1 for runs in groups.values())
    return names + (": mean and population standard deviation over seeds" if several else "")
