"""Processes: what they print, and that they do not outlive the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from achieve.reproduce.process import Process, with_package


def test_only_the_last_lines_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    for text in ("old", "new\n\n" + "\n".join(map(str, range(20)))):
        process = Process([sys.executable, "-c", f"print({text!r})"], log)
        assert process.wait(30)
    assert process.last_lines(3) == ["17", "18", "19"]
    assert "old" not in process.last_lines(100) and "new" in process.last_lines(100)
    assert "old" in log.read_text()


def test_an_uninstalled_package_is_found() -> None:
    found = with_package({"PYTHONPATH": "elsewhere"})["PYTHONPATH"].split(os.pathsep)
    assert (Path(found[0]) / "achieve" / "reproduce").is_dir() and found[1:] == ["elsewhere"]
    assert with_package(with_package({})) == with_package({})


def test_stopping_waits_for_those_that_listen(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(130)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    process = Process([sys.executable, "-c", code], tmp_path / "log")
    assert process.watch(lambda: bool(process.last_lines()), poll=0.01) == (130, ["ready"])


def test_variables_are_set_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code = "import os; print(os.environ.get('OMP_NUM_THREADS'), os.environ['HERE'], os.getcwd())"
    process = Process([sys.executable, "-c", code], tmp_path / "log", {"OMP_NUM_THREADS": None, "HERE": "1"}, tmp_path)
    assert process.watch(lambda: False) == (0, [f"None 1 {tmp_path}"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_parent_leaves_nothing_running(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from achieve.reproduce.process import Process\n"
        "c = Process([sys.executable, '-c', 'import time; time.sleep(60)'], Path(sys.argv[1]))\n"
        "print(c.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_package(os.environ)) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    deadline = time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # ended, though nobody has asked for its exit code
