"""Tests that need what may be missing: skipped with a word, and with CI=true failed."""

from __future__ import annotations

import pytest

from tests import conftest
from tests.conftest import Optional


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "IN_CI", False)
    monkeypatch.setattr(conftest, "_world_error", lambda name: f"{name} needs a package; `make {name}` installs it")


@pytest.mark.usefixtures("bare")
def test_skipped_with_what_is_missing_and_how_to_get_it(optional: Optional) -> None:
    with pytest.raises(pytest.skip.Exception, match="missing: heist needs a package; `make heist` installs it"):
        optional.env("heist")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("version", "outcome"), [((3, 12), pytest.fail.Exception), ((3, 13), pytest.skip.Exception)])
def test_with_ci_only_what_cannot_be_had_is_skipped(
    optional: Optional, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(conftest, "IN_CI", True)
    monkeypatch.setattr("sys.version_info", version)
    with pytest.raises(outcome, match="missing: heist"):
        optional.env("heist")


@pytest.mark.usefixtures("bare")
def test_environment_that_can_be_made_is_not_skipped(optional: Optional, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    optional.env("crafter")
