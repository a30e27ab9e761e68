"""The trial of a GPU with the real driver, without the multi-process service."""

from __future__ import annotations

import subprocess

import pytest

from achieve.reproduce.mps import TRIAL

pytestmark = pytest.mark.gpu


def test_it_succeeds_here_and_says_why_where_no_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(TRIAL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run(TRIAL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "cuInit: CUDA error 100 (CUDA_ERROR_NO_DEVICE)\n")
