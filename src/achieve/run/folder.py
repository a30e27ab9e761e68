"""The folder of a run: its files, its config, and a lock that lets one process at a time write it."""

import contextlib
import fcntl
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from achieve.config import FREE_FIELDS, TrainConfig, from_dict, refusal, to_dict
from achieve.errors import ConfigError, RunFolderError
from achieve.run.files import explained, read_json, reason, sync_folder, write_json
from achieve.run.hardware import describe
from achieve.settings import NonNegativeFloat, NonNegativeInt, UnfitError, convert

_LOCK = ".lock"


class RunFolder:
    """An open run folder, as a context manager.

    `config.json` holds the resolved config under `config`, and under `starts` an entry for each start of the run: when,
    by which command, with which versions, on which machine, and with which code of the user's own.

    Attributes:
        resumed: whether the folder was there before, with this config.
        checkpoint: a folder, for `save_checkpoint` and `load_checkpoint`.
    """

    def __init__(self, path: Path, lock: int, resumed: bool, made: bool, record: dict[str, Any]) -> None:
        self.path = path
        self.resumed = resumed
        self.config = path / "config.json"
        self.episodes = path / "episodes.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint"
        self.weights = path / "weights.safetensors"
        self.summary = path / "summary.json"
        self._lock = lock
        self._made = made
        self._record = record

    @classmethod
    def open(cls, path: Path, config: TrainConfig) -> "RunFolder":
        """Create the folder, or opens it if it holds a run with the same config but for `FREE_FIELDS`.

        Nothing but the lock is written until `record` is called. Raises RunFolderError for a folder that cannot be
        written, that another process is writing, that holds another run, or that is no run folder; it stays as it is.
        """
        refuse_foreign(path)
        with explained(f"the run folder {path} cannot be written", way_out="; choose another"):
            made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(lock, path)
            resumed = (path / "config.json").exists()
            starts = []
            if resumed:
                saved = read_config(path)
                _refuse_other_config(path, saved["config"], config)
                starts = saved["starts"]
            now = datetime.now(UTC).isoformat(timespec="seconds")
            start = {"time": now, "command": command_line(sys.argv), **describe()}
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, resumed, made, {"config": to_dict(config), "starts": [*starts, start]})

    def record(self, code: Mapping[str, str] | None = None) -> list[str]:
        """Write the config and this start, as the run begins or continues.

        ``code`` are digests of the user's own code by name. Returns the names of those that were others at the start
        before.

        Summary and weights of a run that was complete are removed, the summary first: at no moment does the folder
        hold one that its config does not belong to.
        """
        with explained(f"the run folder {self.path} cannot be written"):
            for path in (self.summary, self.weights):
                path.unlink(missing_ok=True)
            sync_folder(self.path)
        *others, start = self._record["starts"]
        if code:
            start["code"] = code
        write_json(self.config, self._record)
        before = others[-1].get("code") if others else None
        known = before if isinstance(before, dict) else {}
        return [name for name, digest in (code or {}).items() if known.get(name, digest) != digest]

    def snapshot(self, step: int) -> Path:
        """Return the file for the acting weights at a step, in a folder that it makes."""
        folder = self.path / "snapshots"
        with explained(f"{folder} cannot be made"):
            folder.mkdir(exist_ok=True)
        return folder / f"{step}.safetensors"

    def close(self) -> None:
        """Release the lock, as the end of a killed process does.

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
    """Return the command as one would type it again, without the path of this machine's program."""
    program = Path(argv[0]).name
    return shlex.join([*(["python", "-m", "achieve"] if program == "__main__.py" else [program]), *argv[1:]])


def read_config(run: Path) -> dict[str, Any]:
    """Return what `config.json` of a run folder holds: `config`, `starts` and `settings` (of a recorded agent).

    `run` may also be the file itself, or a file with nothing but a config in it.
    """
    path = run / "config.json" if run.is_dir() else run
    if not path.exists():
        what = "has no config.json" if run.is_dir() else "does not exist"
        raise RunFolderError(f"{run} {what}; give a run folder such as runs/ad-s0")
    record = read_json(path)
    if not run.is_dir() and "config" not in record:
        record = {"config": record}
    try:
        hints = {"config": dict[str, Any], "starts": list[dict[str, Any]], "settings": dict[str, Any]}
        return {**record, **convert(hints, {"starts": [], "settings": {}, **record})}
    except UnfitError as error:
        raise RunFolderError(
            f"{path} does not hold a run's config: {error}; restore it, or choose another run folder"
        ) from error


_SUMMARY = {
    "steps": NonNegativeInt, "score": float | None, "reward": float | None, "parameters": NonNegativeInt,
    "episodes": NonNegativeInt, "steps_per_second": NonNegativeFloat, "runs_at_once": NonNegativeFloat,
    "seconds": dict[str, NonNegativeFloat], "success_rates": dict[str, float | None], "machine": dict[str, Any],
}  # fmt: skip


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary of a finished run, None while there is none."""
    path = run / "summary.json"
    if not path.exists():
        return None
    summary = read_json(path)
    try:
        convert({name: hint for name, hint in _SUMMARY.items() if name in summary or name == "steps"}, summary)
    except UnfitError as error:
        raise RunFolderError(
            f"{path} is not a run's summary: {error}; remove it, and the same command writes it again"
        ) from error
    return summary


def refuse_foreign(path: Path) -> None:
    """Raise RunFolderError for a folder with files in it that is no run folder, and for a name no folder can have."""
    if "\0" in str(path):
        raise RunFolderError(f"the name of the run folder {str(path)!r} has a NUL in it; choose another")
    with explained(f"the run folder {path} cannot be read"):
        entries = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    # A run killed before its config was written leaves a lock and perhaps a half-written file, a recorder its counts
    # and an empty log.
    begun = [_LOCK, ".recorder"]
    with contextlib.suppress(OSError):
        begun += ["episodes.jsonl"] if (path / "episodes.jsonl").stat().st_size == 0 else []
    entries = [name for name in entries if name not in begun and not name.endswith(".tmp")]
    if entries and "config.json" not in entries:
        shown = ", ".join(entries[:3]) + (", ..." if len(entries) > 3 else "")
        raise RunFolderError(f"{path} is not a run folder (it holds {shown}); choose another")


def refuse_packed(path: Path) -> None:
    """Raise RunFolderError for a run whose log is packed: a new one would be read in its place."""
    log = path / "episodes.jsonl"
    if log.with_name(f"{log.name}.gz").exists() and not log.exists():
        raise RunFolderError(
            f"the log of the run in {path} is packed, so the run cannot go on; unpack it (gunzip {log}.gz), or choose "
            "another run folder"
        )


def _refuse_other_config(path: Path, there: Mapping[str, Any], config: TrainConfig) -> None:
    try:
        found = refusal(from_dict(there), config, FREE_FIELDS)
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
