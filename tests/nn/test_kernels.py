"""Runs the checks of kernels in processes in which Triton interprets, and the rest of the package without Triton."""

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


WITHOUT_TRITON = """
import sys
from importlib import import_module
from pkgutil import iter_modules

sys.modules["triton"] = None
import achieve.algo, achieve.nn, achieve.nn.kernels.available, achieve.trainers

for package in (achieve.algo, achieve.nn, achieve.trainers):
    for module in iter_modules(package.__path__, package.__name__ + "."):
        import_module(module.name)
"""


def test_nothing_but_the_kernels_needs_triton() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
