"""Runs the checks of the convolutions and of the kernels around the encoder."""

from __future__ import annotations

from tests.conftest import Optional
from tests.nn.interpreter import run_checks


def test_under_the_interpreter(optional: Optional) -> None:
    checks = ("convolution", "acting", "losses", "cells", "spcnn")
    run_checks(tuple(f"interpreted_{name}" for name in checks), 132, optional)
