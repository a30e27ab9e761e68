"""Runs checks of kernels in a process in which Triton interprets, which it decides when it is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import Optional

ROOT = Path(__file__).resolve().parents[2]


def run_checks(names: tuple[str, ...], least: int, optional: Optional, *, slow: bool = False) -> None:
    """Run the checks of these files, or their slow ones; at least so many must pass, and none may be skipped."""
    optional.check(find_spec("triton"), "the package triton")
    # Without what was asked of the outer pytest: -x or --durations would change what is counted below.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment = {**inherited, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = [f"tests/nn/{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    if slow:
        command += ["-m", "long"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout
    assert not re.search(r"\d+ skipped", done.stdout), done.stdout
