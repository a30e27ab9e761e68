"""Which rows of a ring are written to which files, and what is left of them after crashes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from achieve.errors import CheckpointError
from achieve.run.segments import FrameFiles, Rows


def frames(rows: Rows) -> torch.Tensor:
    """Rows that say which they are."""
    return torch.arange(rows.first, rows.last, dtype=torch.int64)[:, None]


def read(folder: Path, files: list[list[int]], ring: int) -> dict[int, int]:
    """The ring's places after loading, by place."""
    found: dict[int, int] = {}

    def put(first: int, rows: torch.Tensor) -> None:
        for offset, row in enumerate(rows[:, 0].tolist()):
            found[(first + offset) % ring] = row

    FrameFiles(folder, ring).load(files, put)
    return found


def test_every_checkpoint_restores_the_ring(tmp_path: Path) -> None:
    ring, files = 20, FrameFiles(tmp_path, 20)
    names: list[list[list[int]]] = []
    for row in (3, 10, 17, 18, 40, 41, 75, 90):
        new = files.plan(row, 0)
        assert all(rows.first // ring == (rows.last - 1) // ring for rows in new), "none goes over the ring's end"
        listed, write, clean = files.save([(rows, frames(rows)) for rows in new], row)
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
    files = FrameFiles(tmp_path, 100)
    assert files.plan(30, 0) == [(0, 30)]
    files.save([(rows, frames(rows)) for rows in files.plan(30, 0)], 30)
    assert files.plan(50, 0) == [(30, 50)]
    assert FrameFiles(tmp_path, 100).plan(130, 0) == [(30, 100), (100, 130)]
    assert FrameFiles(tmp_path, 100).plan(130, 120) == [(120, 130)], "a run continued without its replay"


def test_a_continued_run_goes_on_with_the_files_it_has_loaded(tmp_path: Path) -> None:
    files = FrameFiles(tmp_path, 100)
    listed, write, _ = files.save([(rows, frames(rows)) for rows in files.plan(30, 0)], 30)
    write()
    (files.folder / "rows-30-60.safetensors").write_bytes(b"left by a killed process")
    again = FrameFiles(tmp_path, 100)
    again.load(listed, lambda first, rows: None)
    listed, write, clean = again.save([(rows, frames(rows)) for rows in again.plan(55, 0)], 55)
    assert listed == [[0, 30], [30, 55]]
    write()
    clean()
    assert sorted(p.name for p in again.folder.iterdir()) == ["rows-0-30.safetensors", "rows-30-55.safetensors"]
    again.remove()
    assert not again.folder.exists()
    again.remove()


@pytest.mark.parametrize("harm", ["missing", "damaged", "short"])
def test_a_file_that_is_no_use(tmp_path: Path, harm: str) -> None:
    files = FrameFiles(tmp_path, 100)
    listed, write, _ = files.save([(Rows(0, 30), frames(Rows(0, 30)))], 30)
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
        FrameFiles(tmp_path, 100).load(listed, lambda first, rows: None)
