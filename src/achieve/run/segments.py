"""Rows of experience on disk: files that are written once, so that a checkpoint adds only what is new.

A replay of a million frames is 12 GB and the buffer of a phase 400 MB, of which little changes between two checkpoints.
Each checkpoint writes the rows that came since the last one into a file of their own, before the checkpoint that names
it; files whose rows nobody needs any more are removed after. A crash at any moment leaves every file that either
checkpoint needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from achieve.errors import CheckpointError
from achieve.run.files import reason
from achieve.run.tensors import DamagedFileError, read_tensors, write_tensors
from achieve.schema import UnfitError

FOLDER = "rows"
FORMER = "replay"
"""The folder's name in earlier versions."""

Tensors = dict[str, torch.Tensor]


class Rows(NamedTuple):
    """A file's rows, from ``first`` up to ``last``; rows are counted from the beginning of the run."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"rows-{self.first}-{self.last}.safetensors"


def check_files(files: list[list[int]], first: int, row: int) -> None:
    """Raise UnfitError where these files, one after another, do not hold the rows from ``first`` up to ``row``."""
    at = files[0][0] if files else row
    if at > first:
        raise UnfitError(f"its files begin with row {at}, not {first}")
    for begin, end in files:
        if begin != at or end <= begin:
            raise UnfitError(f"its files have rows from {begin} to {end} after row {at}")
        at = end
    if at != row:
        raise UnfitError(f"its files end with row {at}, not {row}")


class RowFiles:
    """The files of one run, in the folder of its checkpoint.

    Args:
        checkpoint: that folder.
        ring: rows that are in memory at most; row ``r`` lies at place ``r % ring``.
    """

    def __init__(self, checkpoint: Path, ring: int) -> None:
        self.folder = checkpoint / FOLDER
        self._ring = ring
        self._saved: list[Rows] = []

    def plan(self, first: int, row: int) -> list[Rows]:
        """What has to be written when rows up to ``row`` are complete and none before ``first`` matters.

        No file holds rows from both sides of the ring's end.
        """
        start = max(first, row - self._ring, *(rows.last for rows in self._saved), 0)
        bounds = [start, *range((start // self._ring + 1) * self._ring, row, self._ring), row]
        return [Rows(a, b) for a, b in pairwise(bounds) if a < b]

    def save(
        self, new: Iterable[tuple[Rows, Mapping[str, torch.Tensor]]], first: int
    ) -> tuple[list[list[int]], Callable[[], None], Callable[[], None]]:
        """The files a checkpoint needs when no row before ``first`` matters; what writes the new ones; what removes
        all others.
        """
        written = list(new)
        self._saved = [rows for rows in [*self._saved, *(rows for rows, _ in written)] if rows.last > first]
        needed = {rows.name for rows in self._saved}

        def write() -> None:
            if written:
                self.folder.mkdir(parents=True, exist_ok=True)
            for rows, tensors in written:
                write_tensors(self.folder / rows.name, tensors, {})

        return [[rows.first, rows.last] for rows in self._saved], write, lambda: _keep_only(self.folder, needed)

    def load(
        self, files: list[list[int]], like: Mapping[str, torch.Tensor], put: Callable[[int, Tensors], Any]
    ) -> None:
        """Read the files a checkpoint names; ``put(first, tensors)`` takes what is in each.

        ``like`` has a tensor for each name, of the type and the size, but for the number of rows, that are wanted.
        """
        self._saved = []
        way_out = "restore it, or move the checkpoint folder away to start the run again"
        for first, last in files:
            rows = Rows(first, last)
            path = self.folder / rows.name
            try:
                tensors, _ = read_tensors(path)
                for name, one in like.items():
                    wanted = (one.dtype, (last - first, *one.shape[1:]))
                    if name not in tensors or (tensors[name].dtype, tuple(tensors[name].shape)) != wanted:
                        raise DamagedFileError(f"its {name} are missing or of another size")
            except FileNotFoundError:
                raise CheckpointError(f"{path}, a part of the checkpoint, is missing; {way_out}") from None
            except DamagedFileError as error:
                raise CheckpointError(f"{path} is damaged ({error}); {way_out}") from error
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {reason(error)}") from error
            put(first, {name: tensors[name] for name in like})
            self._saved.append(rows)


def tidy_files(checkpoint: Path, needed: list[list[int]]) -> None:
    """Remove all files of a run but those needed: what a complete run was killed before it could do."""
    _keep_only(checkpoint / FOLDER, {Rows(*rows).name for rows in needed})
    _keep_only(checkpoint / FORMER, set())


def _keep_only(folder: Path, needed: set[str]) -> None:
    try:
        if folder.exists():
            for path in folder.iterdir():
                if path.name not in needed:
                    path.unlink(missing_ok=True)
            if not needed:
                folder.rmdir()
    except OSError as error:
        raise CheckpointError(f"files in {folder} cannot be removed: {reason(error)}") from error
