"""Every test here needs Procgen."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def procgen(optional):
    """The package, from `make heist`; skipped without it, except with CI=true."""
    from achieve.envs.heist.games import import_procgen

    try:
        return import_procgen()[0]
    except ImportError as error:
        optional.check(False, f"Procgen ({error})")
