"""Append-only JSON-lines logs that a resumed run can truncate to its checkpoint."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from achieve.envs.arrays import FinishedEpisodes
from achieve.errors import RunFolderError
from achieve.run.files import explained
from achieve.settings import parse_json


class JsonlWriter:
    """Appends one JSON object per line.

    Lines reach the operating system at most `flush_every` seconds late (with the next line), so that others can follow
    the file. Opening a log changes nothing in it: what a crash left after the checkpoint is removed by `truncate_to`,
    once `check_log` has found the rest intact.
    """

    def __init__(self, path: Path, flush_every: float = 2.0) -> None:
        self.path = path
        self._flush_every = flush_every
        self._flushed = time.monotonic()
        with self._writing():
            self._file = open(path, "a+b")  # noqa: SIM115, closed by close()
            self._file.seek(0, os.SEEK_END)

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Append rows; NaN and infinities become null, NumPy scalars plain numbers."""
        text = "".join(json.dumps(_plain(row), allow_nan=False) + "\n" for row in rows)
        with self._writing():
            self._file.write(text.encode())
            if time.monotonic() - self._flushed >= self._flush_every:
                self._file.flush()
                self._flushed = time.monotonic()

    def length(self) -> int:
        """Return the length of the log in bytes, all of which has been handed to the operating system."""
        with self._writing():
            self._file.flush()
            return self._file.tell()

    def sync(self) -> None:
        """Bring what was handed to the operating system to the disk; may be called from another thread."""
        with self._writing():
            os.fsync(self._file.fileno())

    def truncate_to(self, length: int) -> None:
        """Drop everything after the first `length` bytes."""
        with self._writing():
            self._file.flush()
            self._file.truncate(length)
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        with self._writing():
            self._file.close()

    def __enter__(self) -> "JsonlWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writing(self) -> AbstractContextManager[None]:
        return explained(f"{self.path} cannot be written")


def check_log(path: Path, length: int) -> None:
    """Raise RunFolderError unless the first ``length`` bytes of a log are whole lines of JSON."""
    way_out = "restore the log, or remove the run folder to start again"
    with explained(f"{path} cannot be read"):
        data = path.read_bytes()[:length] if path.exists() else b""
    if len(data) < length:
        raise RunFolderError(
            f"{path} has {len(data)} bytes, the checkpoint was written at {length}: the log and the checkpoint are "
            f"not of the same run; {way_out}"
        )
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        try:
            whole = line.endswith(b"\n") and isinstance(parse_json(line), dict)
        except ValueError:
            whole = False
        if not whole:
            raise RunFolderError(f"line {number} of {path} is not what the run wrote there; {way_out}")


def episode_rows(
    finished: FinishedEpisodes, names: Sequence[str], num_envs: int, decimals: int = 1
) -> Iterator[dict[str, float]]:
    """Yield rows of `episodes.jsonl`: what Crafter's recorder writes, and the environment steps of the run.

    Returns are rounded to one decimal as there: Crafter's rewards are multiples of 0.1. Other environments need more.
    """
    keys = [f"achievement_{name}" for name in names]
    columns = (finished.tick, finished.length, finished.episode_return, finished.achievements)
    for tick, length, total, counts in zip(*(column.tolist() for column in columns), strict=True):
        row = {"step": tick * num_envs, "length": length, "reward": round(total, decimals)}
        yield row | dict(zip(keys, counts, strict=True))


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
