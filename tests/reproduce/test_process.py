"""Processes: what they print, and that they do not outlive the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from achieve.reproduce.process import Outcome, run_logged


def never() -> bool:
    return False


def test_only_the_last_lines_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    for text in ("old", "new\n\n" + "\n".join(map(str, range(4)))):
        outcome = run_logged([sys.executable, "-c", f"print({text!r})"], log, never)
    assert outcome == (0, ["new", "0", "1", "2", "3"])
    assert "old" in log.read_text()
    long = run_logged([sys.executable, "-c", "print(*range(10_000), sep='\\n'); raise SystemExit(3)"], log, never)
    assert long == (3, [str(number) for number in range(9992, 10_000)])


def test_a_failure_is_told_with_the_last_lines() -> None:
    told = Outcome(2, ["first", "second"]).failure("ad-s0", Path("ad-s0.log"))
    assert told == "ad-s0: failed with exit code 2; its last lines, from ad-s0.log:\n    first\n    second"


@pytest.mark.parametrize(("handler", "code"), [("lambda *_: sys.exit(130)", 130), ("signal.SIG_IGN", -9)])
def test_stopping_waits_for_those_that_listen_and_kills_the_others(tmp_path: Path, handler: str, code: int) -> None:
    text = (
        f"import signal, sys, time; signal.signal(signal.SIGTERM, {handler}); print('ready', flush=True); "
        "time.sleep(60)"
    )
    log = tmp_path / "log"
    patience = 20.0 if code == 130 else 0.1
    command = [sys.executable, "-c", text]
    outcome = run_logged(command, log, lambda: log.read_text().endswith("ready\n"), patience=patience)
    assert outcome == (code, ["ready"])


def test_variables_are_set_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code = "import os; print(os.environ.get('OMP_NUM_THREADS'), os.environ['HERE'], os.getcwd())"
    variables = {"OMP_NUM_THREADS": None, "HERE": "1"}
    outcome = run_logged([sys.executable, "-c", code], tmp_path / "log", never, environment=variables, cwd=tmp_path)
    assert outcome == (0, [f"None 1 {tmp_path}"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_parent_leaves_nothing_running(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys; from pathlib import Path; from achieve.reproduce.process import run_logged\n"
        "child = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "run_logged([sys.executable, '-c', child], Path(sys.argv[1]), lambda: False)"
    )
    deadline = time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", code, str(log)]) as parent:
        while not log.exists() or not log.read_text().rpartition("\n")[0].rpartition("\n")[2].isdecimal():
            assert parent.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        pid = int(log.read_text().splitlines()[-1])
        os.kill(pid, 0)
        parent.kill()
    while _runs(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # ended, though nobody has asked for its exit code
