"""Success rates of every achievement, ours beside those that are published."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from achieve.analysis.published import HUMAN_SOURCE, HUMAN_SUCCESS_RATES, SUCCESS_CLAIMS
from achieve.analysis.runs import Gathered, Run
from achieve.envs.registry import ENVIRONMENTS
from achieve.scoring.episodes import title_case
from achieve.scoring.score import MeanStd
from achieve.viz.bars import draw_success_rates
from achieve.viz.report.experiments import SEEDS, Runs
from achieve.viz.report.section import Media, Section, compact
from achieve.viz.style import count
from achieve.viz.table import Cell, Missing, Table, estimate, tabulate

AGENTS: Mapping[str, Sequence[str]] = {
    "crafter": ("ad", "ppo"),
    "minigrid": ("minigrid-ad", "minigrid-ppo"),
    "heist": ("heist-ad", "heist-ppo"),
}


def rates_section(gathered: Gathered) -> Section:
    """Make a table of all achievements of each environment, and bars on a logarithmic axis."""
    tables: list[Table] = []
    pictures: list[Media] = []
    for env, presets in AGENTS.items():
        runs = {preset: gathered.seeds(preset, env) for preset in presets}
        if any(runs.values()):
            tables.append(_table(env, runs))
            pictures.append(_picture(env, {preset: some for preset, some in runs.items() if some}))
    return Section(
        key="success-rates",
        title="Success rates",
        about="Share of all training episodes in which an achievement was unlocked at least once. The paper shows its "
        "agents' rates in a figure without numbers; those that its text gives are in the table.",
        tables=tables,
        pictures=pictures,
        commands=[f"achieve reproduce success-rates --seeds 0-{SEEDS - 1}"],
        notes=[f"Human players: {HUMAN_SOURCE}."] if tables else [],
        missing=None if tables else "Not run: there is no complete run of the full method or of PPO.",
        collapsed=not tables,
    )


def _table(env: str, runs: Runs) -> Table:
    claims = {claim.achievement: f"{claim.relation} {claim.percent:g}" for claim in SUCCESS_CLAIMS}

    def column(preset: str) -> tuple[str, str, type, Callable[[str], Cell]]:
        title = f"our {preset}, % ({count(len(runs[preset]), 'seed')})"
        return preset, title, MeanStd, lambda name: estimate(_rates(runs[preset], name))

    columns = [
        ("achievement", "achievement", str, title_case),
        *map(column, runs),
    ]
    if env == "crafter":
        columns += [
            ("published_ad", "published ad, %", int, lambda name: claims.get(name, Missing("figure only"))),
            ("human", "human, %", MeanStd, lambda name: MeanStd(HUMAN_SUCCESS_RATES[name], digits=1)),
        ]
    return tabulate(f"success-rates-{env}", f"Success rates in {ENVIRONMENTS[env].title}", _names(runs), columns)


def _picture(env: str, runs: Runs) -> Media:
    names = _names(runs)
    # A run that does not know an achievement has no rate for it, which is drawn as none.
    rates = {
        preset: [[(_rates([run], name) or [math.nan])[0] for name in names] for run in some]
        for preset, some in runs.items()
    }
    crafter = env == "crafter"
    figure = draw_success_rates(
        rates,
        names,
        {"human players": HUMAN_SUCCESS_RATES} if crafter else {},
        SUCCESS_CLAIMS if crafter and "ad" in runs else (),
    )
    title = ENVIRONMENTS[env].title
    caption = f"{title}, on a logarithmic axis: means over seeds, a dot for each seed, a cross where the rate is zero."
    return Media(f"success-rates-{env}", caption, compact(figure))


def _names(runs: Runs) -> list[str]:
    return list(dict.fromkeys(name for some in runs.values() for run in some for name in run.score.names))


def _rates(runs: Sequence[Run], name: str) -> list[float]:
    """Return an achievement's success rate in each run that knows it."""
    return [float(run.score.success_rates[run.score.names.index(name)]) for run in runs if name in run.score.names]
