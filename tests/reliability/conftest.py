"""The quick share of each part, made once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest

from tests.reliability.forks import Tally
from tests.system.processes import ENVIRONMENT, ROOT

Tallies = Callable[[str], dict[str, Tally]]


@pytest.fixture(scope="session")
def tallies() -> Tallies:
    """What `tests.reliability.quick` finds in a part: ``tallies("kill")["sound"]``."""

    @cache
    def made(part: str) -> dict[str, Tally]:
        command = [sys.executable, "-m", "tests.reliability.quick", part]
        environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return {name: Tally(**tally) for name, tally in json.loads(done.stdout).items()}

    return made
