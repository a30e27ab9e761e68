"""The results in a README: tables and a picture between markers, written from the runs and never by hand.

    <!-- results:begin -->
    <!-- results:end -->

hold the agents with their published figures and a picture of their learning; the same markers with `shorter` hold the
runs that stop early, with `runs` every run. What stands between them is replaced.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from achieve.analysis.published import PUBLISHED, Published, find_published
from achieve.analysis.runs import Gathered, Run
from achieve.analysis.statistics import Interval
from achieve.envs import find_env_spec
from achieve.errors import ConfigError, RunFolderError
from achieve.run.files import reason, write_file
from achieve.scoring.score import MeanStd
from achieve.viz.report.experiments import Runs, beside_published, published, shorter_tables
from achieve.viz.report.inventory import least_shared, minutes, runs_section, shared_by
from achieve.viz.report.section import compact, draw_runs
from achieve.viz.style import count
from achieve.viz.table import Cell, Missing, Table, estimate, tabulate, to_markdown

PICTURE = Path("docs/images/results.png")
"""Where a README's picture lies, seen from the README."""
ALWAYS = ("ad", "ppo")
"""The agents that are in the table whether they were run or not."""
STAMP = "Data"
"""The entry of the picture's metadata that identifies the data it was drawn from."""

NOTE = """\
± is the population standard deviation over seeds; published results use 10 seeds. A score agrees with the published
one where Welch's 95 % interval of their difference contains 0; where no deviation is published, ours alone counts.
Times come from the least-shared runs; "runs per device" counts those on it, this one included. The paper's MiniGrid
layout is not published and ours is easier, so agents can be compared there with each other, but not with the paper.
Tables and picture are written from the episode logs by
`achieve report results --out docs/report --readme README.md results/README.md`, which also writes a page with
every table and figure ([docs/report](docs/report/index.html))."""

_BLOCK = re.compile(r"(<!-- (?P<name>\w+):begin -->\n).*?(<!-- (?P=name):end -->)", re.DOTALL)


def update(path: Path, gathered: Gathered) -> bool:
    """Rewrite what stands between the markers of a file, and its picture; return whether anything changed."""
    try:
        text = path.read_text()
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {reason(error)}") from error
    new = renewed(path, text, gathered)
    changed = new != text
    if changed:
        write_file(path, new.encode())
    picture = path.parent / PICTURE
    if f"({PICTURE})" in new and stamp_of(picture) != stamp(_shown(gathered)):
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_file(picture, draw(gathered))
        changed = True
    return changed


def renewed(path: Path, text: str, gathered: Gathered) -> str:
    """Return the file's text with every block written anew."""
    names = [match["name"] for match in _BLOCK.finditer(text)]
    unknown = [name for name in names if name not in BLOCKS]
    if not names or unknown:
        what = f"has unknown markers {unknown[0]!r}" if unknown else "has no markers to write between"
        raise ConfigError(f"{path} {what}; put <!-- results:begin --> and <!-- results:end --> where the tables belong")
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match['name']](gathered)}{match[3]}", text)


def results_block(gathered: Gathered) -> str:
    """Return picture and tables of the agents that were run."""
    names = [f"{preset} ({count(len(runs), 'seed')})" for preset, runs in _shown(gathered).items() if runs]
    picture = f"![Score and return of {', '.join(names)} through training, with the published scores]({PICTURE})\n\n"
    tables = "".join(f"{to_markdown(table)}\n" for table in results_tables(gathered))
    return f"{picture if names else ''}{tables}{NOTE}\n"


def _shorter(gathered: Gathered) -> list[Table]:
    return [table for name in PUBLISHED for table in shorter_tables(name, gathered)]


BLOCKS: Mapping[str, Callable[[Gathered], str]] = {
    "results": results_block,
    "shorter": lambda gathered: "\n".join(map(to_markdown, _shorter(gathered))) or "None.\n",
    "runs": lambda gathered: "".join(map(to_markdown, runs_section(gathered).tables)) or "No run yet.\n",
}


