"""One page about all runs: every table and figure of the paper, with the published figures beside ours.

:func:`write_report` gathers runs, builds the sections and writes `index.html`, which holds everything, and beside it
`figures/*.png`, `videos/*.mp4`, and `tables/*.csv` and `*.tex`. What was not run is listed at the end.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from achieve.analysis.published import PUBLISHED
from achieve.analysis.runs import ANALYSES, Gathered, Remark, gather
from achieve.errors import RunFolderError
from achieve.run.files import prepare_file, write_file
from achieve.viz.html import render
from achieve.viz.report.agents import agents_section
from achieve.viz.report.analyses import analyses_sections
from achieve.viz.report.experiments import HEADINGS, SEEDS, experiment_section
from achieve.viz.report.inventory import hardware_section, others_section, runs_section
from achieve.viz.report.rates import rates_section
from achieve.viz.report.section import Section
from achieve.viz.report.videos import videos_section
from achieve.viz.style import count
from achieve.viz.table import tabulate, to_csv, to_latex

TITLE = "Achievement distillation: our runs beside the published results"
LEAD = (
    "{runs}, of which {counted} comparable with published results. Every figure is computed from the episode logs. "
    "± is the population standard deviation over seeds, as published; IQM is the interquartile mean. Brackets hold "
    "95 % confidence intervals: Student's t over seeds and, for the probability of improvement, Newcombe's interval "
    "for the Mann-Whitney statistic."
)


def write_report(
    sources: Sequence[Path],
    out: Path,
    *,
    videos: bool = False,
    trust: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Path, Gathered]:
    """Write the report on the runs in these folders; return the page's path and what was found.

    ``tell`` is told what is being done. Files of an earlier report are replaced, never deleted.
    """
    tell("reading the runs ...")
    gathered = gather(sources)
    if not gathered.runs and not any((folder / name).is_file() for folder in gathered.folders for name in ANALYSES):
        where = " or ".join(map(str, sources)) or "this folder, which has neither results nor runs"
        why = "".join(f" ({path}: {text})" for path, text in gathered.remarks[:1] if path not in sources)
        raise RunFolderError(
            f"there is no run to report in {where}{why}; give folders that hold runs, or make one with "
            "achieve train --preset quick"
        )
    sections, remarks = build(gathered, videos=videos, trust=trust, tell=tell)
    tell("writing the page ...")
    counted = sum(run.uncounted is None for run in gathered.runs)
    page = render(
        "report.html",
        title=TITLE,
        lead=LEAD.format(runs=count(len(gathered.runs), "run"), counted=f"{counted} {'is' if counted == 1 else 'are'}"),
        shown=[section for section in sections if not section.collapsed],
        empty=[section for section in sections if section.collapsed],
        remarks=[*gathered.remarks, *remarks],
    )
    contents = {"index.html": page.encode()}
    for section in sections:
        contents |= {f"figures/{picture.name}.png": picture.data for picture in section.pictures}
        contents |= {f"videos/{video.name}.mp4": video.data for video in section.videos}
        contents |= {f"tables/{table.name}.csv": to_csv(table).encode() for table in section.tables}
        contents |= {f"tables/{table.name}.tex": to_latex(table).encode() for table in section.tables}
    for name, data in contents.items():
        prepare_file(out / name)
        write_file(out / name, data)
    return out / "index.html", gathered


def build(
    gathered: Gathered, *, videos: bool = False, trust: bool = False, tell: Callable[[str], None] = lambda text: None
) -> tuple[list[Section], list[Remark]]:
    """Return all sections in the page's order, and what could not be shown."""
    tell("drawing ...")
    experiments = [experiment_section(name, gathered) for name in PUBLISHED]
    analyses, remarks = analyses_sections(gathered)
    sections = [_overview(gathered), *experiments, agents_section(gathered), rates_section(gathered), *analyses]
    if videos:
        tell("filming the agents ...")
        filmed, unfilmed = videos_section(gathered, trust=trust)
        sections.append(filmed)
        remarks += unfilmed
    sections += [hardware_section(gathered), runs_section(gathered)]
    if others := others_section(gathered):
        # Where nothing is beside published figures, the page is about these.
        sections.insert(len(sections) - 2 if any(not section.collapsed for section in experiments) else 0, others)
    return sorted(sections, key=lambda section: section.collapsed), remarks


def _overview(gathered: Gathered) -> Section:
    """Show how far along each experiment is."""

    def seeds(name: str) -> dict[str, int]:
        return {e.preset: len(gathered.seeds(e.preset)) for e in PUBLISHED[name] if e.preset}

    title = "Runs behind the figures"
    columns = [
        ("experiment", "experiment", str, lambda name: HEADINGS[name][0]),
        ("name", "name", str, lambda name: name),
        ("agents", "seeds of each agent", str, lambda name: ", ".join(f"{k}: {n}" for k, n in seeds(name).items())),
        ("runs", "runs", int, lambda name: sum(seeds(name).values())),
        ("published_runs", "published", int, lambda name: SEEDS * len(seeds(name))),
    ]
    return Section(
        key="overview",
        title=title,
        tables=[tabulate("overview", title, PUBLISHED, columns)],
        commands=[f"achieve reproduce all --seeds 0-{SEEDS - 1}", "achieve report"],
        collapsed=all(run.uncounted for run in gathered.runs),
    )
