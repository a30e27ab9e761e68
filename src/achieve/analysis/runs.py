"""Runs, each read from its own log; which of them form a group; and why some do not count.

A folder's name says nothing: what a run is comes from its config, its figures from its episodes. Runs form a group, and
may be averaged, if they have the same settings except for those in `achieve.presets.INDIFFERENT` (the seed, the length,
how and where they were computed), and if their convolutions were computed in the same precision.
"""

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from achieve.analysis.published import PAPER_DECISIVE, PAPER_SETTINGS
from achieve.config import EXTERNAL, TrainConfig, differences, from_any_version
from achieve.envs.registry import EnvSpec, find_env_spec
from achieve.errors import AchieveError, ConfigError, RunFolderError
from achieve.presets import HUMAN, INDIFFERENT, PRESETS, changes, in_words, setting, variant
from achieve.run.files import reason
from achieve.run.folder import read_config, read_summary
from achieve.run.recorded import taken_steps
from achieve.scoring.episodes import FILE_NAMES, Episodes, load_episodes
from achieve.scoring.score import RunScore, score_run

DEPTH = 3
"""How many folders below a given one are searched for runs."""

ANALYSES = ("probe.json", "matching.json", "hierarchy.json")
"""What the commands of these names write into their folders."""


@dataclass(frozen=True)
class Run:
    """A run that could be read."""

    path: Path
    config: TrainConfig
    spec: EnvSpec
    episodes: Episodes
    score: RunScore
    summary: Mapping[str, Any]
    """What the run wrote when it was complete; empty before."""
    starts: Sequence[Mapping[str, Any]]
    """Each time it was started: when, by which command, on which machine."""
    uncounted: str | None = None
    """Why it is not among the seeds beside the published figures."""
    short: bool = False
    """Whether it does not count only because it stops before the published ones; of a seed, the longest."""
    twin: Path | None = None
    """The run of the same settings and seed that counts in its place."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of an agent of another library, as it was recorded, and those that this version does not have."""
    unknown: tuple[str, ...] = ()
    """Names of the latter."""

    @property
    def preset(self) -> str:
        return self.config.preset

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def external(self) -> bool:
        """Whether it was recorded from an agent of another library."""
        return self.config.trainer == EXTERNAL

    @property
    def game(self) -> str:
        """The environment's title, with the options that make it another game."""
        options = ", ".join(sorted(self.config.env.options))
        return f"{self.spec.title} ({options})" if options else self.spec.title

    @property
    def precision(self) -> str:
        """The precision of the convolutions: as the run recorded it or, before its end, as its machine decides it."""
        config, machine = self.config, self.starts[-1].get("machine") if self.starts else None
        if self.external:
            return "not ours"
        if recorded := self.summary.get("arithmetic"):
            return str(recorded).partition(",")[0]  # of `fp16, fused`, `tf32, plain (...)`
        if config.precision != "auto":
            return config.precision
        if config.device == "cpu" or (machine and not machine.get("gpus")):
            return "fp32"
        if not machine:
            return "precision not recorded"
        # The fused kernels are for the residual encoder with norms and for spcnn without.
        fused = (config.model.encoder, config.model.norm) in (("residual", True), ("spcnn", False))
        return "fp16" if config.compile and fused else "tf32"

    def read_at(self, step: int, end: int | None = None) -> Self:
        """Return the run evaluated at this step, or at its end if that comes first, as if it had been ended at ``end``.

        The protocol counts episodes by their lengths. So it takes in some that ended after the step, which a run that
        ends there cannot have: beside such a run, this one must have ended, too.
        """
        episodes, taken = self.episodes, self.taken
        if end is not None and end < taken:
            episodes, taken = episodes.until(end), end
        return replace(self, score=score_run(episodes, taken, step, self.spec))

    @property
    def taken(self) -> int:
        """Environment steps it has taken, by its episodes if nothing else tells."""
        last = int(self.episodes.step[-1]) if len(self.episodes.step) else 0
        return max(last, self.steps or 0)

    @property
    def steps(self) -> int | None:
        """Environment steps it has taken, None where only its episodes tell."""
        return self.summary.get("steps") or taken_steps(self.path)

    @property
    def command(self) -> str | None:
        """The command that trains it: the last, which may have extended it. None where it is not recorded."""
        return str(self.starts[-1]["command"]) if self.starts and "command" in self.starts[-1] else None


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

    def recorded(self, name: str) -> list[Run]:
        """Return the runs of another library's agent that count beside the published ones."""
        runs = [run for run in self.runs if run.external and run.config.name == name and run.uncounted is None]
        return sorted(runs, key=lambda run: run.seed)

    def seeds(self, preset: str, *, short: bool = False) -> list[Run]:
        """Return the runs of a preset, in its own environment, that count; with ``short``, would count if longer."""
        env = PRESETS[preset].env.name
        runs = [run for run in self.runs if (run.short if short else run.uncounted is None)]
        return sorted((r for r in runs if (r.preset, r.spec.name) == (preset, env)), key=lambda run: run.seed)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    label: str
    runs: tuple[Run, ...]
    """One for each seed, in the order found; of several, the longest."""
    repeats: tuple[Run, ...] = ()
    """Further runs of seeds that are there already. They do not count, or one seed would look like two."""

    @property
    def end(self) -> int:
        """The step at which its shortest run is evaluated."""
        return min(run.score.read_at for run in self.runs)

    def read_at(self, step: int) -> Self:
        """Return the group with all runs evaluated at this step, on equal terms."""
        return replace(self, runs=tuple(at_equal_steps(self.runs, step)))


