"""Success rates of every achievement, ours beside what is published of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from achieve.analysis.published import HUMAN_SOURCE, HUMAN_SUCCESS_RATES, SUCCESS_CLAIMS
from achieve.analysis.report import title_case
from achieve.analysis.runs import Gathered, Run
from achieve.envs.worlds import WORLDS
from achieve.viz.bars import draw_success_rates
from achieve.viz.report.experiments import SEEDS
from achieve.viz.report.figures import compact
from achieve.viz.report.section import Picture, Section
from achieve.viz.report.table import Cell, Column, MeanStd, Missing, Table, estimate

AGENTS: Mapping[str, Sequence[str]] = {
    "crafter": ("ad", "ppo"),
    "minigrid": ("minigrid-ad", "minigrid-ppo"),
    "heist": ("heist-ad", "heist-ppo"),
}


def rates_section(gathered: Gathered) -> Section:
    """By world: a table of all achievements, and Crafter's as bars on a logarithmic axis."""
    tables: list[Table] = []
    pictures: list[Picture] = []
    for world, presets in AGENTS.items():
        runs = {preset: gathered.seeds(preset, world) for preset in presets}
        if any(runs.values()):
            tables.append(_table(world, runs))
            pictures.append(_picture(world, {preset: found for preset, found in runs.items() if found}))
    return Section(
        key="success-rates",
        title="Success rates",
        about="Share of all training episodes in which an achievement was unlocked at least once. The paper shows its "
        "agents' rates as a picture without numbers; those it tells in words are in the table.",
        tables=tables,
        pictures=pictures,
        commands=[f"achieve reproduce success-rates --seeds 0-{SEEDS - 1}"],
        notes=[f"Human players: {HUMAN_SOURCE}."] if tables else [],
        missing=None if tables else "Not run: there is no complete run of the full method or of PPO.",
        collapsed=not tables,
    )


def _table(world: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    crafter = world == "crafter"
    claims = {claim.achievement: f"{claim.relation} {claim.percent:g}" for claim in SUCCESS_CLAIMS}
    rows: list[list[Cell]] = []
    for name in _names(runs):
        row: list[Cell] = [title_case(name)]
        row += [estimate(rates_of(some, name)) for some in runs.values()]
        if crafter:
            human = HUMAN_SUCCESS_RATES.get(name)
            row += [claims.get(name, Missing("picture only"))]
            row += [Missing("not published") if human is None else MeanStd(human, digits=1)]
        rows.append(row)
    columns = [
        Column("achievement", "achievement"),
        *(Column(preset, f"our {preset}, % ({_count(some)})", MeanStd) for preset, some in runs.items()),
        *([Column("published_ad", "published ad, %", int), Column("human", "human, %", MeanStd)] if crafter else []),
    ]
    return Table(f"success-rates-{world}", f"Success rates in {WORLDS[world].title}", columns, rows)


def _picture(world: str, runs: Mapping[str, Sequence[Run]]) -> Picture:
    names = _names(runs)
    # A run that does not know an achievement has no rate for it, which is drawn as none.
    rates = {
        preset: [[(rates_of([run], name) or [math.nan])[0] for name in names] for run in some]
        for preset, some in runs.items()
    }
    crafter = world == "crafter"
    figure = draw_success_rates(
        rates,
        names,
        {"human players": HUMAN_SUCCESS_RATES} if crafter else {},
        SUCCESS_CLAIMS if crafter and "ad" in runs else (),
    )
    title = WORLDS[world].title
    caption = f"{title}, on a logarithmic axis: means over seeds, a dot for each seed, a cross where there was none."
    return Picture(f"success-rates-{world}", caption, compact(figure))


def _names(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    return list(dict.fromkeys(name for some in runs.values() for run in some for name in run.score.names))


def rates_of(runs: Sequence[Run], name: str) -> list[float]:
    """An achievement's success rate in each run that knows it."""
    return [float(run.score.success_rates[run.score.names.index(name)]) for run in runs if name in run.score.names]


def _count(runs: Sequence[Run]) -> str:
    return f"{len(runs)} seed" + ("" if len(runs) == 1 else "s")
