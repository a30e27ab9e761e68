"""Success rates of every achievement, ours beside those that are published."""

import math
from collections.abc import Mapping, Sequence

from achieve.analysis.published import HUMAN_SOURCE, HUMAN_SUCCESS_RATES, SUCCESS_CLAIMS
from achieve.analysis.runs import Gathered, Run
from achieve.envs.registry import ENVIRONMENTS
from achieve.presets import HUMAN
from achieve.scoring.episodes import title_case
from achieve.scoring.score import MeanStd
from achieve.viz.bars import draw_success_rates
from achieve.viz.report.experiments import SEEDS, Runs
from achieve.viz.report.section import Media, Section, compact
from achieve.viz.style import count
from achieve.viz.table import ColumnOf, Missing, Table, estimate, tabulate

AGENTS: Mapping[str, Sequence[str]] = {
    "crafter": ("ad", "ppo"),
    "minigrid": ("minigrid-ad", "minigrid-ppo", "minigrid-easy-ad", "minigrid-easy-ppo"),
    "heist": ("heist-ad", "heist-ppo"),
}


def rates_section(gathered: Gathered) -> Section:
    """Make a table of all achievements of each environment, and bars on a logarithmic axis."""
    section = Section(
        key="success-rates",
        title="Success rates",
        about="Share of all training episodes in which an achievement was unlocked at least once. The paper shows its "
        "agents' rates in a figure without numbers; those that its text gives are in the table.",
        commands=[f"achieve reproduce success-rates --seeds 0-{SEEDS - 1}"],
    )
    for env, presets in AGENTS.items():
        runs = {preset: gathered.seeds(preset) for preset in presets}
        if any(runs.values()):
            runs |= _people(gathered, env)
            names = list(dict.fromkeys(name for some in runs.values() for run in some for name in run.score.names))
            section.tables.append(_table(env, runs, names))
            section.pictures.append(_picture(env, {preset: some for preset, some in runs.items() if some}, names))
    if section.tables:
        section.notes = [f"Human players: {HUMAN_SOURCE}."]
    else:
        section.missing = "Not run: there is no complete run of the full method or of PPO."
        section.collapsed = True
    return section


def _people(gathered: Gathered, env: str) -> dict[str, list[Run]]:
    """Return the runs of people in the environment as it is, by name."""
    runs = [run for run in gathered.runs if run.preset == HUMAN and run.spec.name == env and not run.config.env.options]
    return {run.config.name or run.path.name: [run] for run in runs if len(run.episodes.step)}


def _table(env: str, runs: Runs, names: Sequence[str]) -> Table:
    claims = {name: f"{relation} {percent:g}" for name, (relation, percent) in SUCCESS_CLAIMS.items()}

    def column(preset: str) -> ColumnOf[str]:
        own = [run for run in runs[preset] if run.preset == HUMAN]
        title = f"our {preset}, % ({count(len(runs[preset]), 'seed')})"
        if own:
            title = f"{preset}, % ({count(own[0].score.episodes, 'episode')})"
        return preset, title, MeanStd, lambda name: estimate(_rates(runs[preset], name))

    columns: list[ColumnOf[str]] = [("achievement", "achievement", str, title_case), *map(column, runs)]
    if env == "crafter":
        columns += [
            ("published_ad", "published ad, %", int, lambda name: claims.get(name, Missing("figure only"))),
            ("human", "human, %", MeanStd, lambda name: MeanStd(HUMAN_SUCCESS_RATES[name], digits=1)),
        ]
    return tabulate(f"success-rates-{env}", f"Success rates in {ENVIRONMENTS[env].title}", names, columns)


def _picture(env: str, runs: Runs, names: Sequence[str]) -> Media:
    # A run that does not know an achievement has no rate for it, which is drawn as none.
    rates = {
        preset: [[(_rates([run], name) or [math.nan])[0] for name in names] for run in some]
        for preset, some in runs.items()
    }
    title = ENVIRONMENTS[env].title
    caption = f"{title}, on a logarithmic axis: means over seeds, a dot for each seed, a cross where the rate is zero."
    return Media(f"success-rates-{env}", caption, compact(draw_success_rates(rates, names, crafter=env == "crafter")))


def _rates(runs: Sequence[Run], name: str) -> list[float]:
    """Return an achievement's success rate in each run that knows it."""
    return [float(run.score.success_rates[run.score.names.index(name)]) for run in runs if name in run.score.names]
