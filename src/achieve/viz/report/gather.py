"""The runs there are, each read from its own log, and why some of them do not count.

Nothing here trusts a name: what a run is comes from its config, its figures from its episodes.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from achieve.analysis.episodes import FILE_NAMES, Episodes, find_log, load_episodes
from achieve.analysis.score import RunScore, score_run
from achieve.config import RUNTIME_FIELDS, TrainConfig, from_dict, to_dict
from achieve.envs.worlds import World, find_world
from achieve.errors import AchieveError, RunFolderError
from achieve.presets import PRESETS
from achieve.run.files import reason
from achieve.run.folder import differences, read_config, read_summary, without

DEPTH = 3
"""How many folders below a given one are searched for runs."""

ANALYSES = ("probe.json", "matching.json", "hierarchy.json")
"""What the commands of these names write into their folders."""

# Settings in which runs of one preset may differ and still be seeds of the same experiment: how long they went on after
# the figures were read, where and in which arithmetic they were computed.
FREE = ("seed", "total_steps", "precision", "compile", *RUNTIME_FIELDS)


@dataclass(frozen=True)
class Run:
    """A run that could be read."""

    path: Path
    config: TrainConfig
    world: World
    episodes: Episodes
    score: RunScore
    summary: Mapping[str, Any]
    """What the run wrote when it was complete; empty before."""
    starts: Sequence[Mapping[str, Any]]
    """Each time it was started: when, by which command, on which machine."""
    uncounted: str | None = None
    """Why it is not among the seeds beside the published figures."""
    short: bool = False
    """Whether it does not count for no other reason than that it did not go as far as the published ones."""
    twin: Path | None = None
    """The run of the same preset, world and seed that counts in its place."""

    @property
    def preset(self) -> str:
        return self.config.preset

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def command(self) -> str | None:
        """The command that started it, None where it is not recorded."""
        return str(self.starts[0]["command"]) if self.starts and "command" in self.starts[0] else None


class Remark(NamedTuple):
    """Something to know about a folder."""

    path: Path
    text: str


class Gathered(NamedTuple):
    """All that was found."""

    runs: tuple[Run, ...]
    remarks: tuple[Remark, ...]
    folders: tuple[Path, ...]
    """Every folder that was looked into, where results of analyses may lie."""

    def seeds(self, preset: str, world: str | None = None) -> list[Run]:
        """The runs of a preset that count, by seed; by default in the preset's own world."""
        world = world or (PRESETS[preset].env.name if preset in PRESETS else "crafter")
        found = [run for run in self.runs if run.uncounted is None and (run.preset, run.world.name) == (preset, world)]
        return sorted(found, key=lambda run: run.seed)

    def shorter(self, preset: str, world: str) -> list[Run]:
        """The runs of a preset that would count had they gone further, by seed."""
        found = [run for run in self.runs if run.short and (run.preset, run.world.name) == (preset, world)]
        return sorted(found, key=lambda run: run.seed)


def gather(sources: Sequence[Path]) -> Gathered:
    """Read every run in these folders and up to three folders below them.

    A folder that cannot be read as a run is a remark, never an error; a source that does not exist is one.
    """
    runs: list[Run] = []
    remarks: list[Remark] = []
    folders: list[Path] = []
    seen: set[Path] = set()
    for source in sources:
        if not source.is_dir():
            what = "is not a folder" if source.exists() else "does not exist"
            raise RunFolderError(f"{source} {what}; give run folders, or folders that hold them, such as results")
        known = len(remarks)
        empty = True
        for folder in _folders(source, remarks):
            if folder.resolve() in seen:
                empty = False
                continue
            seen.add(folder.resolve())
            folders.append(folder)
            if _is_run(folder):
                _read(folder, runs, remarks)
            empty &= not _is_run(folder) and not any((folder / name).is_file() for name in ANALYSES)
        if empty and len(remarks) == known:
            remarks.append(Remark(source, "holds no run"))
    return Gathered(tuple(_without_twins(runs)), tuple(remarks), tuple(folders))


def _folders(source: Path, remarks: list[Remark]) -> Iterator[Path]:
    """The folder itself and, unless it is a run, those below it."""
    base = len(source.parts)

    def failed(error: OSError) -> None:
        remarks.append(Remark(Path(error.filename or source), f"cannot be read: {reason(error)}"))

    for name, below, _ in os.walk(source, onerror=failed):
        folder = Path(name)
        yield folder
        deep = len(folder.parts) - base >= DEPTH
        below[:] = [] if deep or _is_run(folder) else sorted(entry for entry in below if not entry.startswith("."))


