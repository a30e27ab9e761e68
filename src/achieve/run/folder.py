"""A run's folder: where everything lies, whose it is, and that one process at a time writes it."""

import contextlib
import fcntl
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from achieve.config import TrainConfig, from_dict, refusal, to_dict
from achieve.errors import ConfigError, RunFolderError
from achieve.run.files import read_json, reason, sync_folder, write_json
from achieve.run.hardware import describe
from achieve.schema import UnfitError, anything, each_value, items, maybe, number, table, whole

_LOCK = ".lock"


class RunFolder:
    """An open run folder.

        with RunFolder.open(Path("runs/ad-s0"), config, free=("device",)) as run:
            ...

    `config.json` holds the resolved config under `config`, and under `starts` one entry for each
    time the run was started: when, by which command, with which versions, on which machine.
    """

    def __init__(self, path: Path, lock: int, resumed: bool, made: bool, record: dict[str, Any]) -> None:
        self.path = path
        self.resumed = resumed
        """Whether the folder was there before, with this config."""
        self._lock = lock
        self._made = made
        self._record = record

    @classmethod
    def open(
        cls,
        path: Path,
        config: TrainConfig,
        free: Collection[str] = (),
        command: str | None = None,
    ) -> "RunFolder":
        """Creates the folder, or opens it if it holds a run with the same config.

        `free` names settings (`device`, `env.threads`) that may change when a run is resumed. Nothing is written but
        the lock until `record` is called. Raises RunFolderError for a folder that cannot be written, that another
        process is writing, that holds another run, or that is not a run's; nothing is changed then.
        """
        if "\0" in str(path):
            raise RunFolderError(f"the name of the run folder {str(path)!r} has a NUL in it; choose another")
        _refuse_foreign(path)
        try:
            made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"the run folder {path} cannot be written: {reason(error)}; choose another"
            ) from error
        try:
            _take(lock, path)
            resumed = (path / "config.json").exists()
            starts = []
            if resumed:
                saved = _checked_record(path / "config.json", read_json(path / "config.json"))
                _refuse_other_config(path, saved["config"], config, free)
                starts = saved["starts"]
            start = {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": command or command_line(sys.argv),
                **describe(),
            }
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, resumed, made, {"config": to_dict(config), "starts": [*starts, start]})

    def record(self) -> None:
        """Writes the config and this start: the run really begins, or goes on, with these settings.

        A summary and weights that are there are no longer those of its end. The summary goes first: at no moment does
        the folder hold one that its config does not belong to.
        """
        try:
            for path in (self.summary, self.weights):
                path.unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise RunFolderError(f"the run folder {self.path} cannot be written: {reason(error)}") from error
        write_json(self.config, self._record)

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """A folder, for `save_checkpoint` and `load_checkpoint`."""
        return self.path / "checkpoint"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    def snapshot(self, step: int) -> Path:
        """Where acting weights are kept along the way; the folder is made."""
        folder = self.path / "snapshots"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be made: {reason(error)}") from error
        return folder / f"{step}.safetensors"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    def write_summary(self, values: Mapping[str, Any]) -> None:
        write_json(self.summary, values)

    def close(self) -> None:
        """Lets other processes write the run. A killed process lets go by itself.

        A new run that was never recorded leaves nothing behind, so that the corrected command finds the folder free.
        """
        if self._lock >= 0:
            if not self.resumed and not self.config.exists():
                (self.path / _LOCK).unlink(missing_ok=True)
                if self._made:
                    with contextlib.suppress(OSError):
                        self.path.rmdir()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def command_line(argv: Sequence[str]) -> str:
    """The command as one would type it again, without the path of this machine's program."""
    program = Path(argv[0]).name
    return shlex.join(
        [*(["python", "-m", "achieve"] if program == "__main__.py" else [program]), *argv[1:]]
    )


def read_config(run: Path) -> dict[str, Any]:
    """What `config.json` of a run folder holds: `config` and `starts`.

    `run` may also be the file itself, or a file with nothing but a config in it.
    """
    path = run / "config.json" if run.is_dir() else run
    if not path.exists():
        what = "has no config.json" if run.is_dir() else "does not exist"
        raise RunFolderError(f"{run} {what}; give a run folder such as runs/ad-s0")
    value = read_json(path)
    return _checked_record(path, value if "config" in value else {"config": value, "starts": []})


_RECORD = table({"config": each_value(anything)}, {"starts": items(each_value(anything))})


def _checked_record(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    try:
        _RECORD(record, "")
    except UnfitError as error:
        raise RunFolderError(
            f"{path} does not hold a run's config: {error}; restore it, or choose another run folder"
        ) from error
    return {"starts": [], **record}


_SUMMARY = table(
    {"steps": whole()},
    {
        "score": maybe(number()), "reward": maybe(number()), "parameters": whole(), "episodes": whole(),
        "steps_per_second": number(0), "runs_at_once": number(0), "seconds": each_value(number(0)),
        "success_rates": each_value(maybe(number())), "machine": each_value(anything),
    },
)  # fmt: skip


def read_summary(run: Path) -> dict[str, Any] | None:
    """A finished run's summary, None while there is none."""
    path = run / "summary.json"
    if not path.exists():
        return None
    summary = read_json(path)
    try:
        _SUMMARY(summary, "")
    except UnfitError as error:
        raise RunFolderError(
            f"{path} is not a run's summary: {error}; remove it, and the same command writes it again"
        ) from error
    return summary


def _refuse_foreign(path: Path) -> None:
    try:
        entries = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise RunFolderError(f"the run folder {path} cannot be read: {reason(error)}") from error
    # A run killed before its config was written leaves a lock and perhaps a half-written file.
    entries = [name for name in entries if name != _LOCK and not name.endswith(".tmp")]
    if entries and "config.json" not in entries:
        shown = ", ".join(entries[:3]) + (", ..." if len(entries) > 3 else "")
        raise RunFolderError(f"{path} is not a run folder (it holds {shown}); choose another")


def _refuse_other_config(path: Path, there: Mapping[str, Any], config: TrainConfig, free: Collection[str]) -> None:
    try:
        found = refusal(from_dict(there), config, free)
    except ConfigError as error:
        raise RunFolderError(f"{path / 'config.json'} is no config of this version: {error}") from error
    if found:
        raise RunFolderError(
            f"{path} holds a run with another config: {found}. "
            "Choose another run folder (--name or --folder), or give the settings it was started with to resume it"
        )


def _take(lock: int, path: Path) -> None:
    # flock belongs to the open file, so the kernel releases it with the process, however that ends.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        who = f" (process {holder})" if holder else ""
        raise RunFolderError(
            f"another process{who} is writing {path}; wait for it, or choose another run folder"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be locked: {reason(error)}") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
