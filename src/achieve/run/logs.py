"""Append-only JSON-lines logs that a resumed run can cut back to its checkpoint."""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from achieve.errors import RunFolderError
from achieve.run.files import reason


class JsonlWriter:
    """Appends one JSON object per line.

    Lines reach the operating system at the latest `flush_every` seconds after they were written
    (when the next one is), so that others can follow the file; `length` tells how much there is, which a checkpoint
    records, and `sync` brings it to the disk. Opening a log that is there changes nothing in it: what a crash left
    after the checkpoint goes with `truncate_to`, once `check_log` has found the rest whole.
    """

    def __init__(self, path: Path, flush_every: float = 2.0) -> None:
        self.path = path
        self._flush_every = flush_every
        self._flushed = time.monotonic()
        try:
            self._file = open(path, "a+b")  # noqa: SIM115, closed by close()
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row; NaN and infinities become null, NumPy scalars plain numbers."""
        self.write_many([row])

    def write_many(self, rows: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(_plain(row), allow_nan=False) + "\n" for row in rows)
        try:
            self._file.write(text.encode())
            if time.monotonic() - self._flushed >= self._flush_every:
                self.flush()
        except OSError as error:
            raise self._failed(error) from error

    def flush(self) -> None:
        """Hands everything to the operating system: it survives a crash of the process."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error
        self._flushed = time.monotonic()

    def length(self) -> int:
        """Hands everything to the operating system and returns the file's length in bytes."""
        self.flush()
        return self._file.tell()

    def sync(self) -> None:
        """Brings what was handed over to the disk; may be called from another thread."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def truncate_to(self, offset: int) -> None:
        """Cuts the file to its first `offset` bytes: the lines written after a checkpoint go."""
        self.flush()
        try:
            self._file.truncate(offset)
        except OSError as error:
            raise self._failed(error) from error
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> "JsonlWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self.path} cannot be written: {reason(error)}")


def check_log(path: Path, length: int) -> None:
    """Raise where the first ``length`` bytes of a log, those a checkpoint knows of, are not whole lines of JSON.

    Nothing is changed. A log that is not there has no bytes.
    """
    way_out = "restore the log, or remove the run folder to start again"
    try:
        data = path.read_bytes()[:length] if path.exists() else b""
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {reason(error)}") from error
    if len(data) < length:
        raise RunFolderError(
            f"{path} has {len(data)} bytes, the checkpoint was written at {length}: the log and the checkpoint are "
            f"not of the same run; {way_out}"
        )
    *lines, rest = data.split(b"\n")
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            row = json.loads(line) if number <= len(lines) else None  # the rest has no end
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise RunFolderError(f"line {number} of {path} is not what the run wrote there; {way_out}")


class Finished(Protocol):
    """What `VectorEnv.pop_episodes()` returns: arrays with one entry per finished episode."""

    @property
    def tick(self) -> Any: ...
    @property
    def length(self) -> Any: ...
    @property
    def episode_return(self) -> Any: ...
    @property
    def achievements(self) -> Any: ...


def episode_rows(
    finished: Finished, names: Sequence[str], num_envs: int, decimals: int = 1
) -> Iterator[dict[str, float]]:
    """Rows of `episodes.jsonl`: what Crafter's recorder writes, plus the run's step.

    Returns are rounded to one decimal as there: Crafter's rewards are multiples of 0.1. Other environments want more.
    """
    keys = [f"achievement_{name}" for name in names]
    for tick, length, episode_return, counts in zip(
        finished.tick.tolist(),
        finished.length.tolist(),
        finished.episode_return.tolist(),
        finished.achievements.tolist(),
        strict=True,
    ):
        yield {
            "step": tick * num_envs,
            "length": length,
            "reward": round(episode_return, decimals),
            **dict(zip(keys, counts, strict=True)),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
