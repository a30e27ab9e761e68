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
    (when the next one is), so that others can follow the file; `sync` brings them to the disk and
    tells how long the file is, which a checkpoint records. A half line that a crash left at the
    end is removed on opening.
    """

    def __init__(self, path: Path, flush_every: float = 2.0) -> None:
        self.path = path
        self._flush_every = flush_every
        self._flushed = time.monotonic()
        try:
            self._file = open(path, "a+b")  # noqa: SIM115, closed by close()
            self._drop_half_line()
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

    def sync(self) -> int:
        """Brings everything to the disk and returns the file's length in bytes."""
        self.flush()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error
        return self._file.tell()

    def truncate_to(self, offset: int) -> None:
        """Cuts the file to its first `offset` bytes: the lines written after a checkpoint go."""
        self.flush()
        size = self._file.seek(0, os.SEEK_END)
        if not 0 <= offset <= size:
            raise RunFolderError(
                f"{self.path} has {size} bytes, the checkpoint was written at {offset}: "
                "the log and the checkpoint are not of the same run; restore the log, or remove "
                "the run folder to start again"
            )
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

    def _drop_half_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            begin = max(0, end - 65536)
            self._file.seek(begin)
            newline = self._file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def _failed(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self.path} cannot be written: {reason(error)}")


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

    Returns are rounded to one decimal as there: Crafter's rewards are multiples of 0.1. Other worlds want more.
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
