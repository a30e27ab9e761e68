"""`achieve report`: one page about all runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from achieve.commands import parse, say
from achieve.commands.progress import showing

DEFAULT_SOURCES = ("results", "runs")


@dataclass(frozen=True)
class ReportArguments:
    """Write one HTML page (and PNG, CSV, LaTeX) about all runs, with the published results beside ours."""

    sources: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, folders that hold them, and folders that analyses wrote; by default `results` and `runs` of this
    folder, those that exist. Where a seed was run twice, the one found first counts."""
    out: Path = Path("report")
    """Folder to write `index.html`, `figures/` and `tables/` into."""
    videos: bool = False
    """Film the agents whose weights are available. Without a GPU that takes a minute for each."""
    trust: bool = False
    """With videos: import the code that somebody else's run names as its environment."""
    readme: tuple[Path, ...] = ()
    """Also rewrite the tables and picture between the markers of these Markdown files."""


def run(arguments: list[str]) -> None:
    parsed: ReportArguments = parse(ReportArguments, "report", arguments)
    from achieve.viz.report import write_report

    sources = parsed.sources or tuple(Path(name) for name in DEFAULT_SOURCES if Path(name).is_dir())
    with showing() as show:
        page, gathered = write_report(sources, parsed.out, videos=parsed.videos, trust=parsed.trust, tell=show)
    for remark in gathered.remarks:
        say(f"{remark.path}: {remark.text}")
    counted = sum(run.uncounted is None for run in gathered.runs)
    say(f"{len(gathered.runs)} runs, {counted} of them comparable with published results")
    if parsed.readme:
        from achieve.viz.report.readme import update

        for path in parsed.readme:
            say(f"{path}: {'updated' if update(path, gathered) else 'unchanged'}")
    say(f"page: {page}")
