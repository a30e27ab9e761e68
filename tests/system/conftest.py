"""One trained run for all tests of this folder, and cheap processes to make others."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from achieve.run.checkpoint import load_checkpoint
from tests.helpers.shapes import shapes_unchecked  # noqa: F401
from tests.helpers.threads import one_thread  # noqa: F401
from tests.system.processes import Child, Nursery
from tests.system.tiny import write_settings

Train = Callable[..., Child]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run's config as a file."""
    return write_settings(tmp_path_factory.mktemp("settings") / "tiny.json")


@pytest.fixture(scope="session")
def train(nursery: Nursery, settings: Path) -> Train:
    """Starts the tiny run in a folder, as a process of its own: ``train(folder, *flags)``."""

    def start(folder: Path, *flags: object, slow_writes: float = 0.0, file_limit: int | None = None) -> Child:
        command = ("train", "--config", settings, "--folder", folder, "--no-report", "--quiet", *flags)
        return nursery.start(*command, slow_writes=slow_writes, file_limit=file_limit)

    return start


@pytest.fixture(scope="session")
def finished(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny run, trained without interruption. Not to be written to."""
    folder = tmp_path_factory.mktemp("finished") / "tiny-s0"
    train(folder).run()
    return folder


@pytest.fixture(scope="session")
def first_part(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny run, killed soon after its first checkpoint with an episode. Not to be written to."""
    folder = tmp_path_factory.mktemp("stopped") / "tiny-s0"
    child = train(folder, slow_writes=0.004)

    def with_an_episode() -> bool:  # on a busy machine one is written before, as time goes by
        saved = load_checkpoint(folder / "checkpoint")
        return saved is not None and saved.state["episodes"] > 0

    assert child.wait_for(with_an_episode)
    child.send(signal.SIGKILL)
    child.wait()
    assert not (folder / "summary.json").exists()
    return folder


@pytest.fixture
def stopped(first_part: Path, tmp_path: Path) -> Path:
    """A stopped run to do anything with."""
    folder = tmp_path / "tiny-s0"
    shutil.copytree(first_part, folder)
    return folder


@pytest.fixture
def achieve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in this process: ``code, out, err = achieve("score", folder)``."""
    from achieve.cli import main

    monkeypatch.setenv("COLUMNS", "300")  # so that no sentence is wrapped

    def run(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["achieve", *(str(a) for a in argv)])
        try:
            code = main()
        except SystemExit as stop:
            assert isinstance(stop.code, int)
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run
