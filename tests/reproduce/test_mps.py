"""The multi-process service, with the driver's program played by a script: there is no GPU to test with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from achieve.reproduce import mps, mps_trial
from achieve.reproduce.mps import CONTROL, LOGS, PIPES, SHARED, multi_process_service

DAEMON = """#!/bin/sh
if [ "$1" = -d ]; then
  echo "start ${CUDA_VISIBLE_DEVICES-all}" >> "$JOURNAL"
  touch "$CUDA_MPS_PIPE_DIRECTORY/control"
  exit ${START_CODE:-0}
fi
read word
echo "$word" >> "$JOURNAL"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setattr(mps, "DEFAULT_PIPES", tmp_path)
    return folder


def install(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_service_of_our_own_is_started_tried_and_stopped(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs / CONTROL, DAEMON)
    journal = tmp_path / "journal"
    monkeypatch.setenv("JOURNAL", str(journal))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    said: list[str] = []
    trial = f"import os; assert os.path.exists(os.environ['{PIPES}'] + '/control')"
    monkeypatch.setattr(mps, "TRIAL", [sys.executable, "-c", trial])
    with multi_process_service(said.append) as environment:
        assert environment[PIPES] == environment[LOGS] and Path(environment[PIPES]).is_dir()
        assert environment[SHARED]
        assert journal.read_text().split("\n") == ["start all", ""]  # it serves every GPU
    assert journal.read_text().split() == ["start", "all", "quit"]
    assert not Path(environment[PIPES]).exists()
    assert said == ["runs share the GPU through a multi-process service (MPS) of their own"]


@pytest.mark.parametrize(
    ("code", "trial", "why"),
    [("1", "", "returned non-zero exit status 1"), ("0", "raise SystemExit('error 805')", "error 805")],
)
def test_one_that_does_not_work_is_not_used(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, trial: str, why: str
) -> None:
    install(programs / CONTROL, DAEMON)
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("START_CODE", code)
    said: list[str] = []
    monkeypatch.setattr(mps, "TRIAL", [sys.executable, "-c", trial])
    with multi_process_service(said.append) as environment:
        assert environment == {}
    assert "quit" in (tmp_path / "journal").read_text()
    assert said[0].startswith("runs take turns on the GPU") and why in said[0]


def test_a_driver_that_cannot_be_loaded_is_named(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs / CONTROL, DAEMON)
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    (tmp_path / mps_trial.DRIVER).touch()  # found before a real one, and no library
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said: list[str] = []
    with multi_process_service(said.append) as environment:
        assert environment == {}
    assert f"(NVIDIA's driver cannot be loaded: {tmp_path / mps_trial.DRIVER}: " in said[0]


def test_a_service_that_is_there_is_never_touched(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs / CONTROL, DAEMON)
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    (tmp_path / "control").touch()
    said: list[str] = []
    with multi_process_service(said.append) as environment:
        assert environment == {SHARED: "1"}
    monkeypatch.setenv(PIPES, str(tmp_path / "theirs"))
    monkeypatch.setattr(mps, "DEFAULT_PIPES", tmp_path / "none")
    with multi_process_service(said.append) as environment:
        assert environment == {SHARED: "1"}
    assert not (tmp_path / "journal").exists()
    assert all("already" in sentence for sentence in said)


def test_without_the_program_runs_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("achieve.reproduce.mps.shutil.which", lambda _: None)
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setattr(mps, "DEFAULT_PIPES", tmp_path)
    said: list[str] = []
    with multi_process_service(said.append) as environment:
        assert environment == {}
    assert said == [f"runs take turns on the GPU: {CONTROL} is not installed"]