def at_equal_steps(runs: Sequence[Run], step: int) -> list[Run]:
    """Return runs evaluated at this step, all of them as if they had ended where the shortest of them does.

    Those that are all evaluated there in any case, such as whole runs, are left as they are.
    """
    if all(run.score.read_at == step for run in runs):
        return list(runs)
    end = min((run.taken for run in runs), default=0)
    return [run.read_at(step, end) for run in runs]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by what decides their results, in the order found; groups are named by how they differ."""
    alike: dict[Any, list[Run]] = {}
    for run in runs:
        decisive = differences(run.config, TrainConfig(), INDIFFERENT)
        own = json.dumps(run.settings, sort_keys=True)
        alike.setdefault((run.config.name, run.precision, frozenset(decisive.items()), own), []).append(run)
    groups = []
    for label, some in zip(_labels([some[0] for some in alike.values()]), alike.values(), strict=True):
        seeds: dict[int, Run] = {}
        for run in some:
            seeds[run.seed] = max(seeds.get(run.seed, run), run, key=lambda run: run.score.read_at)
        repeats = [replace(run, twin=seeds[run.seed].path) for run in some if seeds[run.seed] is not run]
        groups.append(Group(label, tuple(seeds.values()), tuple(repeats)))
    return groups


def _labels(runs: Sequence[Run]) -> list[str]:
    """Name each of these runs, none of which are alike, and no name twice."""
    # Without a name, a run of another version would look like the preset's.
    unlike = [bool(run.unknown) and run.config.name is None for run in runs]
    labels = [variant(r.config) + (", another version" if u else "") for r, u in zip(runs, unlike, strict=True)]
    for label in {label for label in labels if labels.count(label) > 1}:
        places = [place for place, other in enumerate(labels) if other == label]
        first = runs[places[0]]
        names = [name for place in places for name in differences(runs[place].config, first.config, INDIFFERENT)]
        own = _unlike([runs[place].settings for place in places])
        precise = len({runs[place].precision for place in places}) > 1
        for place in places:
            values = [setting(name, attrgetter(name)(runs[place].config)) for name in dict.fromkeys(names)]
            values += [f"{name} {runs[place].settings.get(name, 'not given')}" for name in own]
            labels[place] = ", ".join([label, *values, *([runs[place].precision] if precise else [])])
    seen: dict[str, int] = {}
    for place, label in enumerate(labels):  # the same words for runs of different names
        seen[label] = seen.get(label, 0) + 1
        labels[place] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return labels


def _unlike(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings in which some differ."""
    names = dict.fromkeys(name for some in settings for name in some)
    return [name for name in names if any(some.get(name) != settings[0].get(name) for some in settings)]


BESIDE = ("logs", "reproduce")
"""Folders that `train --seeds`, `sweep` and `reproduce` make beside their runs."""


def runs_among(folders: Sequence[Path]) -> list[Path]:
    """Leave out what the commands for many runs make beside them, which `runs/*` names too, unless there is no run."""
    return [folder for folder in folders if folder.name not in BESIDE or _is_run(folder)] or list(folders)


