"""Every test here needs Procgen."""

from __future__ import annotations

import pytest

from tests.conftest import Optional


@pytest.fixture(autouse=True)
def procgen(optional: Optional):
    """The package, from `make heist`; skipped without it, except with CI=true."""
    optional.env("heist")
    from achieve.envs.heist.games import import_procgen

    return import_procgen()[0]
