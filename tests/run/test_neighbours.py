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


def test_runs_count_each_other(tmp_path: Path) -> None:
    first = Neighbours("gpu", tmp_path)
    assert first.mean == 1.0
    assert first.count() == 1
    second = Neighbours("gpu", tmp_path)
    elsewhere = Neighbours("gpu-2", tmp_path)
    assert first.count() == second.count() == 2
    assert elsewhere.count() == 1
    second.close()
    second.close()
    assert first.count() == 1
    assert first.mean == (1 + 2 + 1) / 3
    first.close()
    elsewhere.close()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_is_forgotten(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, tmp_path, "cpu"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "there\n"
    mine = Neighbours("cpu", tmp_path)
    assert mine.count() == 2
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(list(tmp_path.iterdir())) == 2
    assert mine.count() == 1
    assert len(list(tmp_path.iterdir())) == 1
    mine.close()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    alone = Neighbours("cpu", tmp_path / "file")
    assert alone.count() == 1
    alone.close()


def test_names_of_devices() -> None:
    assert device_key(torch.device("cpu")) == "cpu"