def results_tables(gathered: Gathered) -> list[Table]:
    """Return a table for each environment: the presets that were run, and the method and its baseline in any case."""
    envs: dict[str, list[Published]] = {}
    for preset in dict.fromkeys(entry.preset for rows in PUBLISHED.values() for entry in rows if entry.preset):
        entry = find_published(preset)
        if entry and (preset in ALWAYS or gathered.seeds(preset)):
            envs.setdefault(entry.env, []).append(entry)
    return [_results_table(env, entries, gathered) for env, entries in envs.items()]


def _results_table(env: str, entries: Sequence[Published], gathered: Gathered) -> Table:
    def runs(entry: Published) -> list[Run]:
        return gathered.seeds(entry.preset) if entry.preset else []

    def timed(cell: Callable[[Sequence[Run]], Cell]) -> Callable[[Published], Cell]:
        missing = [Missing("-"), Missing("not recorded")]
        return lambda entry: cell(alone) if (alone := least_shared(runs(entry))) else missing[bool(runs(entry))]

    spec = find_env_spec(env)
    columns = [
        ("agent", f"agent in {spec.title}", str, lambda entry: f"`{entry.preset}`: {entry.method}"),
        ("score", f"{spec.measure} %", MeanStd, lambda entry: estimate(run.score.score for run in runs(entry))),
        ("published_score", "published", MeanStd, lambda entry: published(entry, entry.score)),
        (
            "difference",
            "difference [95 %]",
            Interval,
            lambda entry: beside_published(entry, entry.score, [run.score.score for run in runs(entry)]),
        ),
        ("reward", "reward", MeanStd, lambda entry: estimate(run.score.reward for run in runs(entry))),
        ("published_reward", "published", MeanStd, lambda entry: published(entry, entry.reward)),
        ("seeds", "seeds", int, lambda entry: len(runs(entry))),
        ("minutes", "minutes per run", MeanStd, timed(lambda alone: estimate(minutes(alone), 1))),
        ("at_once", "runs per device", MeanStd, timed(shared_by)),
        ("machine", "on", str, lambda entry: _cards(runs(entry))),
    ]
    return tabulate(f"results-{env}", spec.title, entries, columns)


def draw(gathered: Gathered) -> bytes:
    """Draw the learning curves of the method and its baseline, stamped with the data they were drawn from. PNG."""
    groups = {preset: runs for preset, runs in _shown(gathered).items() if runs}
    levels = {entry.preset: entry.score for entry in PUBLISHED["table1"] if entry.preset and entry.score}
    return compact(draw_runs(groups, levels), **{STAMP: stamp(groups)})


def stamp(groups: Runs) -> str:
    """Return a digest of the episodes behind a picture."""
    digest = hashlib.sha256()
    for run in (run for runs in groups.values() for run in runs):
        digest.update(f"{run.preset} {run.seed}\n".encode())
        for values in (run.episodes.step, run.episodes.reward, run.episodes.achievements):
            digest.update(values.tobytes())
    return digest.hexdigest()


def stamp_of(picture: Path) -> str | None:
    """Return the digest in a picture, None where there is no such picture."""
    if not picture.is_file():
        return None
    with Image.open(picture) as image:
        return image.info.get(STAMP)


def _shown(gathered: Gathered) -> dict[str, list[Run]]:
    return {preset: gathered.seeds(preset) for preset in ALWAYS}


def _cards(runs: Sequence[Run]) -> Cell:
    """Return the graphics card, or else the processor."""
    names: set[Any] = set()
    for run in runs:
        machine = run.summary.get("machine") or {}
        names |= {card["name"] for card in machine.get("gpus", [])} or {machine.get("cpu")}
    return ", ".join(sorted(name for name in names if name)) or Missing("not recorded" if runs else "-")
