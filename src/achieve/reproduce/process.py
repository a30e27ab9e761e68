"""A command as a process of its own, with its output in a log."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from achieve.processes import end_with_parent

POLL = 0.25
PATIENCE = 60.0
"""Seconds a process has to end after it was asked to."""


class Outcome(NamedTuple):
    """How a process ended: its exit code, and the last lines it printed."""

    code: int
    lines: list[str]

    def failure(self, name: str, log: Path) -> str:
        """Say that it failed, with its last lines."""
        shown = "".join(f"\n    {line}" for line in self.lines)
        return f"{name}: failed with exit code {self.code}; its last lines, from {log}:{shown}"


def run_logged(
    command: Sequence[str],
    log: Path,
    stopping: Callable[[], bool],
    *,
    environment: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    patience: float = PATIENCE,
) -> Outcome:
    """Run a command until it ends, or stop it as soon as `stopping`, called again and again, says so.

    It is asked to stop, and killed if it has not ended `patience` seconds later: checkpoints are whole at every moment.
    Its own session keeps a Ctrl-C at the terminal from it. A variable of `environment` that is None is removed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {name: value for name, value in {**os.environ, **(environment or {})}.items() if value is not None}
    with open(log, "a+b") as output:
        output.write(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {shlex.join(command)}\n".encode())
        output.flush()
        begin = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=variables,
            start_new_session=True,
            # A parent that was killed outright must not leave runs behind.
            preexec_fn=partial(end_with_parent, signal.SIGTERM) if sys.platform == "linux" else None,
        )
        try:
            while not _ends(process, POLL) and not stopping():
                pass
        finally:
            process.terminate()
            try:
                _ends(process, patience)
            finally:
                process.kill()
                process.wait()
        output.seek(max(begin, output.seek(0, os.SEEK_END) - 16384))
        lines = [line.rstrip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return Outcome(process.returncode, lines[-8:])


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def achieve_command(arguments: Sequence[str]) -> list[str]:
    """Return `achieve ARGUMENTS` by this Python."""
    return [sys.executable, "-m", "achieve", *arguments]
