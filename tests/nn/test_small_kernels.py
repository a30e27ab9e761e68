"""Runs the checks of the kernels around the encoder in processes in which Triton interprets."""

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


@pytest.mark.parametrize(("name", "least"), [("interpreted_acting", 6), ("interpreted_losses", 29)])
def test_under_the_interpreter(name: str, least: int, optional: Optional) -> None:
    optional.check(find_spec("triton"), "the package triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/nn/{name}.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout
    assert "skipped" not in done.stdout
