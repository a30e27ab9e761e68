"""Runs the checks of the encoder's, the optimiser's and the phase's kernels, and the package without Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Optional
from tests.nn.interpreter import ROOT, run_checks


@pytest.mark.parametrize(
    ("checks", "least"), [("interpreted", 66), ("interpreted_optim", 30), ("interpreted_contrastive", 40)]
)
def test_kernels_under_the_interpreter(optional: Optional, checks: str, least: int) -> None:
    run_checks(checks, least, optional)


@pytest.mark.long
@pytest.mark.parametrize(
    ("checks", "least"),
    [("interpreted", 2), ("interpreted_optim", 6), ("interpreted_convolution", 12), ("interpreted_acting", 2)],
)
def test_slow_checks_under_the_interpreter(optional: Optional, checks: str, least: int) -> None:
    run_checks(checks, least, optional, slow=True)


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
