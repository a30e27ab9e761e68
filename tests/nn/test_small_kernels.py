"""Runs the checks of the convolutions and of the kernels around the encoder."""

from __future__ import annotations

import pytest

from tests.conftest import Optional
from tests.nn.interpreter import run_checks


@pytest.mark.parametrize(
    ("checks", "least"), [
        ("interpreted_convolution", 45),
        ("interpreted_acting", 4),
        ("interpreted_losses", 29),
        ("interpreted_cells", 10),
    ],
)
def test_under_the_interpreter(checks: str, least: int, optional: Optional) -> None:
    run_checks(checks, least, optional)
