"""`achieve report`: one page about all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from achieve.commands import parse, say
from achieve.commands.progress import showing

DEFAULT_SOURCES = ("results", "runs")


def run(arguments: list[str]) -> None:
    parse(_report, "report", arguments)


def _report(
    sources: Annotated[Positional[tuple[Path, ...]], arg(metavar="[FOLDER...]")] = (),
    out: Path = Path("report"),
    videos: bool = False,
    trust: bool = False,
    readme: tuple[Path, ...] = (),
) -> None:
    """Write one HTML page (and PNG, CSV, LaTeX) about all runs, with the published results beside ours.

    Args:
        sources: Run folders, folders that hold them, and folders that analyses wrote; by default `results` and `runs`.
            Where a seed was run twice, the one found first counts.
        out: Folder to write `index.html`, `figures/` and `tables/` into.
        videos: Film the agents whose weights are available. Without a GPU that takes a minute for each.
        trust: With videos: import the code that a run names as its environment or encoder.
        readme: Also rewrite the tables and picture between the markers of these Markdown files.
    """
    from achieve.viz.report import write_report

    sources = sources or tuple(Path(name) for name in DEFAULT_SOURCES if Path(name).is_dir())
    with showing() as show:
        page, gathered = write_report(sources, out, videos=videos, trust=trust, tell=show)
    for remark in gathered.remarks:
        say(f"{remark.path}: {remark.text}")
    counted = sum(run.uncounted is None for run in gathered.runs)
    count = len(gathered.runs)
    say(f"{count} {'run' if count == 1 else 'runs'}, {counted} of them comparable with published results")
    if readme:
        from achieve.viz.report.readme import update

        for path in readme:
            say(f"{path}: {'updated' if update(path, gathered) else 'unchanged'}")
    say(f"page: {page}")
