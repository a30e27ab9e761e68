"""GPUs and the multi-process service, with the driver's programs played by scripts: there is no GPU to test with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from achieve.reproduce import devices
from achieve.reproduce.devices import CPU, Device, find_devices, free_gib, host_free_gib, this_machine
from achieve.reproduce.mps import CONTROL, LOGS, PIPES, multi_process_service

SMI = """#!/bin/sh
case "$*" in
  *--id=0*name*|*--id=GPU-b*name*) echo "NVIDIA H200" ;;
  *--id=0*memory.free*) echo "143360" ;;
  *--id=GPU-b*memory.free*) echo "[N/A]" ;;
  *) echo "No devices were found"; exit 6 ;;
esac
"""
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
    return folder


def install(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_without_a_gpu_there_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_devices("cpu") == [CPU]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert find_devices() == [CPU]
    assert CPU.environment == {} and this_machine([CPU]).gpus == ()


def test_gpus_are_called_as_the_user_calls_them(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(programs / "nvidia-smi", SMI)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device.id for device in find_devices()] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, GPU-b")
    found = find_devices()
    assert found == [Device("0", "NVIDIA H200"), Device("GPU-b", "NVIDIA H200")]
    assert found[1].environment == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert this_machine(found).gpus == ("NVIDIA H200", "NVIDIA H200")


def test_free_memory_is_told_where_it_can_be(programs: Path) -> None:
    install(programs / "nvidia-smi", SMI)
    assert free_gib(Device("0", "")) == 140
    assert free_gib(Device("GPU-b", "")) is None
    assert free_gib(Device("7", "")) is None
    free = host_free_gib()
    assert free is not None and 0 < free < 2**20
    assert free_gib(CPU) == pytest.approx(free, rel=0.5)


def test_without_the_drivers_tool_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.shutil, "which", lambda _: None)
    assert free_gib(Device("0", "")) is None


def test_a_service_of_our_own_is_started_tried_and_stopped(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs / CONTROL, DAEMON)
    journal = tmp_path / "journal"
    monkeypatch.setenv("JOURNAL", str(journal))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    said: list[str] = []
    trial = f"import os; assert os.path.exists(os.environ['{PIPES}'] + '/control')"
    with multi_process_service(said.append, trial, default_pipes=tmp_path) as environment:
        assert environment[PIPES] == environment[LOGS] and Path(environment[PIPES]).is_dir()
        assert journal.read_text().split("\n") == ["start all", ""]  # it serves every GPU
    assert journal.read_text().split() == ["start", "all", "quit"]
    assert not Path(environment[PIPES]).exists()
    assert said == ["runs share the GPU through a multi-process service (MPS) of their own"]


@pytest.mark.parametrize(
    ("code", "trial", "why"), [("1", "", "ended with code 1"), ("0", "raise SystemExit('error 805')", "error 805")]
)
def test_one_that_does_not_work_is_not_used(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, trial: str, why: str
) -> None:
    install(programs / CONTROL, DAEMON)
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("START_CODE", code)
    said: list[str] = []
    with multi_process_service(said.append, trial, default_pipes=tmp_path) as environment:
        assert environment == {}
        assert "quit" in (tmp_path / "journal").read_text()
    assert said[0].startswith("runs take turns on the GPU") and why in said[0]


def test_a_service_that_is_there_is_never_touched(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs / CONTROL, DAEMON)
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    (tmp_path / "control").touch()
    said: list[str] = []
    with multi_process_service(said.append, default_pipes=tmp_path) as environment:
        assert environment == {}
    monkeypatch.setenv(PIPES, str(tmp_path / "theirs"))
    with multi_process_service(said.append, default_pipes=tmp_path / "none") as environment:
        assert environment == {}
    assert not (tmp_path / "journal").exists()
    assert all("already" in sentence for sentence in said)


def test_without_the_program_runs_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("achieve.reproduce.mps.shutil.which", lambda _: None)
    monkeypatch.delenv(PIPES, raising=False)
    said: list[str] = []
    with multi_process_service(said.append, default_pipes=tmp_path) as environment:
        assert environment == {}
    assert said == [f"runs take turns on the GPU: {CONTROL} is not installed"]