def _is_run(folder: Path) -> bool:
    # config.json alone may be some other program's.
    return any((folder / name).is_file() for name in FILE_NAMES) or (
        (folder / "config.json").is_file() and (folder / "checkpoint").is_dir()
    )


def _read(folder: Path, runs: list[Run], remarks: list[Remark]) -> None:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = read_run(folder, remarks)
        remarks += [Remark(folder, f"{_own_words(folder, str(w.message))}; the rest counts") for w in caught]
        runs.append(run)
    except (AchieveError, TypeError, KeyError, AttributeError) as error:
        text = str(error) if isinstance(error, AchieveError) else f"its config or summary is malformed ({error!r})"
        remarks.append(Remark(folder, f"not shown: {_own_words(folder, text)}"))


def _own_words(folder: Path, text: str) -> str:
    """Without the path, which is said beside it, and without advice on what to give instead."""
    text = text.partition("; give a run folder")[0]
    return text.replace(f"{folder}{os.sep}", "").removeprefix(f"{folder} ").removeprefix(f"{folder}: ")


def read_run(folder: Path, remarks: list[Remark]) -> Run:
    """One run from its folder; raises an `AchieveError` that says what is wrong with it."""
    saved = read_config(folder)
    config = from_dict(saved["config"])
    world = find_world(config.env.name)
    try:
        summary = read_summary(folder) or {}
    except RunFolderError as error:
        remarks.append(Remark(folder, f"{_own_words(folder, str(error))}; read from its log alone"))
        summary = {}
    find_log(folder)
    episodes = load_episodes(folder)
    score = score_run(episodes, summary.get("steps"), config.score_steps, world)
    run = Run(folder, config, world, episodes, score, summary, tuple(saved.get("starts", ())))
    if told := _disagreement(run):
        remarks.append(Remark(folder, told))
    return replace(run, uncounted=_why_not(run), short=_is_short(run))


def _disagreement(run: Run) -> str | None:
    """The log is the authority; a summary that says otherwise is not of this log."""
    for name, value in (("score", run.score.score), ("reward", run.score.reward)):
        key = f"{run.world.goal}_success_rate" if name == "score" and run.world.goal else name
        told = run.summary.get(key)
        if isinstance(told, int | float) and not math.isclose(told, value, rel_tol=1e-6, abs_tol=1e-6):
            return f"summary.json says {key} {told:.4f}, its log {value:.4f}; the log's figure is shown"
    return None


def _why_not(run: Run) -> str | None:
    if not len(run.episodes.step):
        return "no finished episode"
    published = run.world.published_steps
    if published is None:
        return "a world without published figures"
    if run.score.read_at < published:
        done = "" if run.summary else "unfinished: "
        return f"{done}read at {run.score.read_at:,} steps, published figures at {published:,}"
    if run.preset not in PRESETS:
        return f"there is no preset {run.preset!r} in this version"
    if run.config.init_from is not None:
        return f"not from scratch: it {run.config.origin}"
    told = _changes(run.config)
    if told:
        return "not the preset's settings: " + "; ".join(told[:3]) + (f"; {len(told) - 3} more" if told[3:] else "")
    return None


def _is_short(run: Run) -> bool:
    published = run.world.published_steps
    if published is None or not len(run.episodes.step) or run.preset not in PRESETS:
        return False
    return run.score.read_at < published and not _changes(run.config, (*FREE, "score_steps"))


def _changes(config: TrainConfig, free: Sequence[str] = FREE) -> list[str]:
    """`ppo.gae_lambda is 0.7, not 0.65` for each setting that is not the preset's."""
    own, preset = (without(to_dict(one), free) for one in (config, PRESETS[config.preset]))
    return [d.replace(" there, ", ", not ").removesuffix(" here") for d in differences(own, preset)]


def _without_twins(runs: Sequence[Run]) -> Iterator[Run]:
    """A seed counts once: a copy of a run, or the same seed run again, would make one seed look like two."""
    counted: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        first = counted.setdefault((run.preset, run.world.name, run.seed), run) if run.uncounted is None else run
        told = f"seed {run.seed} is counted once, as {first.path}"
        yield run if first is run else replace(run, uncounted=told, twin=first.path)
