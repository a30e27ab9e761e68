"""A replay's frames on disk: files that are written once, so that a checkpoint adds only what is new.

A ring of a million frames is 12 GB, of which little changes between two checkpoints. Each checkpoint writes the rows
that came since the last one into a file of their own, before the checkpoint that names it; files whose rows have all
been overwritten in the ring are removed after. A crash at any moment leaves every file that either checkpoint needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from achieve.errors import CheckpointError
from achieve.run.files import reason
from achieve.run.tensors import DamagedFileError, read_tensors, write_tensors

FOLDER = "replay"
_FRAMES = "frames"


class Rows(NamedTuple):
    """A file's rows, from ``first`` up to ``last``."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"rows-{self.first}-{self.last}.safetensors"


class FrameFiles:
    """The files of one run's replay, in the folder of its checkpoint.

    Args:
        ring: rows of the ring.
    """

    def __init__(self, checkpoint: Path, ring: int) -> None:
        self.folder = checkpoint / FOLDER
        self._ring = ring
        self._saved: list[Rows] = []

    def plan(self, row: int, first: int) -> list[Rows]:
        """What has to be written when rows up to ``row`` are complete and none before ``first`` matters.

        No file holds rows from both sides of the ring's end.
        """
        start = max(first, row - self._ring, *(rows.last for rows in self._saved), 0)
        bounds = [start, *range((start // self._ring + 1) * self._ring, row, self._ring), row]
        return [Rows(a, b) for a, b in pairwise(bounds) if a < b]

    def save(
        self, new: Iterable[tuple[Rows, torch.Tensor]], row: int
    ) -> tuple[list[list[int]], Callable[[], None], Callable[[], None]]:
        """The files a checkpoint at ``row`` needs, for its state; what writes the new ones; what removes the old."""
        written = list(new)
        self._saved = [
            rows for rows in [*self._saved, *(rows for rows, _ in written)] if rows.last > row - self._ring
        ]
        needed = {rows.name for rows in self._saved}

        def write() -> None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                for rows, frames in written:
                    write_tensors(self.folder / rows.name, {_FRAMES: frames}, {})
            except OSError as error:
                raise CheckpointError(
                    f"the replay in {self.folder} cannot be written: {reason(error)}; make room or rights there, or "
                    "give --no-checkpoint-replay, then run the same command again"
                ) from error

        def clean() -> None:
            for path in self.folder.iterdir():
                if path.name not in needed:
                    path.unlink(missing_ok=True)

        return [[rows.first, rows.last] for rows in self._saved], write, clean

    def load(self, files: list[list[int]], put: Callable[[int, torch.Tensor], Any]) -> None:
        """Read the files a checkpoint names; ``put(first, frames)`` takes what is in each."""
        way_out = "restore it, or move the checkpoint folder away to start the run again"
        for first, last in files:
            rows = Rows(first, last)
            path = self.folder / rows.name
            try:
                tensors, _ = read_tensors(path)
                frames = tensors[_FRAMES]
                if len(frames) != last - first:
                    raise DamagedFileError(f"it holds {len(frames)} rows")
            except FileNotFoundError:
                raise CheckpointError(f"{path}, a part of the checkpoint, is missing; {way_out}") from None
            except (DamagedFileError, KeyError) as error:
                raise CheckpointError(f"{path} is damaged ({error}); {way_out}") from error
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {reason(error)}") from error
            put(first, frames)
            self._saved.append(rows)

    def remove(self) -> None:
        """Remove everything: a run that is complete needs no replay."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
