"""Runs the checks of the convolutions and of the kernels around the encoder."""

from __future__ import annotations

from tests.conftest import Optional
from tests.nn.interpreter import run_checks


def test_under_the_interpreter(optional: Optional) -> None:
    checks = ("interpreted_convolution", "interpreted_acting", "interpreted_losses", "interpreted_cells")
    run_checks(checks, 101, optional)
