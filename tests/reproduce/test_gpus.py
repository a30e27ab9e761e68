"""The number of GPUs, as PyTorch counts them and mostly without it; NVIDIA's libraries are played by objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from achieve.reproduce.gpus import DRIVER, MANAGEMENT, VISIBLE, count_without_torch, gpu_count, torch_build

FOR_CUDA = {"cuda": "13.0", "hip": None}


class Management:
    """A machine with some GPUs; `nvmlInit` may return an error."""

    def __init__(self, gpus: int, error: int = 0) -> None:
        self.gpus, self.error = gpus, error

    def nvmlInit(self) -> int:
        return self.error

    def nvmlDeviceGetCount_v2(self, pointer: Any) -> int:
        pointer._obj.value = self.gpus
        return 0


def loader(**libraries: Any) -> Callable[[str], Any]:
    """What loads these libraries and no others."""
    there = {{"management": MANAGEMENT, "driver": DRIVER}[name]: library for name, library in libraries.items()}

    def load(name: str) -> Any:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")
        return there[name]

    return load


@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("visible", [None, "", "-1", "0", "1", "0,1", "3, 1 ,2", "0,9,1", "1,0,2,3,4", "007"])
def test_it_is_what_pytorch_counts(gpus: int, visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: gpus)
    counted = count_without_torch(FOR_CUDA, visible, loader(management=Management(gpus)))
    assert counted == torch.cuda._device_count_nvml()


@pytest.mark.parametrize("visible", ["GPU-1234", "MIG-1234", "0,GPU-1234", "0,0", "0,-1,1", "1gpu", "0,", " ", "+1"])
def test_other_ways_to_name_gpus_are_left_to_pytorch(visible: str) -> None:
    assert count_without_torch(FOR_CUDA, visible, loader(management=Management(4))) is None


@pytest.mark.parametrize("library", [Management(4, error=9), object()])
def test_so_are_libraries_that_do_not_answer(library: object) -> None:
    assert count_without_torch(FOR_CUDA, None, loader(management=library)) is None


def test_without_a_driver_there_is_none() -> None:
    assert count_without_torch(FOR_CUDA, None, loader()) == 0
    assert count_without_torch(FOR_CUDA, None, loader(driver=object())) is None, "PyTorch asks the driver itself"


@pytest.mark.parametrize(
    ("build", "count"), [({"cuda": None}, 0), ({"cuda": None, "hip": "6.4"}, None), ({}, None), (FOR_CUDA, 4)]
)
def test_what_pytorch_was_built_for_decides(build: dict[str, Any], count: int | None) -> None:
    assert count_without_torch(build, None, loader(management=Management(4))) == count


def test_the_build_is_read_without_an_import() -> None:
    build = torch_build()
    assert (build["cuda"], build["hip"]) == (torch.version.cuda, torch.version.hip)


def test_a_process_that_has_pytorch_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 17)
    assert gpu_count("auto") == gpu_count("cuda") == 17
    assert gpu_count("cpu") == 0


def test_one_that_has_not_counts_the_same() -> None:
    code = "from achieve.reproduce.gpus import gpu_count; print(gpu_count('auto'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == torch.cuda.device_count()


FIRST = """
import sys
from achieve.cli import main
from achieve.reproduce import executor

executor.achieve_command = lambda arguments: [sys.executable, '-c', 'raise SystemExit("was begun")']
code = main(sys.argv[1:])
print(code, 'torch' in sys.modules)
"""


def test_runs_begin_without_pytorch(tmp_path: Path) -> None:
    arguments = ["train", "--preset", "quick", "--seeds", "0-1", "--device", "cpu"]
    done = subprocess.run([sys.executable, "-c", FIRST, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.count("was begun") == 2, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 False"
