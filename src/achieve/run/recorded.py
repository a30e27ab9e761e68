"""The run folder of an agent that is not ours: written by one process or several, whenever an episode ends.

The folder has the files of any run: `config.json`, `episodes.jsonl` and, once nobody writes it any more,
`summary.json`. While it is written, `.recorder` counts the steps of everybody who writes: a file in shared memory, so
that a step costs an addition. It outlives its processes: a run that was killed goes on from the steps it has taken.
"""

from __future__ import annotations

import fcntl
import gc
import json
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from achieve.config import EXTERNAL, EnvConfig, TrainConfig, from_dict, refusal, to_dict, validate
from achieve.envs.registry import find_env_spec
from achieve.errors import ConfigError, RunFolderError
from achieve.run.files import explained, reason, write_json
from achieve.run.folder import command_line, read_config, read_summary, refuse_foreign, refuse_packed
from achieve.run.hardware import describe
from achieve.scoring.episodes import PREFIX, load_episodes
from achieve.scoring.score import BUDGET, score_run
from achieve.settings import parse_json, shown

COUNTS = ".recorder"
SLOTS = 4096
"""The most recorders that can write a run at the same time."""
SYNC_SECONDS = 30.0
"""The most that a power failure may cost; the crash of a process costs nothing."""
_BASE, _MILLISECONDS, _BEGAN, _USED, _HEADER = 0, 1, 2, 3, 4
"""Where the counts begin: steps of those who have left, time of earlier sessions, this one's beginning, slots."""


class Episode(NamedTuple):
    """A finished episode: how long it was, its return, and how often each achievement was unlocked."""

    length: int
    episode_return: float
    achievements: Mapping[str, int]


def describe_run(name: str, seed: int, env: EnvConfig) -> TrainConfig:
    """Return the config of a run of an agent that is not ours; raise ConfigError for one that cannot be."""
    score_steps = find_env_spec(env.name).published_steps or BUDGET
    config = TrainConfig(preset=EXTERNAL, trainer=EXTERNAL, name=name, seed=seed, env=env, score_steps=score_steps)
    validate(config)
    return config