def read_groups(folders: Sequence[Path]) -> tuple[list[Group], list[str]]:
    """Return the runs in these folders by group, all evaluated at the same step, and notes on what that took.

    They must be of one environment and have episodes.
    """
    if not folders:
        raise ConfigError("name at least one run folder")
    runs = [read_run(folder, []) for folder in runs_among(folders)]
    first = runs[0]
    for run in runs:
        if not len(run.episodes.step):
            raise ConfigError(f"{run.path} has no finished episode yet, so there is nothing to draw")
        if run.spec.name != first.spec.name:
            raise ConfigError(
                f"{run.path} is a run in {run.spec.title} and {first.path} one in {first.spec.title}; draw them apart"
            )
        if run.score.names != first.score.names:
            raise ConfigError(
                f"{run.path} has {len(run.score.names)} achievements and {first.path} {len(first.score.names)}, not "
                f"the same ones; {run.spec.title} was made with other options, so draw them apart"
            )
    groups = group_runs(runs)
    notes = [repeated(run) for group in groups for run in group.repeats]
    notes += [note for group in groups for note in other_code(group)]
    games = {group.label: group.runs[0].game for group in groups}
    if len(set(games.values())) > 1:
        told = "; ".join(f"{label}: {game}" for label, game in games.items())
        notes.append(f"Not the same game, so their figures are not comparable. {told}.")
    at = min(group.end for group in groups)
    if any(run.score.read_at != at for group in groups for run in group.runs):
        notes.append(f"All runs are evaluated at step {at:,}, where the shortest of them ends.")
    equal = iter(at_equal_steps([run for group in groups for run in group.runs], at))
    return [replace(group, runs=tuple(next(equal) for _ in group.runs)) for group in groups], notes


def repeated(run: Run) -> str:
    """Say that a run's seed is in its group already."""
    return f"Not counted: {run.path}, which is seed {run.seed} again, as {run.twin}."


def other_code(group: Group) -> list[str]:
    """Say which code of the user's own was not the same in all runs of a group, at any of their starts."""
    digests: dict[str, set[str]] = {}
    for start in (start for run in group.runs for start in run.starts):
        code = start.get("code")
        for name, digest in (code if isinstance(code, Mapping) else {}).items():
            digests.setdefault(name, set()).add(str(digest))
    changed = [name for name, found in digests.items() if len(found) > 1]
    if not changed:
        return []
    return [f"The runs of {group.label} were trained with different versions of {', '.join(changed)}."]


def gather(sources: Sequence[Path]) -> Gathered:
    """Read every run in these folders and up to three folders below them.

    A folder that cannot be read as a run is a remark, never an error; a source that does not exist is one.
    """
    runs: list[Run] = []
    remarks: list[Remark] = []
    folders: dict[Path, Path] = {}
    for source in sources:
        known = len(remarks)
        below = list(_folders(source, remarks))
        for folder in below:
            if folder.resolve() not in folders:
                folders[folder.resolve()] = folder
                if _is_run(folder):
                    _read(folder, runs, remarks)
        empty = not any(_is_run(folder) or any((folder / name).is_file() for name in ANALYSES) for folder in below)
        if empty and len(remarks) == known:
            remarks.append(Remark(source, "holds no run"))
    return Gathered(tuple(_counted(runs)), tuple(remarks), tuple(folders.values()))


def find_runs(sources: Sequence[Path], remarks: list[Remark]) -> list[Path]:
    """Return the run folders in these folders and up to three folders below them, each once."""
    found = (folder for source in sources for folder in _folders(source, remarks) if _is_run(folder))
    return list({folder.resolve(): folder for folder in found}.values())


def _folders(source: Path, remarks: list[Remark]) -> Iterator[Path]:
    """Yield the folder itself and, unless it is a run, those below it."""
    if not source.is_dir():
        what = "is not a folder" if source.exists() else "does not exist"
        raise RunFolderError(f"{source} {what}; give run folders, or folders that hold them, such as results")
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
    """Strip the path, which is shown beside it, and the advice on what to give instead."""
    text = text.partition("; give a run folder")[0]
    return text.replace(f"{folder}{os.sep}", "").removeprefix(f"{folder} ").removeprefix(f"{folder}: ")


def read_run(folder: Path, remarks: list[Remark]) -> Run:
    """Read one run from its folder; an `AchieveError` says what is wrong with it."""
    saved = read_config(folder)
    config, unknown = from_any_version(saved["config"])
    settings = {**saved["settings"], **unknown}
    spec = find_env_spec(config.env.name)
    try:
        summary = read_summary(folder) or {}
    except RunFolderError as error:
        remarks.append(Remark(folder, f"{_own_words(folder, str(error))}; read from its log alone"))
        summary = {}
    episodes = load_episodes(folder)
    score = score_run(episodes, summary.get("steps") or taken_steps(folder), config.score_steps, spec)
    starts = tuple(saved["starts"])
    run = Run(folder, config, spec, episodes, score, summary, starts, settings=settings, unknown=tuple(unknown))
    if difference := _disagreement(run):
        remarks.append(Remark(folder, difference))
    uncounted, short = _why_not(run)
    return replace(run, uncounted=uncounted, short=short)


