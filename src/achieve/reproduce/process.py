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

import achieve
from achieve.processes import end_with_parent

POLL = 0.25
PATIENCE = 60.0
"""Seconds a process has to end after it was asked to."""


class Outcome(NamedTuple):
    """How a process ended: its exit code, and the last lines it printed."""

    code: int
    lines: list[str]

    def words(self, name: str, log: Path | None = None) -> str:
        """Say that it failed, with its last lines."""
        source = f", from {log}" if log else ""
        shown = "".join(f"\n    {line}" for line in self.lines)
        return f"{name}: failed with exit code {self.code}; its last lines{source}:{shown}"


class Process:
    """A started command. Its own session keeps a Ctrl-C at the terminal from it: whoever started it stops it."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start it; a variable of `environment` that is None is removed."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        variables = {**os.environ, **(environment or {})}
        with open(log, "ab") as output:
            head = f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {shlex.join(command)}\n"
            output.write(head.encode())
            output.flush()
            self._begin = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=with_package({name: value for name, value in variables.items() if value is not None}),
                start_new_session=True,
                # A parent that was killed outright must not leave runs behind.
                preexec_fn=partial(end_with_parent, signal.SIGTERM) if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float) -> bool:
        """Return whether it ended within so many seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, patience: float) -> None:
        """Ask it to stop, wait, and kill it if it has not ended by then: checkpoints are whole at every moment."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self.wait(patience)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def watch(self, stopping: Callable[[], bool], patience: float = PATIENCE, poll: float = POLL) -> Outcome:
        """Wait until it ends, and stop it as soon as `stopping`, called again and again, says so."""
        try:
            while not self.wait(poll) and not stopping():
                pass
        finally:
            self.stop(patience)
        return Outcome(self._process.returncode, self.last_lines())

    def last_lines(self, count: int = 8) -> list[str]:
        """Return the end of what it printed, this time."""
        with open(self.log, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self._begin, size - 16384))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def achieve_command(arguments: Sequence[str]) -> list[str]:
    """Return `achieve ARGUMENTS` by this Python."""
    return [sys.executable, "-m", "achieve", *arguments]


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `python -m achieve` is this package, installed or not."""
    source = str(Path(achieve.__file__).resolve().parents[1])
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != source]
    return {**environment, "PYTHONPATH": os.pathsep.join([source, *paths])}
