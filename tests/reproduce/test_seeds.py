"""`achieve train --seeds`: several seeds of one config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from achieve.cli import main
from achieve.commands import many_runs
from achieve.commands import train as train_module
from achieve.commands.many_runs import parse_seeds, without_flags
from achieve.commands.train import parse_train
from achieve.errors import ConfigError
from achieve.reproduce.plan import RunSpec
from tests.reproduce.parts import TINY

SEVERAL = ["train", "--preset", "quick", "--seeds", "3,5"]


def test_seeds_are_numbers_and_ranges() -> None:
    assert parse_seeds("3") == [3]
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("0, 2,5-7") == [0, 2, 5, 6, 7]


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,1", "0-3,2", "1.5", "0-99999", "9" * 40])
def test_seeds_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^seeds "):
        parse_seeds(text)


def test_flags_are_left_out_with_their_values() -> None:
    arguments = ["--seeds", "0-4", "--preset", "ad", "--jobs=2", "--folder", "--seeds"]
    assert without_flags(arguments, ("--seeds", "--jobs", "--folder")) == ["--preset", "ad"]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[RunSpec], Path, int]]:
    """What would be made."""
    seen: list[tuple[list[RunSpec], Path, int]] = []
    monkeypatch.setattr(many_runs, "make_runs", lambda runs, folder, _, jobs: seen.append((runs, folder, jobs)))
    return seen


def test_each_seed_is_the_run_that_train_makes_alone(planned: list[tuple[list[RunSpec], Path, int]]) -> None:
    flags = ["--env", "minigrid", "--ppo.gamma", "0.9", "--no-report", "--quiet"]
    assert main([*SEVERAL, "--jobs", "2", *flags]) == 0
    ((runs, folder, jobs),) = planned
    assert (folder, jobs) == (Path("runs"), 2)
    for run, seed in zip(runs, (3, 5), strict=True):
        assert run.name == f"quick-minigrid-s{seed}"
        assert run.config == parse_train(["--preset", "quick", *flags, "--seed", str(seed)]).train
        assert parse_train(run.arguments(folder / run.name)[1:]).train == run.config

    assert main([*SEVERAL, "--name", "mine", "--folder", "there"]) == 0
    runs, folder, _ = planned[1]
    assert folder == Path("there") and [run.name for run in runs] == ["mine-s3", "mine-s5"]


def test_a_single_seed_is_an_ordinary_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(train_module, "_train_one", seen.append)
    assert main(["train", "--preset", "quick", "--seeds", "3", "--folder", "there"]) == 0
    assert seen[0].train == parse_train(["--preset", "quick", "--seed", "3"]).train
    assert seen[0].folder == Path("there/quick-s3")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--seed", "3"], "give --seed or --seeds, not both"),
        (["--ppo.gamma", "2"], "ppo.gamma is 2.0; it must lie between 0 and 1"),
        (["--jobs", "0"], "jobs is 0; it must be 1 or more"),
    ],
)
def test_refused_before_anything_is_started(
    flags: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SEVERAL, *flags]) == 2
    assert f"achieve train: {sentence}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_an_error_and_the_scores_of_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("achieve.reproduce.executor.execute", lambda *_: ["quick-s5"])
    assert main([*SEVERAL, *TINY]) == 2
    assert "achieve train: 1 failed: quick-s5. Their output is in runs/logs" in capsys.readouterr().err
