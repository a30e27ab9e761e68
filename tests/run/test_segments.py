"""Which rows of a ring are written to which files, and what is left of them after crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from achieve.errors import CheckpointError
from achieve.run.segments import RowFiles, Rows, check_files, tidy_files
from achieve.settings import UnfitError


class Ring:
    """A ring in which every row holds its own number."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.found: dict[int, int] = {}
        """What was restored, by place."""

    def no_rows(self) -> dict[str, torch.Tensor]:
        return {"number": torch.zeros(0, 1, dtype=torch.uint8)}

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, torch.Tensor]:
        assert first // self.rows == (last - 1) // self.rows, "none goes over the ring's end"
        return {"number": torch.arange(first, last, dtype=torch.uint8)[:, None]}

    def restore(self, first: int, rows: dict[str, torch.Tensor]) -> None:
        for offset, row in enumerate(rows["number"][:, 0].tolist()):
            self.found[(first + offset) % self.rows] = row


def nothing() -> None:
    pass


def read(folder: Path, files: Sequence[Sequence[int]], rows: int) -> dict[int, int]:
    """The ring's places after loading, by place."""
    ring = Ring(rows)
    RowFiles(folder).load([list(one) for one in files], ring)
    return ring.found


def test_every_checkpoint_restores_the_ring(tmp_path: Path) -> None:
    ring, files = 20, RowFiles(tmp_path)
    names: list[list[Rows]] = []
    for row in (3, 10, 17, 18, 40, 41, 75, 90):
        listed, write, clean = files.save(Ring(ring), (max(0, row - ring), row), nothing)
        assert listed is not None
        write()
        # A crash here leaves the checkpoint before: its files must still be there.
        if names:
            read(tmp_path, names[-1], ring)
        clean()
        names.append(listed)
        newest = {place: r for place, r in read(tmp_path, listed, ring).items() if r >= row - ring}
        assert newest == {r % ring: r for r in range(max(0, row - ring), row)}
        on_disk = {path.name for path in files.folder.iterdir()}
        assert on_disk == {Rows(*rows).name for rows in listed}
    assert sum(last - first for first, last in names[-1]) < 2 * ring + 15, "old rows go"


def test_rows_are_written_once(tmp_path: Path) -> None:
    files = RowFiles(tmp_path)
    assert files.plan(0, 30, 100) == [(0, 30)]
    files.save(Ring(100), (0, 30), nothing)
    assert files.plan(0, 50, 100) == [(30, 50)]
    assert RowFiles(tmp_path).plan(0, 130, 100) == [(30, 100), (100, 130)]
    assert RowFiles(tmp_path).plan(120, 130, 100) == [(120, 130)], "a run continued without its replay"


def test_rows_that_are_not_saved(tmp_path: Path) -> None:
    files = RowFiles(tmp_path)
    _, write, _ = files.save(Ring(100), (0, 30), nothing)
    write()
    listed, write, clean = files.save(Ring(100), None, nothing)
    write()
    clean()
    assert listed is None and not files.folder.exists()


def test_a_continued_run_goes_on_with_the_files_it_has_loaded(tmp_path: Path) -> None:
    files = RowFiles(tmp_path)
    listed, write, _ = files.save(Ring(100), (0, 30), nothing)
    assert listed is not None
    write()
    (files.folder / "rows-30-60.safetensors").write_bytes(b"left by a killed process")
    again = RowFiles(tmp_path)
    again.load([[0, 30]], Ring(100))
    listed, write, clean = again.save(Ring(100), (0, 55), nothing)
    assert listed == [(0, 30), (30, 55)]
    write()
    clean()
    assert sorted(p.name for p in again.folder.iterdir()) == ["rows-0-30.safetensors", "rows-30-55.safetensors"]
    tidy_files(tmp_path, [])
    assert not again.folder.exists()
    tidy_files(tmp_path, [])


@pytest.mark.parametrize(
    "files", [[], [[0, 30]], [[10, 40]], [[0, 30], [31, 40]], [[0, 30], [30, 30], [30, 40]], [[0, 50]]]
)
def test_files_that_do_not_hold_the_rows_are_refused(files: list[list[int]]) -> None:
    with pytest.raises(UnfitError, match="its files"):
        check_files(files, 5, 40)
    check_files([[0, 30], [30, 40]], 5, 40)
    check_files([], 40, 40)


@pytest.mark.parametrize("harm", ["missing", "damaged", "short"])
def test_a_file_that_is_no_use(tmp_path: Path, harm: str) -> None:
    files, listed = RowFiles(tmp_path), [[0, 30]]
    _, write, _ = files.save(Ring(100), (0, 30), nothing)
    write()
    path = files.folder / "rows-0-30.safetensors"
    if harm == "missing":
        path.unlink()
    elif harm == "damaged":
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    else:
        listed = [[0, 31]]
        path.rename(files.folder / "rows-0-31.safetensors")
    with pytest.raises(CheckpointError, match=r"rows-0-3\d.*(missing|damaged).*start the run again"):
        RowFiles(tmp_path).load(listed, Ring(100))
