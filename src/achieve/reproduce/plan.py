"""What is there and what is missing: the state of every run in a folder. Reads, and never writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from achieve.config import RUNTIME_FIELDS, TrainConfig, from_dict, refusal
from achieve.errors import AchieveError, ConfigError, RunFolderError
from achieve.reproduce.experiments import Run
from achieve.reproduce.watch import read_progress
from achieve.run.files import reason
from achieve.run.folder import read_config, read_summary


class State(Enum):
    """How far a run is, in the words of the plan."""

    MISSING = "to start"
    INTERRUPTED = "to continue"
    BUSY = "in other hands"
    FINISHED = "done"


@dataclass(frozen=True)
class Planned:
    """A run and what its folder says of it."""

    run: Run
    folder: Path
    state: State
    step: int = 0
    summary: Mapping[str, Any] | None = None

    @property
    def steps_left(self) -> int:
        return 0 if self.state is State.FINISHED else max(0, self.run.steps - self.step)


@dataclass(frozen=True)
class Plan:
    """All runs of the chosen experiments, in the order they will be made."""

    folder: Path
    runs: tuple[Planned, ...]

    def of(self, *states: State) -> list[Planned]:
        return [planned for planned in self.runs if planned.state in states]

    @property
    def to_do(self) -> list[Planned]:
        """Runs to make, those begun before first."""
        return [*self.of(State.INTERRUPTED), *self.of(State.MISSING)]


def make_plan(runs: Sequence[Run], folder: Path) -> Plan:
    """The state of every run; a folder that holds something else under a run's name is refused, with all such named."""
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


def inspect(run: Run, path: Path) -> Planned:
    """What a run's folder says; raises RunFolderError where it is not this run's."""
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
    _refuse_other_config(run.config, path)
    summary = read_summary(path)
    if summary is not None:
        return Planned(run, path, State.FINISHED, run.steps, summary)
    reading = read_progress(path)
    state = State.BUSY if is_locked(path) else State.INTERRUPTED
    return Planned(run, path, state, reading.step if reading else 0)


def is_locked(path: Path) -> bool:
    """Whether a living process is writing the run."""
    try:
        lock = os.open(path / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _refuse_other_config(wanted: TrainConfig, path: Path) -> None:
    try:
        found = refusal(from_dict(read_config(path)["config"]), wanted, RUNTIME_FIELDS, shown=3)
    except ConfigError as error:
        raise RunFolderError(f"{path / 'config.json'} is no config of this version: {error}") from error
    if found:
        raise RunFolderError(f"{path} holds a run with another config: {found}")