class RecordedRun:
    """One of those who write a recorded run; :meth:`close` writes the summary if it is the last of them.

    Args:
        path: the run folder. If it holds a run with the same config and settings, that one goes on; while others
            write it, they share it.
        config: see :func:`describe_run`.
        settings: what else distinguishes the agent. Runs with different settings are never averaged.
        resume_at: the steps after which the agent goes on, those of its checkpoint. What was recorded after them is
            dropped. By default a run goes on from the steps it has taken. Only the first to open the run decides.
    """

    def __init__(
        self,
        path: Path,
        config: TrainConfig,
        settings: Mapping[str, Any] | None = None,
        resume_at: int | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.settings = _plain_settings(settings or {})
        self._spec = find_env_spec(config.env.name)
        self._names: tuple[str, ...] = ()
        self._template = ""
        self._synced = time.monotonic()
        self._pid = os.getpid()
        self.continued = 0
        """Steps that the run had taken when this recorder opened it as the first."""
        self._mutex = threading.Lock()  # a lock on a file keeps out processes, not threads
        self._lock = self._log = -1
        refuse_foreign(path)
        refuse_packed(path)
        if (path / "config.json").exists():
            refuse_other(path, config, self.settings)
        with explained(f"the run folder {path} cannot be written", way_out="; choose another"):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            self._log = os.open(path / "episodes.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            with self._alone():
                first = self._enter()
                if (path / "config.json").exists():
                    refuse_other(path, config, self.settings)
                self._mend_log()
                self._open_counts()
                if first:
                    self._begin(resume_at)
                self._slot = self._take_slot()
        except BaseException:
            self._leave()
            raise

    # Counting and writing

    def advance(self, steps: int) -> None:
        """Count environment steps."""
        self._counts[self._slot] += steps

    @property
    def steps(self) -> int:
        """Environment steps of everybody who has written this run."""
        counts = self._counts
        return counts[_BASE] + sum(taken - 1 for taken in counts[_HEADER : _HEADER + counts[_USED]] if taken)

    def write(self, *episodes: Episode) -> None:
        """Log episodes that have ended with the last steps counted."""
        if not episodes:
            return
        if self._log < 0:
            raise RunFolderError(f"the environment was closed, so its episodes cannot be added to {self.path} any more")
        if os.getpid() != self._pid:
            # Locks and counts are shared with the parent and its other children: they would overwrite each other.
            raise RunFolderError(
                f"{self.path} was opened by the process that this one was forked from; call achieve.record in the "
                "process that steps the environment"
            )
        with self._alone():
            self._mend_log()
            step = self.steps
            lines = [self._line(step, *episode) for episode in episodes]
            with explained(f"{self.path / 'episodes.jsonl'} cannot be written"):
                _write_all(self._log, "".join(lines).encode())
                if time.monotonic() - self._synced > SYNC_SECONDS:
                    os.fsync(self._log)
                    self._synced = time.monotonic()

    def close(self) -> None:
        """Leave the run; the last to leave writes `summary.json`. A second call does nothing, nor does a child's."""
        if self._log < 0 or os.getpid() != self._pid:
            return
        try:
            with self._alone():
                self._view[_BASE] += self._counts[self._slot] - 1
                self._counts[self._slot] = 0
                with suppress(OSError):
                    self._mend_log()
                    os.fsync(self._log)
                if self._last():
                    self._finish()
        finally:
            self._leave()

    # Opening

    def _enter(self) -> bool:
        """Take part; return whether nobody else does."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            first = False
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be locked: {reason(error)}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"another process is training in {self.path}; wait for it, or choose another run folder"
            ) from None
        if first:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return first

    def _last(self) -> bool:
        # While the log is locked nobody else can enter.
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _open_counts(self) -> None:
        path, size = self.path / COUNTS, 8 * (_HEADER + SLOTS)
        with explained(f"{path} cannot be written"):
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.fstat(file).st_size != size:
                    os.ftruncate(file, 0)
                    os.ftruncate(file, size)
                self._memory = mmap.mmap(file, size)
            finally:
                os.close(file)
        self._counts = memoryview(self._memory).cast("q")
        self._view = np.frombuffer(self._memory, np.int64)

    def _begin(self, resume_at: int | None) -> None:
        """Begin or continue the run, as the only one who writes it."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        starts = read_config(self.path)["starts"] if (self.path / "config.json").exists() else []
        last, milliseconds = self._steps_so_far()
        if resume_at is not None:
            if not 0 <= resume_at <= last:
                raise RunFolderError(
                    f"the run in {self.path} has taken {last:,} steps, so it cannot go on from step {resume_at:,}; "
                    "choose another run folder"
                )
            self._cut_log(resume_at)
            last = resume_at
        start = {"time": now, "command": command_line(sys.argv), **describe(gpus="torch" in sys.modules)}
        if starts:
            start["resumed_at"] = last
        # Before the summary goes, which is where a finished run keeps its steps.
        self._view[:] = 0
        self._view[_BASE], self._view[_MILLISECONDS], self._view[_BEGAN] = last, milliseconds, _now()
        with explained(f"the run folder {self.path} cannot be written"):
            (self.path / "summary.json").unlink(missing_ok=True)
        record = {"config": to_dict(self.config), "settings": self.settings, "starts": [*starts, start]}
        write_json(self.path / "config.json", record)
        self.continued = last

    def _steps_so_far(self) -> tuple[int, int]:
        """Return the steps that the run has taken before, and its time in milliseconds."""
        summary = read_summary(self.path) or {}
        milliseconds = round(1000 * summary.get("seconds", {}).get("total", 0.0))
        if _total(self._view):  # it was killed: nobody has written a summary
            written = round(1000 * os.fstat(self._log).st_mtime)
            milliseconds = int(self._view[_MILLISECONDS]) + max(0, written - int(self._view[_BEGAN]))
        logged = load_episodes(self.path).step
        return max(_total(self._view), summary.get("steps", 0), int(logged[-1]) if len(logged) else 0), milliseconds

    def _take_slot(self) -> int:
        """Return a place in the counts; a taken one holds one more than its steps."""
        used = int(self._view[_USED])
        free = np.flatnonzero(self._view[_HEADER : _HEADER + used] == 0)
        place = int(free[0]) if len(free) else used
        if place == SLOTS:
            raise RunFolderError(f"{self.path} has {SLOTS:,} recorders already; record a vector environment as one")
        self._view[_USED] = max(used, place + 1)
        self._view[_HEADER + place] = 1
        return _HEADER + place

    # The log

    def _mend_log(self) -> None:
        """Drop a last line that a killed process left unfinished."""
        size = os.fstat(self._log).st_size
        if size and os.pread(self._log, 1, size - 1) != b"\n":
            os.ftruncate(self._log, os.pread(self._log, size, 0).rfind(b"\n") + 1)

    def _cut_log(self, step: int) -> None:
        """Drop the episodes that ended after a step."""
        lines = os.pread(self._log, os.fstat(self._log).st_size, 0).splitlines(keepends=True)
        kept = int(np.searchsorted(load_episodes(self.path).step, step, side="right"))
        os.ftruncate(self._log, sum(map(len, lines[:kept])))

    def _line(self, step: int, length: int, episode_return: float, achievements: Mapping[str, int]) -> str:
        """Return an episode as JSON; raise RunFolderError for one with other achievements than those before it."""
        if not self._names:
            line = os.pread(self._log, 1 << 16, 0).partition(b"\n")[0]
            logged = [key.removeprefix(PREFIX) for key in (parse_json(line) if line else {}) if key.startswith(PREFIX)]
            self._names = tuple(logged if line else self._named(achievements))
            keys = "".join(f", {json.dumps(PREFIX + name).replace('%', '%%')}: %d" for name in self._names)
            self._template = f'{{"step": %d, "length": %d, "reward": %r{keys}}}\n'
        if not math.isfinite(episode_return):
            raise RunFolderError(f"{self.path}: the return of an episode is {episode_return}, which no table can show")
        if len(achievements) != len(self._names) or not all(name in achievements for name in self._names):
            raise RunFolderError(
                f"{self.path} has episodes with {len(self._names)} achievements, and this one has {len(achievements)}, "
                "not the same ones; record each environment in a folder of its own, and let it count every "
                "achievement, also those not unlocked"
            )
        counts = [achievements[name] for name in self._names]
        return self._template % (step, length, round(float(episode_return), self._spec.decimals), *counts)

    def _named(self, achievements: Mapping[str, int]) -> Iterable[str]:
        """Return the achievements in the order of the log; in Crafter, the score is over its own alone."""
        if self._spec.name != "crafter":
            return achievements
        from achieve.envs.crafter.data import ACHIEVEMENTS

        if set(achievements) != set(ACHIEVEMENTS):
            raise RunFolderError(
                f"{self.path} is a run in Crafter, but an episode has {len(achievements)} achievements that are not "
                f"Crafter's {len(ACHIEVEMENTS)}; the recorder needs infos as the environment gives them, so record it "
                "before wrappers that change infos, or name the environment it really is (env_name)"
            )
        return ACHIEVEMENTS

    # Closing

    def _finish(self) -> None:
        steps = self.steps
        total = (int(self._view[_MILLISECONDS]) + max(0, _now() - int(self._view[_BEGAN]))) / 1000
        score = score_run(load_episodes(self.path), steps, self.config.score_steps, self._spec)
        summary = {
            "preset": self.config.preset,
            "name": self.config.name,
            "seed": self.config.seed,
            "steps": steps,
            **score.as_dict(),
            "seconds": {"total": total},
            "steps_per_second": steps / total if total else 0.0,
            **describe(gpus="torch" in sys.modules),
        }
        write_json(self.path / "summary.json", summary)
        with suppress(OSError):
            (self.path / COUNTS).unlink()

    def _leave(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked process may have the file open still
        for descriptor in (self._lock, self._log):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._log = -1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the other recorders of this run waiting."""
        with self._mutex:
            # Garbage may hold another recorder of this run, which would close, and wait here for its own thread.
            collects = gc.isenabled()
            gc.disable()
            try:
                fcntl.flock(self._log, fcntl.LOCK_EX)
                try:
                    yield
                finally:
                    fcntl.flock(self._log, fcntl.LOCK_UN)
            finally:
                if collects:
                    gc.enable()


def refuse_other(path: Path, config: TrainConfig, settings: Mapping[str, Any]) -> None:
    """Raise RunFolderError for a folder with another run than this one."""
    saved = read_config(path)
    found = refusal(from_dict(saved["config"]), config, ("env.num_envs",))
    theirs = saved["settings"]
    unlike = [name for name in {**theirs, **settings} if theirs.get(name) != settings.get(name)]
    if not found and unlike:
        name = unlike[0]
        found = f"its setting {name} is {shown(theirs.get(name))} there, {shown(settings.get(name))} here"
    if found:
        raise RunFolderError(
            f"{path} holds another run: {found}. Choose another run folder, or give what it was started with"
        )


def taken_steps(run: Path) -> int | None:
    """Return the environment steps that a run being recorded, or killed, has taken; None where nothing counts them."""
    try:
        counts = np.frombuffer((run / COUNTS).read_bytes(), np.int64)
    except (OSError, ValueError):
        return None
    return _total(counts) if len(counts) == _HEADER + SLOTS else None


def write_recorded(
    path: Path,
    config: TrainConfig,
    episodes: Sequence[tuple[int, Episode]],
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
) -> None:
    """Write a whole run, episodes with the steps at which they ended, into a folder that holds none."""
    if (path / "config.json").exists():
        raise RunFolderError(f"{path} holds a run already; choose another run folder (--folder), or remove it")
    run = RecordedRun(path, config, settings)
    for step, episode in episodes:
        run.advance(step - run.steps)
        run.write(episode)
    run.advance(max(0, (steps or 0) - run.steps))
    run.close()
    # The time it took here says nothing about the agent, and neither does this machine.
    summary = read_summary(path) or {}
    for name in ("seconds", "steps_per_second", "machine", "versions", "commit"):
        summary.pop(name, None)
    write_json(path / "summary.json", summary)


def _plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON has them."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(settings), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings cannot be written as JSON: {error}; give numbers, texts and lists") from None
    return plain


def _write_all(file: int, data: bytes) -> None:
    """Write to a file; a disk that becomes full in the middle would otherwise not be reported."""
    while data:
        data = data[os.write(file, data) :]


def _total(counts: np.ndarray) -> int:
    taken = counts[_HEADER : _HEADER + int(counts[_USED])]
    return int(counts[_BASE] + (taken[taken > 0] - 1).sum())


def _now() -> int:
    return round(1000 * time.time())
