"""One page about all runs there are: every table and figure of the paper, with the published numbers beside ours.

:func:`write_report` gathers runs, builds the sections and writes `index.html`, which holds everything, and beside it
`figures/*.png`, `videos/*.mp4`, and `tables/*.csv` and `*.tex`. What was not run is shown as not run, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from achieve.analysis.published import PUBLISHED
from achieve.analysis.runs import ANALYSES, Gathered, Remark, gather
from achieve.errors import RunFolderError
from achieve.run.files import atomic_file, reason
from achieve.viz.report.analyses import analyses_sections
from achieve.viz.report.experiments import HEADINGS, SEEDS, experiment_section
from achieve.viz.report.html import render
from achieve.viz.report.inventory import hardware_section, others_section, runs_section
from achieve.viz.report.rates import rates_section
from achieve.viz.report.section import Section
from achieve.viz.report.table import Cell, Column, Table, to_csv, to_latex
from achieve.viz.report.videos import videos_section

TITLE = "Achievement distillation: what was run, beside what was published"


def write_report(
    sources: Sequence[Path],
    out: Path,
    *,
    videos: bool = False,
    trust: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Path, Gathered]:
    """Write the report on the runs in these folders; returns the page's path and what was found.

    ``tell`` hears what is being done. Files that an earlier report left in the folder are replaced, never deleted.
    """
    tell("reading the runs ...")
    gathered = gather(sources)
    _refuse_nothing(sources, gathered)
    sections, remarks = build(gathered, videos=videos, trust=trust, tell=tell)
    tell("writing the page ...")
    page = render(TITLE, _lead(gathered), sections, [*gathered.remarks, *remarks])
    contents: dict[str, bytes] = {"index.html": page.encode()}
    for section in sections:
        contents |= {f"figures/{picture.name}.png": picture.data for picture in section.pictures}
        contents |= {f"videos/{video.name}.mp4": video.data for video in section.videos}
        for table in section.tables:
            contents[f"tables/{table.name}.csv"] = to_csv(table).encode()
            contents[f"tables/{table.name}.tex"] = to_latex(table).encode()
    for name, data in contents.items():
        _write(out / name, data)
    return out / "index.html", gathered


def build(
    gathered: Gathered, *, videos: bool = False, trust: bool = False, tell: Callable[[str], None] = lambda text: None
) -> tuple[list[Section], list[Remark]]:
    """All sections in the page's order, and what could not be shown."""
    tell("drawing ...")
    experiments = [experiment_section(name, gathered) for name in PUBLISHED]
    found, remarks = analyses_sections(gathered)
    sections = [_overview(gathered), *experiments, rates_section(gathered), *found]
    if videos:
        tell("playing and filming ...")
        shown, more = videos_section(gathered, trust=trust)
        sections.append(shown)
        remarks += more
    sections += [hardware_section(gathered), runs_section(gathered)]
    if others := others_section(gathered):
        # Where nothing is beside published figures, the page is about these.
        sections.insert(len(sections) - 2 if any(not section.collapsed for section in experiments) else 0, others)
    return sorted(sections, key=lambda section: section.collapsed), remarks


def _refuse_nothing(sources: Sequence[Path], gathered: Gathered) -> None:
    if gathered.runs or any((folder / name).is_file() for folder in gathered.folders for name in ANALYSES):
        return
    where = " or ".join(map(str, sources)) or "this folder, which has neither results nor runs"
    why = "".join(f" ({remark.path}: {remark.text})" for remark in gathered.remarks[:1] if remark.path not in sources)
    raise RunFolderError(
        f"there is no run to report in {where}{why}; give folders that hold runs, or make one with "
        "achieve train --preset quick"
    )


def _lead(gathered: Gathered) -> list[str]:
    counted = sum(run.uncounted is None for run in gathered.runs)
    return [
        f"{len(gathered.runs)} run{'' if len(gathered.runs) == 1 else 's'} found, of which {counted} "
        f"{'is' if counted == 1 else 'are'} comparable with published figures. Every figure is computed from the "
        "episode logs; ± is the population standard deviation over seeds, as published; IQM is the mean of the middle "
        "half of the seeds. In brackets: 95 % intervals of Student's t over seeds; for the probability that one agent "
        "beats another, Newcombe's interval of the Mann-Whitney measure.",
    ]


def _overview(gathered: Gathered) -> Section:
    """How far along each experiment is."""
    rows: list[list[Cell]] = []
    for name, entries in PUBLISHED.items():
        seeds = {e.preset: len(gathered.seeds(e.preset, e.world)) for e in entries if e.preset}
        told = ", ".join(f"{preset}: {count}" for preset, count in seeds.items())
        rows.append([HEADINGS[name].title, name, told, sum(seeds.values()), SEEDS * len(seeds)])
    columns = [
        Column("experiment", "experiment"),
        Column("name", "name"),
        Column("agents", "seeds of each agent"),
        Column("runs", "runs", int),
        Column("published_runs", "published", int),
    ]
    return Section(
        key="overview",
        title="What stands behind the figures",
        tables=[Table("overview", "What stands behind the figures", columns, rows)],
        commands=[f"achieve reproduce all --seeds 0-{SEEDS - 1}", "achieve report"],
        collapsed=all(run.uncounted for run in gathered.runs),
    )


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(data)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {reason(error)}") from error
