"""Runs the checks of kernels in processes in which Triton interprets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Optional

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("checks", "least"),
    [
        ("interpreted", 40),
        ("interpreted_optim", 35),
        ("interpreted_contrastive", 40),
        ("interpreted_convolution", 60),
    ],
)
def test_kernels_under_the_interpreter(optional: Optional, checks: str, least: int) -> None:
    optional.check(find_spec("triton"), "the package triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"tests/nn/{checks}.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > least, done.stdout
    assert "skipped" not in done.stdout
