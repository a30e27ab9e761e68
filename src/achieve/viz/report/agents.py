"""Agents of other libraries: what is published of them beside what was recorded, and what keeps the two apart."""

from typing import NamedTuple

from achieve.analysis.published import PAPER_SETTINGS, PUBLISHED, Published
from achieve.analysis.runs import Gathered, Group, group_runs, other_version, paper_differences
from achieve.analysis.statistics import caution
from achieve.scoring.score import MeanStd
from achieve.viz.report.experiments import NO_EPISODE
from achieve.viz.report.inventory import LINES
from achieve.viz.report.section import Media, Section, compact, draw_runs
from achieve.viz.table import NOT_PUBLISHED, NOT_RUN, Cell, Missing, estimate, tabulate

ABOUT = (
    "Agents that other libraries trained in these environments, recorded with `achieve.record` or imported with "
    "`achieve import`. A published figure stands in their row for reference. The two can be compared only where the "
    "last column says so."
)
COMPARABLE = "nothing that is recorded: comparable"


class Row(NamedTuple):
    """An agent: what is published, and a group of its runs, if there is one."""

    name: str
    published: Published | None
    group: Group | None


def agents_section(gathered: Gathered) -> Section:
    """Show every recorded agent, and those of the paper's Table 1 that nobody has recorded."""
    entries = {entry.recorded: entry for entry in PUBLISHED["table1"] if entry.recorded}
    runs = [run for run in gathered.runs if run.external and run.twin is None]
    groups = group_runs(runs)
    rows = [
        Row(group.label, entries.get(run.config.name or "") if run.spec.name == "crafter" else None, group)
        for group in (group.read_at(group.end) for group in groups)
        for run in group.runs[:1]
    ]
    there = {run.config.name for run in runs}
    rows += [Row(name, entry, None) for name, entry in entries.items() if name not in there]
    section = Section(
        key="agents",
        title="Agents of other libraries",
        about=ABOUT,
        commands=["achieve baseline dreamerv3 --size XL --seed 0"],
        collapsed=not groups,
        missing=None if groups else "None was recorded.",
    )
    columns = [
        ("agent", "agent", str, lambda row: row.name),
        ("environment", "environment", str, lambda row: row.group.runs[0].game if row.group else "Crafter"),
        ("published_score", "published score %", MeanStd, lambda row: _published(row, "score")),
        ("published_reward", "published reward", MeanStd, lambda row: _published(row, "reward")),
        ("score", "score %", MeanStd, lambda row: _recorded(row, "score")),
        ("reward", "reward", MeanStd, lambda row: _recorded(row, "reward")),
        ("steps", "steps reached", int, lambda row: row.group.end if row.group else NOT_RUN),
        ("seeds", "seeds", int, lambda row: len(row.group.runs) if row.group else 0),
        ("differs", "differs from the published runs in", str, _differences),
    ]
    section.tables = [tabulate("agents", section.title, rows, columns)]
    section.notes = caution((group.label, len(group.runs)) for group in groups)
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        if all(len(run.episodes.step) for run in group.runs):
            by_env.setdefault(group.runs[0].game, []).append(group)
    for title, some in by_env.items():
        for first in range(0, len(some), LINES):
            lines = {group.label: group.runs for group in some[first : first + LINES]}
            name = f"agents-{len(section.pictures) + 1}"
            section.pictures.append(Media(name, f"{title}: {'; '.join(lines)}.", compact(draw_runs(lines))))
    return section


def _published(row: Row, name: str) -> Cell:
    figure: MeanStd | None = getattr(row.published, name, None)
    return NOT_PUBLISHED if figure is None else figure


def _recorded(row: Row, name: str) -> Cell:
    if row.group is None:
        return NOT_RUN
    return estimate([getattr(run.score, name) for run in row.group.runs], missing=NO_EPISODE)


def _differences(row: Row) -> Cell:
    if row.group is None:
        return NOT_RUN
    if row.published is None:
        return Missing("no published runs")
    run = row.group.runs[0]
    name, published = run.config.name or "", run.spec.published_steps
    told = paper_differences(name, run.settings)
    told += [] if name in PAPER_SETTINGS else ["settings, of which the published ones are not known"]
    told += [other_version(run)] if run.unknown else []
    told += [f"game: {', '.join(run.config.env.options)}"] if run.config.env.options else []
    told += [f"steps: {row.group.end:,} of {published:,}"] if published and row.group.end < published else []
    library = run.settings.get("library")
    told += [f"code: {library}"] if library else []
    return "; ".join(told) or COMPARABLE
