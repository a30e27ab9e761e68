"""Runs the checks of the encoder's, the optimiser's and the phase's kernels, and the package without Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Optional
from tests.nn.interpreter import ROOT, run_checks


def test_kernels_under_the_interpreter(optional: Optional) -> None:
    run_checks(("interpreted", "interpreted_optim", "interpreted_contrastive"), 149, optional)


@pytest.mark.long
def test_slow_checks_under_the_interpreter(optional: Optional) -> None:
    names = ("interpreted", "interpreted_optim", "interpreted_convolution", "interpreted_acting")
    run_checks(names, 22, optional, slow=True)


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
