"""Annotated shapes left unchecked, for tests of whole runs: checking each call makes a run half as long again.

The mathematics and networks of those runs are checked call by call in `tests/algo`, `tests/nn` and `tests/data`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import jaxtyping
import pytest


def _unchecked() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", "CHECK_ALL_SHAPES" not in os.environ)  # `make test-long` sets it
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


shapes_unchecked = pytest.fixture(scope="package", autouse=True)(_unchecked)
"""For the `conftest.py` of a folder."""
shapes_unchecked_here = pytest.fixture(scope="module", autouse=True)(_unchecked)
"""For a single file."""
