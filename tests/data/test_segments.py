"""Which rows of a ring are written to which files, and what is left of them after crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from achieve.errors import CheckpointError
from achieve.run.segments import RowFiles, Rows, check_files, tidy_files
from achieve.settings import UnfitError


class Store:
    """Rows of one number each, which go to a function."""

    rows = 100

    def __init__(self, put: Callable[[int, dict[str, torch.Tensor]], None]) -> None:
        self.restore = put

    def no_rows(self) -> dict[str, torch.Tensor]:
        return {"number": torch.zeros(0, 1, dtype=torch.uint8)}

    def lend(self, first: int, last: int, settle: Callable[[], None]) -> dict[str, torch.Tensor]:
        raise NotImplementedError


def numbered(rows: Rows) -> dict[str, torch.Tensor]:
    """Rows that say which they are."""
    return {"number": torch.arange(rows.first, rows.last, dtype=torch.uint8)[:, None]}


def read(folder: Path, files: list[list[int]], ring: int) -> dict[int, int]:
    """The ring's places after loading, by place."""
    found: dict[int, int] = {}

    def put(first: int, rows: dict[str, torch.Tensor]) -> None:
        for offset, row in enumerate(rows["number"][:, 0].tolist()):
            found[(first + offset) % ring] = row

    RowFiles(folder, ring).load(files, Store(put))
    return found


def test_every_checkpoint_restores_the_ring(tmp_path: Path) -> None:
    ring, files = 20, RowFiles(tmp_path, 20)
    names: list[list[list[int]]] = []
    for row in (3, 10, 17, 18, 40, 41, 75, 90):
        new = files.plan(0, row)
        assert all(rows.first // ring == (rows.last - 1) // ring for rows in new), "none goes over the ring's end"
        listed, write, clean = files.save([(rows, numbered(rows)) for rows in new], max(0, row - ring))
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
    files = RowFiles(tmp_path, 100)
    assert files.plan(0, 30) == [(0, 30)]
    files.save([(rows, numbered(rows)) for rows in files.plan(0, 30)], 0)
    assert files.plan(0, 50) == [(30, 50)]
    assert RowFiles(tmp_path, 100).plan(0, 130) == [(30, 100), (100, 130)]
    assert RowFiles(tmp_path, 100).plan(120, 130) == [(120, 130)], "a run continued without its replay"


def test_a_continued_run_goes_on_with_the_files_it_has_loaded(tmp_path: Path) -> None:
    files = RowFiles(tmp_path, 100)
    listed, write, _ = files.save([(rows, numbered(rows)) for rows in files.plan(0, 30)], 0)
    write()
    (files.folder / "rows-30-60.safetensors").write_bytes(b"left by a killed process")
    again = RowFiles(tmp_path, 100)
    again.load(listed, Store(lambda first, rows: None))
    listed, write, clean = again.save([(rows, numbered(rows)) for rows in again.plan(0, 55)], 0)
    assert listed == [[0, 30], [30, 55]]
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
    files = RowFiles(tmp_path, 100)
    listed, write, _ = files.save([(Rows(0, 30), numbered(Rows(0, 30)))], 0)
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
        RowFiles(tmp_path, 100).load(listed, Store(lambda first, rows: None))
