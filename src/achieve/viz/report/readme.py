"""The results in a README: a table and a picture between markers, written from the runs and never by hand.

    <!-- results:begin -->
    <!-- results:end -->

hold the agents with their published figures and a picture of their learning; the same markers with `shorter` hold the
runs that did not go as far as published ones, with `runs` every run. What stands between them is replaced.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from achieve.analysis.published import PUBLISHED, Published, find_published
from achieve.analysis.runs import Gathered, Run
from achieve.envs import find_world
from achieve.errors import ConfigError, RunFolderError
from achieve.run.files import atomic_file, reason
from achieve.viz.report.experiments import method, printed, shorter_table
from achieve.viz.report.figures import compact, curves
from achieve.viz.report.inventory import company, least_shared, minutes, runs_section
from achieve.viz.report.table import Cell, Column, MeanStd, Missing, Table, estimate, to_markdown

PICTURE = Path("docs/images/results.png")
"""Where a README's picture lies, seen from the README."""
ALWAYS = ("ad", "ppo")
"""The agents that are in the table whether they were run or not."""
STAMP = "Data"
"""The entry of the picture's metadata that tells of which data it was drawn."""

NOTE = """\
± is the population deviation over seeds; published figures are of 10. Minutes are of the runs that shared the GPU with
the fewest others; "at once" counts the runs on it, this one included. The paper's MiniGrid layout is not published;
ours is easier, so compare the order of agents there, not their figures. Table and picture are written
from the episode logs by `achieve report results --out docs/report --readme README.md`, which also writes a page with
every table and figure ([docs/report](docs/report/index.html))."""
OWN_LAYOUT = {"minigrid": " (our layout)"}
"""Worlds whose published figures are of another world."""

_BLOCK = re.compile(r"(<!-- (?P<name>\w+):begin -->\n).*?(<!-- (?P=name):end -->)", re.DOTALL)


def update(path: Path, gathered: Gathered) -> bool:
    """Renew what stands between the markers of a file, and its picture; whether anything changed."""
    try:
        text = path.read_text()
        new = renewed(path, text, gathered)
        changed = new != text
        if changed:
            _write(path, new.encode())
        picture = path.parent / PICTURE
        if f"({PICTURE})" in new and stamp_of(picture) != stamp(_shown(gathered)):
            picture.parent.mkdir(parents=True, exist_ok=True)
            _write(picture, draw(gathered))
            changed = True
    except OSError as error:
        raise RunFolderError(f"{path} cannot be renewed: {reason(error)}") from error
    return changed


def renewed(path: Path, text: str, gathered: Gathered) -> str:
    """The file's text with every block written anew."""
    names = [match["name"] for match in _BLOCK.finditer(text)]
    unknown = [name for name in names if name not in BLOCKS]
    if not names or unknown:
        what = f"has markers {unknown[0]!r}, which mean nothing here" if unknown else "has no markers to write between"
        raise ConfigError(f"{path} {what}; put <!-- results:begin --> and <!-- results:end --> where the table belongs")
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match['name']](gathered)}{match[3]}", text)


def results_block(gathered: Gathered) -> str:
    """Picture and table of the agents that were run."""
    groups = _shown(gathered)
    picture = ""
    if any(groups.values()):
        told = ", ".join(f"{preset} ({_seeds(runs)})" for preset, runs in groups.items() if runs)
        picture = f"![Score and return of {told} through training, with the published scores]({PICTURE})\n\n"
    return f"{picture}{to_markdown(results_table(gathered))}\n{NOTE}\n"


def runs_block(gathered: Gathered) -> str:
    """Every run with its seed."""
    return "".join(to_markdown(table) for table in runs_section(gathered).tables) or "No run yet.\n"


def shorter_block(gathered: Gathered) -> str:
    """The runs of an experiment that ended early, at equal steps."""
    tables = [table for name in PUBLISHED if (table := shorter_table(name, gathered))]
    return "\n".join(to_markdown(table) for table in tables) or "None.\n"


BLOCKS: Mapping[str, Callable[[Gathered], str]] = {
    "results": results_block,
    "shorter": shorter_block,
    "runs": runs_block,
}


def results_table(gathered: Gathered) -> Table:
    """The presets that were run, and the method and its baseline in any case."""
    presets = dict.fromkeys(entry.preset for rows in PUBLISHED.values() for entry in rows if entry.preset)
    rows: list[list[Cell]] = []
    for preset in presets:
        entry = find_published(preset)
        assert entry is not None
        runs = gathered.seeds(preset, entry.world)
        if runs or preset in ALWAYS:
            rows.append([_name(entry), *_figures(entry, runs)])
    columns = [
        Column("agent", "agent"),
        Column("score", "score or success %", MeanStd),
        Column("published_score", "published", MeanStd),
        Column("reward", "reward", MeanStd),
        Column("published_reward", "published", MeanStd),
        Column("seeds", "seeds", int),
        Column("minutes", "minutes a run", MeanStd),
        Column("at_once", "at once", MeanStd),
        Column("machine", "on"),
    ]
    return Table("results", "Results", columns, rows)


def draw(gathered: Gathered) -> bytes:
    """The learning curves of the method and its baseline, stamped with what they were drawn of. PNG."""
    groups = {preset: runs for preset, runs in _shown(gathered).items() if runs}
    told = {entry.preset: entry.score for entry in PUBLISHED["table1"] if entry.preset and entry.score}
    return compact(curves(groups, told), **{STAMP: stamp(groups)})


def stamp(groups: Mapping[str, Sequence[Run]]) -> str:
    """A digest of the episodes behind a picture."""
    digest = hashlib.sha256()
    for preset, runs in groups.items():
        for run in runs:
            digest.update(f"{preset} {run.seed}\n".encode())
            for values in (run.episodes.step, run.episodes.reward, run.episodes.achievements):
                digest.update(values.tobytes())
    return digest.hexdigest()


def stamp_of(picture: Path) -> str | None:
    """The digest in a picture, None where there is no such picture."""
    from PIL import Image

    if not picture.is_file():
        return None
    with Image.open(picture) as image:
        found = image.info.get(STAMP)
    return found if isinstance(found, str) else None


def _shown(gathered: Gathered) -> dict[str, list[Run]]:
    return {preset: gathered.seeds(preset) for preset in ALWAYS}


def _name(entry: Published) -> str:
    world = "" if entry.world == "crafter" else f" in {find_world(entry.world).title}" + OWN_LAYOUT.get(entry.world, "")
    return f"`{entry.preset}`: {method(entry)}{world}"


def _figures(entry: Published, runs: Sequence[Run]) -> list[Cell]:
    unknown = Missing("not recorded") if runs else Missing("-")
    return [
        estimate([run.score.score for run in runs]),
        printed(entry.score),
        estimate([run.score.reward for run in runs]),
        printed(entry.reward),
        len(runs),
        estimate(minutes(least_shared(runs)), digits=1, missing=unknown),
        company(least_shared(runs)) if least_shared(runs) else unknown,
        _cards(runs),
    ]


def _cards(runs: Sequence[Run]) -> Cell:
    """The graphics card, or else the processor."""
    found = set()
    for run in runs:
        machine = run.summary.get("machine") or {}
        found |= {card["name"] for card in machine.get("gpus", [])} or {machine.get("cpu")}
    return ", ".join(sorted(name for name in found if name)) or Missing("not recorded" if runs else "-")


def _seeds(runs: Sequence[Run]) -> str:
    return "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)
