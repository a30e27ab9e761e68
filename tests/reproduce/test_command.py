"""`achieve reproduce`, from the command line: real runs, stopped and resumed, and requests that are refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from achieve.cli import main
from achieve.run.folder import read_config, read_summary
from tests.reproduce.parts import TINY, contents, some_runs, without_processes, write_run

Command = Callable[[Sequence[str]], tuple[int, str, str]]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300"}


def reproduce(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "achieve", "reproduce", *arguments, "--", *TINY]


@pytest.fixture
def achieve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(arguments: Sequence[str]) -> tuple[int, str, str]:
        code = main(["reproduce", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_stopped_and_resumed(achieve: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = reproduce("small", "--seeds", "0-0", "--no-report")
    log = tmp_path / "out.txt"
    run = tmp_path / "runs" / "ad-small-s0"
    with open(log, "w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not (run / "checkpoint" / "checkpoint.safetensors").exists():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=60)
    said = log.read_text()
    assert (code, read_summary(run)) == (130, None), said
    assert "stopping: each run saves its state first" in said
    assert "achieve reproduce: stopped; the same command resumes the runs in runs" in said

    _, plan, _ = achieve(["small", "--seeds", "0-0", "--dry-run", "--", *TINY])
    # The signal may come after the last step.
    assert "to resume" in plan and re.search("1 run to make in runs: (about |no steps are left)", plan)

    made = without_processes(monkeypatch)
    code, out, err = achieve(command[command.index("small") :])
    assert (code, made) == (0, ["ad-small-s0"]), out + err
    assert "ad-small-s0: resumed" in out
    summary = read_summary(run)
    assert summary is not None and f"score {summary['score']:.2f}" in out
    assert len(read_config(run)["starts"]) == 2


def test_a_run_stopped_after_its_last_step_has_none_left(achieve: Command, tmp_path: Path) -> None:
    (run,) = some_runs("ad-small")
    write_run(tmp_path / "runs", run, step=run.steps)
    _, plan, _ = achieve(["small", "--seeds", "0-0", "--dry-run"])
    assert plan.splitlines()[-1] == "1 run to make in runs: no steps are left"


@pytest.mark.gpu
def test_runs_share_a_gpu(tmp_path: Path) -> None:
    command = [*reproduce("small", "--seeds", "0-1", "--jobs", "2", "--no-report"), "--device", "cuda"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs share the GPU" in done.stdout or "runs take turns on the GPU" in done.stdout
    for name in ("ad-small-s0", "ad-small-s1"):
        assert f"{name}: started" in done.stdout
        summary = read_summary(tmp_path / "runs" / name)
        assert summary is not None and summary["gpu_gib"] > 0


def test_lists_the_experiments(achieve: Command) -> None:
    code, out, _ = achieve([])
    assert code == 0
    for name in ("table1", "figure-ppo", "ablation", "small", "probe", "matching", "success-rates", "qrdqn", "all"):
        assert f"\n{name} " in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "unknown experiment 'table9'; there are: table1"),
        (["table1", "--seeds", "0-"], "seeds is '0-'; give numbers and ranges, such as 0-4 or 0,2,5-7"),
        (["table1", "--seeds", "3"], "seeds is 3; give a range, such as 0-9 for ten seeds, or 3-3 for one"),
        (["table1", "--jobs", "0"], "jobs is 0; it must be 1 or more"),
        (["table1", "--", "--seed", "3"], "--seed cannot be given for all runs: use --seeds"),
        (["table1", "--", "--total-steps", "0"], "total_steps is 0; it must be above 0"),
        (["table1", "--", "--device", "cuda:1"], "--device cuda:1 cannot be given for all runs"),
    ],
)
def test_bad_requests(achieve: Command, arguments: list[str], sentence: str, tmp_path: Path) -> None:
    code, _, err = achieve(arguments)
    assert code == 2 and f"achieve reproduce: {sentence}" in err
    assert list(tmp_path.iterdir()) == []


def test_another_runs_folder_is_refused_and_left_alone(achieve: Command, tmp_path: Path) -> None:
    (run,) = some_runs("ad-small")
    write_run(tmp_path / "runs", run, summary={"score": 1.0}, score_steps=10)
    before = contents(tmp_path)
    code, _, err = achieve(["small", "--seeds", "0-1"])
    assert code == 2
    assert "ad-small-s0 holds a run with another config: score_steps is 10 there, 1000000 here" in err
    assert contents(tmp_path) == before


def test_a_plan_says_what_is_there_and_writes_nothing(achieve: Command, tmp_path: Path) -> None:
    ad, ppo = some_runs("ad", "ppo")
    write_run(tmp_path / "runs", ad, summary={"score": 1.0})
    write_run(tmp_path / "runs", ppo, step=512_000)
    before = contents(tmp_path)
    code, out, _ = achieve(["table1", "--seeds", "0-1", "--dry-run"])
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert lines[0] == "runs to start to resume done steps left one run"
    assert lines[1].startswith("ad 1 - 1 1,024,000 ") and lines[2].startswith("ppo 1 1 - 1,536,000 ")
    assert lines[3].startswith("lstm-spcnn 2 - - 2,048,000 ")
    assert "5 runs to make in runs: about " in lines[-1]
    assert contents(tmp_path) == before
