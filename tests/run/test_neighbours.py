"""Runs on one device know of each other, also where one of them is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import torch

from achieve.run.neighbours import Neighbours, device_key

CHILD = """
import sys, time
from pathlib import Path
from achieve.run.neighbours import Neighbours
kept = Neighbours(sys.argv[2], Path(sys.argv[1]))
print("there", flush=True)
time.sleep(60)
"""


def _child(folder: Path, device: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, folder, device], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "there\n"
    return child


def test_runs_count_each_other_and_a_killed_one_is_forgotten(tmp_path: Path) -> None:
    mine = Neighbours("gpu", tmp_path)
    assert mine.mean == 1.0
    assert mine.count() == 1
    children = [_child(tmp_path, "gpu"), _child(tmp_path, "gpu-2")]
    assert mine.count() == 2, "the one on another device does not count"
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    assert mine.count() == 1
    assert mine.mean == (1 + 2 + 1) / 3
    assert len(list(tmp_path.iterdir())) == 2
    mine.close()
    mine.close()
    assert [path.stem for path in tmp_path.iterdir()] == ["gpu-2"]


def test_files_that_are_no_runs_do_not_count(tmp_path: Path) -> None:
    for name in ("cpu.", "cpu.no-number", f"cpu.{10**30}"):
        (tmp_path / name).touch()
    mine = Neighbours("cpu", tmp_path)
    assert mine.count() == 1
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    alone = Neighbours("cpu", tmp_path / "file")
    assert alone.count() == 1
    alone.close()


def test_names_of_devices() -> None:
    assert device_key(torch.device("cpu")) == "cpu"
