"""The end of a run, and its going on for longer: a crash between any two changes of its folder loses nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from achieve.errors import RunFolderError
from achieve.run.weights import load_weights
from achieve.train import train
from tests.system.runs import contents, read
from tests.trust.small import assert_same_outcome, small_config
from tests.trust.stopping import SimulatedCrashError


def crash_at(monkeypatch: pytest.MonkeyPatch, nth: int) -> Callable[[], int]:
    """From the nth change of a file on, nothing is changed any more; returns how many changes there were."""
    changes = 0

    def crashing(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **keywords: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes > nth:
                raise SimulatedCrashError
            return real(*args, **keywords)

        return change

    for module, names in ((os, ("replace", "fsync", "ftruncate")), (Path, ("unlink", "mkdir")), (shutil, ("rmtree",))):
        for name in names:
            monkeypatch.setattr(module, name, crashing(getattr(module, name)))
    return lambda: changes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that were never stopped."""
    made = {}
    for kind in ("ppo", "ad", "qrdqn"):
        made[kind] = tmp_path_factory.mktemp(kind) / "run"
        train(small_config(kind), made[kind], quiet=True)
    return made


@pytest.mark.parametrize(
    ("kind", "every"),
    [("ppo", 1), ("ad", 4), pytest.param("ad", 1, marks=pytest.mark.long)],  # of the changes, or every fourth
)
def test_extended_and_killed_between_any_two_changes(
    kind: str, every: int, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, short = small_config(kind), small_config(kind, total_steps=96)
    train(short, tmp_path / "short", quiet=True)
    nth, crashed = 0, True
    while crashed:
        run = tmp_path / f"run-{nth}"
        shutil.copytree(tmp_path / "short", run)
        with monkeypatch.context() as patch:
            crash_at(patch, nth)
            try:
                train(config, run, quiet=True)
                crashed = False
            except SimulatedCrashError:
                pass
        assert train(config, run, quiet=True)["steps"] == config.total_steps, f"after {nth} changes"
        assert_same_outcome(run, whole[kind])
        assert read(run / "config.json")["config"]["total_steps"] == config.total_steps
        shutil.rmtree(run)
        nth += every
    assert nth > 8, "or little was shown"


def test_killed_between_config_and_summary_as_earlier_versions_wrote_them(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    """The config speaks of the new length, the summary of the old one: the steps taken decide."""
    train(small_config("ppo", total_steps=96), tmp_path / "run", quiet=True)
    text = (tmp_path / "run" / "config.json").read_text()
    assert '"total_steps": 96,' in text
    (tmp_path / "run" / "config.json").write_text(text.replace('"total_steps": 96,', '"total_steps": 144,'))
    train(small_config("ppo"), tmp_path / "run", quiet=True)
    assert_same_outcome(tmp_path / "run", whole["ppo"])


@pytest.mark.parametrize("kind", ["ppo", "qrdqn"])
def test_finishing_killed_between_any_two_changes(
    kind: str, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start of a run's last rollout to its end; nothing is left behind that only a run under way needs."""
    config = small_config(kind)
    with monkeypatch.context() as patch:
        count = crash_at(patch, 10**9)
        train(config, tmp_path / "counted", quiet=True)
        total = count()
    nth, crashed = total - 9, True
    while crashed:
        run = tmp_path / f"run-{nth}"
        with monkeypatch.context() as patch:
            crash_at(patch, nth)
            try:
                train(config, run, quiet=True)
                crashed = False
            except SimulatedCrashError:
                pass
        nth += 1
        train(config, run, quiet=True)
        assert_same_outcome(run, whole[kind])
        assert not list(run.glob("checkpoint/*/"))
        assert train(config, run, quiet=True) == read(run / "summary.json")


def test_weights_that_were_deleted_are_made_again(whole: dict[str, Path], tmp_path: Path) -> None:
    for kind, source in whole.items():
        run = tmp_path / kind
        shutil.copytree(source, run)
        (run / "weights.safetensors").unlink()
        train(small_config(kind), run, quiet=True)
        assert_same_outcome(run, source)
        assert load_weights(run / "weights.safetensors")[1] == load_weights(source / "weights.safetensors")[1]


def test_weights_that_cannot_be_made_again(whole: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole["ppo"], run)
    (run / "weights.safetensors").unlink()
    shutil.rmtree(run / "checkpoint")
    before = contents(run)
    with pytest.raises(RunFolderError, match=r"complete, but weights.safetensors is gone and there is no checkpoint"):
        train(small_config("ppo"), run, quiet=True)
    assert contents(run) == before


@pytest.mark.parametrize("name", ["episodes.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("harm", ["no last newline", "garbage", "cut short", "gone"])
def test_a_harmed_log_is_refused_untouched(whole: dict[str, Path], tmp_path: Path, name: str, harm: str) -> None:
    """In a run that is under way, as far as its folder says."""
    run = tmp_path / "run"
    shutil.copytree(whole["ad"], run)
    (run / "summary.json").unlink()
    path = run / name
    data = path.read_bytes()
    assert data.count(b"\n") > 2
    if harm == "gone":
        path.unlink()
    elif harm == "garbage":
        path.write_bytes(b"x" * (len(data) - 1) + b"\n")
    else:
        path.write_bytes(data[:-1] if harm == "no last newline" else data[: len(data) // 2])
    before, starts = contents(run), read(run / "config.json")["starts"]
    with pytest.raises(RunFolderError, match=rf"{name}.*restore the log, or remove the run folder"):
        train(small_config("ad"), run, quiet=True)
    assert contents(run) == before and read(run / "config.json")["starts"] == starts
    path.write_bytes(data)
    train(small_config("ad"), run, quiet=True)
    assert_same_outcome(run, whole["ad"])


def test_a_refused_start_is_not_recorded(whole: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole["ppo"], run)
    before = (run / "config.json").read_bytes()
    train(small_config("ppo"), run, quiet=True)
    assert (run / "config.json").read_bytes() == before, "a complete run is shown, not started"
