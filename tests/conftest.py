"""What all tests share: where optional parts may be missing, and where they may not."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from jaxtyping import install_import_hook

# Shapes and types that annotations promise are checked at every call, in the modules of maths and networks.
CHECKED = (
    *(f"achieve.algo.{name}" for name in ("contrastive", "gae", "ppo", "quantile", "transport")),
    *(f"achieve.nn.{name}" for name in ("encoder", "init", "layers", "model", "normalizer", "recurrent", "tokens")),
    *(f"achieve.data.{name}" for name in ("chunks", "trajectories")),
)
install_import_hook(CHECKED, "beartype.beartype")

# Processes that tests start find this package too, installed or not.
SOURCE = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
# A console made while this is set keeps that width; without, it looks each time, as tests of widths want.
os.environ.pop("COLUMNS", None)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
MISSING = "missing: "


def _missing(what: str, *, can_be: bool = True) -> NoReturn:
    """Skips the test for want of an optional part; with CI=true that is a failure, where the part ``can_be`` there."""
    if IN_CI and can_be:
        pytest.fail(f"{MISSING}{what} (with CI=true nothing may be)")
    pytest.skip(MISSING + what)


@cache
def _world_error(name: str) -> str | None:
    """What an environment says that cannot be made for want of a package."""
    from achieve.envs import make_vec

    try:
        make_vec(name, num_envs=1, seed=0).close()
    except ImportError as error:
        return str(error)
    return None


class Optional:
    """Asks for optional parts: `optional.module("ray")`, `optional.env("heist")`, `optional.check(found, "git")`."""

    def module(self, name: str) -> ModuleType:
        """The imported module, or a skip (with CI=true: a failure)."""
        try:
            return importlib.import_module(name)
        except ImportError:
            _missing(f"the package {name}")

    def env(self, name: str) -> None:
        """Skips (with CI=true: fails) unless the environment can be made. Procgen has no wheel for Python 3.13."""
        error = _world_error(name)
        if error is not None:
            _missing(error, can_be=name != "heist" or sys.version_info < (3, 13))

    def check(self, present: object, what: str) -> None:
        """Skips (with CI=true: fails) unless `present` is true."""
        if not present:
            _missing(what)


@pytest.fixture(scope="session")
def optional() -> Optional:
    """Optional packages and programs: skipped where missing, except with CI=true."""
    return Optional()


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a command takes here, it does not say so on stderr, which many tests want to be empty."""
    monkeypatch.setattr("achieve.commands.progress.INTERVAL", 3600.0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` say why they do not run where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, None, None]:
    """After all else: how many tests were skipped for want of what, and how to get it."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    missing = Counter(reason.partition(MISSING)[2] for reason in reasons if MISSING in reason)
    for reason, count in missing.items():
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_line(f"{tests} skipped, {MISSING}{reason}", yellow=True)
