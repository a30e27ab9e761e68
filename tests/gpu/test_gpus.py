"""The number of GPUs without PyTorch, beside PyTorch's."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from achieve.reproduce.gpus import VISIBLE

pytestmark = pytest.mark.gpu

COUNT = "import sys; from achieve.reproduce.gpus import gpu_count; print(gpu_count('auto'), 'torch' in sys.modules)"


@pytest.mark.parametrize("visible", [None, "", "-1", "0", "99", "0,99", "0,0", "UUID"])
def test_it_is_what_pytorch_counts(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        monkeypatch.setenv(VISIBLE, uuid if visible == "UUID" else visible)
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for code in (COUNT, "import torch; print(torch.cuda.device_count())")
    ]
    assert answers[0] == [*answers[1], str(visible in ("0,0", "UUID"))]