def _disagreement(run: Run) -> str | None:
    """Say where the summary contradicts the log, which is the authority."""
    for name, value in (("score", run.score.score), ("reward", run.score.reward)):
        key = f"{run.spec.goal}_success_rate" if name == "score" and run.spec.goal else name
        saved = run.summary.get(key)
        if isinstance(saved, int | float) and not math.isclose(saved, value, rel_tol=1e-6, abs_tol=1e-6):
            return f"summary.json says {key} {saved:.4f}, its log {value:.4f}; the log's figure is shown"
    return None


def _why_not(run: Run) -> tuple[str | None, bool]:
    """Return why a run does not count, None where it does, and whether that is only because it stops too early."""
    published, at = run.spec.published_steps, run.score.read_at
    if not len(run.episodes.step):
        return "no finished episode", False
    if run.preset == HUMAN:
        return "played by a person", False
    if published is None:
        return "an environment without published results", False
    own = None
    if run.external:
        own = _why_not_recorded(run)
    elif run.preset not in PRESETS:
        own = f"there is no preset {run.preset!r} in this version"
    elif run.unknown:
        own = other_version(run)
    elif run.config.init_from is not None:
        own = f"not from scratch: it {run.config.origin}"
    elif changed := changes(run.config):
        others = [f"{name} is {in_words(value)}, not {in_words(preset)}" for name, (value, preset) in changed.items()]
        more = [f"{len(others) - 3} more"] if others[3:] else []
        own = f"not the preset's settings: {'; '.join([*others[:3], *more])}"
    elif run.config.name is not None:
        own = f"a variant with a name of its own, {run.config.name}"
    if at != published:
        done = "" if run.summary else "unfinished: "
        if run.external:  # which are never counted, so that nothing is lost by saying everything
            return f"{own}; {done}evaluated at {at:,} steps" if own else f"{done}evaluated at {at:,} steps", False
        return f"{done}evaluated at {at:,} steps, published results at {published:,}", at < published and not own
    return own, False


def _why_not_recorded(run: Run) -> str | None:
    """Return why the run of another library's agent does not count, whatever its length."""
    if run.config.env.options:
        return f"another game: {', '.join(run.config.env.options)}"
    if run.unknown:
        return other_version(run)
    name = run.config.name or ""
    if name not in PAPER_SETTINGS:
        return "an agent of another library, without published results"
    others = paper_differences(name, run.settings)
    return f"not the published settings: {'; '.join(others)}" if others else None


def other_version(run: Run) -> str:
    """Say which settings a run has that this version does not."""
    more = [f"{len(run.unknown) - 3} more"] if run.unknown[3:] else []
    return f"it has settings that this version does not: {', '.join([*run.unknown[:3], *more])}"


def paper_differences(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return `size is S, not XL` for each setting in which a recorded agent is not the published one."""
    return [
        f"{key} is {settings.get(key, 'not given')}, not {value}"
        for key, value in PAPER_SETTINGS.get(name, {}).items()
        if settings.get(key, None if key in PAPER_DECISIVE else value) != value
    ]


def _counted(runs: Sequence[Run]) -> Iterator[Run]:
    """Let each seed count once, and beside published results only runs of one precision: that of most seeds.

    Runs that stop early are shown where an agent has no others. Beside others they decide nothing.
    """
    whole = {_agent(run) for run in runs if run.uncounted is None}

    def compared(run: Run) -> bool:
        return run.uncounted is None or (run.short and _agent(run) not in whole)

    precisions: dict[tuple[str | None, ...], dict[str, set[int]]] = {}
    for run in filter(compared, runs):
        precisions.setdefault(_agent(run), {}).setdefault(run.precision, set()).add(run.seed)
    usual = {agent: max(seeds, key=lambda precision: len(seeds[precision])) for agent, seeds in precisions.items()}
    chosen: dict[tuple[Any, ...], Run] = {}
    for run in filter(compared, runs):
        if run.precision == usual[_agent(run)]:
            key = (*_agent(run), run.seed)
            chosen[key] = max(chosen.get(key, run), run, key=lambda run: run.score.read_at)  # of equal ones, the first
    for run in runs:
        if not compared(run):
            yield run
        elif run.precision != (most := usual[_agent(run)]):
            why = f"computed in {run.precision} and most others in {most}, so not averaged with them"
            yield replace(run, uncounted=why, short=False)
        elif (first := chosen[(*_agent(run), run.seed)]) is run:
            yield run
        elif run.short:  # its seed is there already
            yield replace(run, short=False)
        else:
            yield replace(run, uncounted=f"seed {run.seed} is counted once, as {first.path}", twin=first.path)


def _agent(run: Run) -> tuple[str | None, ...]:
    """Return what runs that are averaged have in common; whether their settings are the same was checked before."""
    return run.preset, run.config.name if run.external else None, run.spec.name
