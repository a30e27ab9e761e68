"""Rows of experience on disk, in files that are written once, so that a checkpoint adds only what is new.

A replay buffer of a million frames is 12 GB and the rollout buffer 400 MB, of which little changes between two
checkpoints. Each checkpoint writes the rows since the last one into a file of their own, before the checkpoint that
lists it; files that are no longer needed are removed after. A crash at any moment leaves every file that either
checkpoint needs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from achieve.errors import CheckpointError
from achieve.run.files import explained
from achieve.run.tensors import DamagedFileError, read_tensors, write_tensors
from achieve.settings import UnfitError

FOLDER = "rows"
FORMER = "replay"
"""The folder's name in earlier versions."""


class Rows(NamedTuple):
    """The rows of a file, from ``first`` up to ``last``, counted from the beginning of the run."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"rows-{self.first}-{self.last}.safetensors"


class RowStore(Protocol):
    """The experience in memory: a ring buffer of ``rows`` rows."""

    @property
    def rows(self) -> int: ...

    def no_rows(self) -> dict[str, torch.Tensor]:
        """Return a tensor without rows for each name, with the type and shape of a row."""

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, torch.Tensor]:
        """Return rows on the host, perhaps without a copy; calls ``settle`` before it overwrites one of them."""

    def restore(self, first: int, rows: dict[str, torch.Tensor]) -> None:
        """Put rows back where :meth:`lend` took them."""


def check_files(files: list[list[int]], first: int, row: int) -> None:
    """Raise UnfitError unless these files, one after another, hold the rows from ``first`` up to ``row``."""
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
    """The row files of one run, in the folder of its checkpoint."""

    def __init__(self, checkpoint: Path, folder: str = FOLDER) -> None:
        self.folder = checkpoint / folder
        self._saved: list[Rows] = []
        self._others: dict[str, RowFiles] = {}

    def of(self, folder: str) -> RowFiles:
        """Return the files of another store, in a folder of their own."""
        return self._others.setdefault(folder, RowFiles(self.folder.parent, folder))

    def plan(self, first: int, row: int, ring: int) -> list[Rows]:
        """Return the files to write once rows up to ``row`` are complete and none before ``first`` is needed.

        Row ``r`` is at position ``r % ring`` in memory; no file crosses the end of the ring.
        """
        start = max(first, row - ring, *(rows.last for rows in self._saved), 0)
        bounds = [start, *range((start // ring + 1) * ring, row, ring), row]
        return [Rows(a, b) for a, b in pairwise(bounds) if a < b]

    def save(
        self, store: RowStore, span: tuple[int, int] | None, settle: Callable[[], None]
    ) -> tuple[list[Rows] | None, Callable[[], None], Callable[[], None]]:
        """Return the files that a checkpoint lists, and functions that write the new ones and remove all others.

        Args:
            span: the first row needed and the one after the last; None if rows are not saved.
            settle: waits until the new files are written.
        """
        first, row = span or (2**63, 0)
        new = [(rows, store.lend(rows.first, rows.last, settle)) for rows in self.plan(first, row, store.rows)]
        self._saved = [rows for rows in [*self._saved, *(rows for rows, _ in new)] if rows.last > first]
        needed = {rows.name for rows in self._saved}

        def write() -> None:
            if new:
                self.folder.mkdir(parents=True, exist_ok=True)
            for rows, tensors in new:
                write_tensors(self.folder / rows.name, tensors, {})

        return list(self._saved) if span else None, write, lambda: _keep_only(self.folder, needed)

    def load(self, files: list[list[int]], store: RowStore) -> None:
        """Read the files a checkpoint lists into memory."""
        self._saved = [Rows(first, last) for first, last in files]
        way_out = "restore it, or move the checkpoint folder away to start the run again"
        expected = store.no_rows()
        for rows in self._saved:
            path = self.folder / rows.name
            if not path.exists():
                raise CheckpointError(f"{path}, a part of the checkpoint, is missing; {way_out}")
            try:
                with explained(f"{path} cannot be read", CheckpointError):
                    tensors, _ = read_tensors(path)
                for name, one in expected.items():
                    wanted = (one.dtype, (rows.last - rows.first, *one.shape[1:]))
                    if name not in tensors or (tensors[name].dtype, tuple(tensors[name].shape)) != wanted:
                        raise DamagedFileError(f"its {name} are missing or of another size")
            except DamagedFileError as error:
                raise CheckpointError(f"{path} is damaged ({error}); {way_out}") from error
            store.restore(rows.first, {name: tensors[name] for name in expected})


def tidy_files(checkpoint: Path, needed: list[list[int]]) -> None:
    """Remove all row files but those needed, which a killed process may not have got around to."""
    _keep_only(checkpoint / FOLDER, {Rows(*rows).name for rows in needed})
    _keep_only(checkpoint / FORMER, set())


def _keep_only(folder: Path, needed: set[str]) -> None:
    with explained(f"files in {folder} cannot be removed", CheckpointError):
        if folder.exists():
            for path in folder.iterdir():
                if path.name not in needed:
                    path.unlink(missing_ok=True)
            if not needed:
                folder.rmdir()
