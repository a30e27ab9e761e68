"""What is there and what is missing: the state of every run in a folder. Reads, and never writes."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from achieve.config import FREE_FIELDS, TrainConfig, from_dict, refusal
from achieve.errors import AchieveError, ConfigError, RunFolderError
from achieve.reproduce.tail_metrics import read_progress
from achieve.run.files import reason
from achieve.run.folder import read_config, read_summary


@dataclass(frozen=True)
class RunSpec:
    """One training run."""

    group: str
    """What its seeds have in common: a preset, or a variant of one."""
    config: TrainConfig
    flags: tuple[str, ...] = ()
    """Flags of `achieve train` that make this config, but for the seed."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.group}-s{self.config.seed}"

    @property
    def steps(self) -> int:
        """Environment steps of the whole run."""
        return self.config.num_rollouts * self.config.rollout_steps

    def arguments(self, folder: Path) -> list[str]:
        """Return the command line of `achieve` that makes or continues this run in `folder`."""
        where = ["--seed", str(self.config.seed), "--folder", str(folder)]
        return ["train", *self.flags, *where, "--no-report", "--quiet"]


class State(Enum):
    """How far a run is, as the plan shows it."""

    MISSING = "to start"
    INTERRUPTED = "to resume"
    BUSY = "running elsewhere"
    FINISHED = "done"


@dataclass(frozen=True)
class Planned:
    """A run and what its folder says of it."""

    run: RunSpec
    folder: Path
    state: State
    step: int = 0
    summary: Mapping[str, Any] | None = None

    @property
    def steps_left(self) -> int:
        return 0 if self.state is State.FINISHED else max(0, self.run.steps - self.step)


@dataclass(frozen=True)
class Plan:
    """All runs that are wanted, in the order they will be made."""

    folder: Path
    runs: tuple[Planned, ...]

    def of(self, state: State, group: str | None = None) -> list[Planned]:
        return [p for p in self.runs if p.state is state and group in (None, p.run.group)]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(planned.run.group for planned in self.runs))

    @property
    def to_do(self) -> list[Planned]:
        """Runs to make, those begun before first."""
        return [*self.of(State.INTERRUPTED), *self.of(State.MISSING)]


def make_plan(runs: Sequence[RunSpec], folder: Path) -> Plan:
    """Find the state of every run; a folder that holds something else under a run's name is refused, all such named."""
    planned, wrong = [], []
    for run in runs:
        try:
            planned.append(inspect(run, folder / run.name))
        except AchieveError as error:
            wrong.append(str(error))
    if wrong:
        shown = "\n  ".join(wrong[:8]) + (f"\n  and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        raise RunFolderError(
            f"{len(wrong)} of {len(runs)} runs cannot be made in {folder}, and nothing was changed:\n  {shown}\n"
            "Move what is there away, or give another --folder"
        )
    return Plan(folder, tuple(planned))


def inspect(run: RunSpec, path: Path) -> Planned:
    """Return what a run's folder says; raises where it is not this run's, or the run cannot start at all."""
    config = run.config
    if config.init_from is not None:
        from achieve.initial import settle  # it loads PyTorch, which takes seconds

        config = settle(config, path)
    try:
        entries = [entry.name for entry in path.iterdir()] if path.exists() else []
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read as a folder: {reason(error)}") from error
    # A run killed before its config was written leaves a lock and perhaps a half-written file.
    entries = [name for name in entries if name != ".lock" and not name.endswith(".tmp")]
    if not entries:
        return Planned(run, path, State.MISSING)
    if "config.json" not in entries:
        raise RunFolderError(f"{path} is not a run folder (it holds {', '.join(sorted(entries)[:3])})")
    try:
        found = refusal(from_dict(read_config(path)["config"]), config, FREE_FIELDS, shown=3)
    except ConfigError as error:
        raise RunFolderError(f"{path / 'config.json'} is not a config of this version: {error}") from error
    if found:
        raise RunFolderError(f"{path} holds a run with another config: {found}")
    summary = read_summary(path)
    if summary is not None:
        return _complete(run, path, summary)
    reading = read_progress(path)
    state = State.BUSY if is_locked(path) else State.INTERRUPTED
    return Planned(run, path, state, reading.step if reading else 0)


def _complete(run: RunSpec, path: Path, summary: Mapping[str, Any]) -> Planned:
    """Judge a complete run by its length: like `achieve train`, a longer one continues it where that is possible."""
    steps = summary.get("steps", run.steps)
    if steps == run.steps:
        return Planned(run, path, State.FINISHED, run.steps, summary)
    if steps > run.steps:
        raise RunFolderError(f"{path} is complete after {steps:,} steps, more than the {run.steps:,} wanted")
    from achieve.run.checkpoint import has_checkpoint  # it loads PyTorch, too

    if run.config.trainer == "qrdqn" or not has_checkpoint(path / "checkpoint"):
        raise RunFolderError(f"{path} is complete after {steps:,} steps and cannot go on to {run.steps:,}")
    return Planned(run, path, State.INTERRUPTED, steps)


def is_locked(path: Path) -> bool:
    """Return whether a living process is writing the run."""
    try:
        with open(path / ".lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or none that can be asked
        return False
    return False
