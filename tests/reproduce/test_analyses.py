"""What follows the runs: analyses made once, and again when the runs change."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from achieve.reproduce.analyses import Analysis, analyses, make_analysis
from achieve.reproduce.experiments import EXPERIMENTS
from achieve.reproduce.plan import Plan, make_plan
from achieve.run.signals import StopRequest
from tests.reproduce.parts import some_runs, write_run

CHOSEN = {name: EXPERIMENTS[name] for name in ("table1", "probe", "matching", "hierarchy")}


def finished_plan(folder: Path) -> Plan:
    runs = some_runs("ad", "ppo", seeds=2)
    for run in runs:
        seed = run.config.seed
        summary = {"score": 10.0 + seed, "reward": 5.0 if seed else None, "weights_sha256": run.name}
        path = write_run(folder, run, summary=summary)
        (path / "weights.safetensors").touch()
    return make_plan(runs, folder)


def record_arguments(arguments: Sequence[str]) -> list[str]:
    """A command that notes its arguments in its output folder."""
    code = "import sys, pathlib; p = pathlib.Path(sys.argv[-1]); p.mkdir(parents=True, exist_ok=True)\n"
    code += "(p / 'seen.txt').open('a').write(' '.join(sys.argv[1:]) + '\\n')"
    return [sys.executable, "-c", code, *arguments]


def test_each_analysis_has_the_runs_it_needs(tmp_path: Path) -> None:
    todo, notes = analyses(CHOSEN, finished_plan(tmp_path))
    assert notes == []
    seen = {analysis.name: [run.name for run in analysis.runs] for analysis in todo}
    assert seen == {
        "probe": ["ad-s0", "ad-s1", "ppo-s0", "ppo-s1"],
        "matching": ["ad-s0", "ppo-s0"],
        "hierarchy": ["ad-s0"],
    }
    out = tmp_path / "reproduce" / "hierarchy"
    assert todo[2].arguments == ["hierarchy", str(tmp_path / "ad-s0"), "--out", str(out)]


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    plan = finished_plan(tmp_path)
    (tmp_path / "ad-s0" / "weights.safetensors").unlink()
    todo, notes = analyses(CHOSEN, plan)
    assert todo == []
    names = ("probe", "matching", "hierarchy")
    assert notes == [f"{name}: skipped, as {tmp_path / 'ad-s0'} has no weights.safetensors" for name in names]
    _, notes = analyses(CHOSEN, make_plan(some_runs("ad", "ppo"), tmp_path / "empty"))
    assert notes[0] == "probe: skipped, as no run of ad and ppo is finished"


def test_made_once_and_again_when_the_runs_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("achieve.reproduce.analyses.achieve_command", record_arguments)
    plan = finished_plan(tmp_path)
    said: list[str] = []

    def make() -> None:
        todo, _ = analyses({"probe": CHOSEN["probe"]}, plan)
        with StopRequest() as stop:
            assert [make_analysis(analysis, tmp_path, said.append, stop) for analysis in todo] == [True]

    seen = tmp_path / "reproduce" / "probe" / "seen.txt"
    make()
    make()
    assert len(seen.read_text().splitlines()) == 1
    assert said[-1] == f"probe: done before, in {tmp_path / 'reproduce' / 'probe'}"
    (tmp_path / "ad-s1" / "summary.json").write_text(json.dumps({"weights_sha256": "other"}))
    make()
    assert len(seen.read_text().splitlines()) == 2


def test_one_that_fails_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = finished_plan(tmp_path)
    todo, _ = analyses(CHOSEN, plan)
    said: list[str] = []

    def command(arguments: Sequence[str]) -> list[str]:
        failing = [sys.executable, "-c", "print('no such expert'); raise SystemExit(2)"]
        return failing if arguments[0] == "matching" else record_arguments(arguments)

    monkeypatch.setattr("achieve.reproduce.analyses.achieve_command", command)
    with StopRequest() as stop:
        made = [analysis.name for analysis in todo if make_analysis(analysis, tmp_path, said.append, stop)]
    assert made == ["probe", "hierarchy"]
    assert [analysis.name for analysis in todo if analysis.is_made] == ["probe", "hierarchy"]
    assert any("matching: failed with exit code 2" in line and "no such expert" in line for line in said)


def test_an_unreadable_record_means_not_made(tmp_path: Path) -> None:
    analysis = Analysis("probe", tmp_path, [])
    assert not analysis.is_made
    (tmp_path / "made-from.json").write_text("{")
    assert not analysis.is_made
