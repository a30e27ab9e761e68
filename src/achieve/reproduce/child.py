"""A run as a process of its own, with its output in a log."""

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

import achieve
from achieve.processes import end_with_parent

STOPPED = 130
"""The exit code of a run that was asked to stop and can be continued."""

Command = Callable[[Sequence[str]], list[str]]


def achieve_command(arguments: Sequence[str]) -> list[str]:
    """`achieve ARGUMENTS` by this Python."""
    return [sys.executable, "-m", "achieve", *arguments]


def log_folder(folder: Path) -> Path:
    """Where the output of everything started for a folder of runs goes: beside the runs, which own their folders."""
    return folder / "reproduce" / "logs"


class Child:
    """A started command. Its own session keeps a Ctrl-C at the terminal from it: whoever started it stops it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
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
                env=with_package({**os.environ, **environment}),
                start_new_session=True,
                # A parent that was killed outright must not leave runs behind.
                preexec_fn=partial(end_with_parent, signal.SIGTERM) if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> bool:
        """Whether it ended within so many seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ask_to_stop(self) -> None:
        """A run then leaves its last checkpoint whole and ends."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()
            self._process.wait()

    def last_lines(self, count: int = 8) -> list[str]:
        """The end of what it printed, this time."""
        with open(self.log, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self._begin, size - 16384))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which `python -m achieve` is this package, installed or not."""
    source = str(Path(achieve.__file__).resolve().parents[1])
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != source]
    return {**environment, "PYTHONPATH": os.pathsep.join([source, *paths])}


def stop_all(children: Sequence[Child], patience: float) -> None:
    """Ask all to stop, wait, and kill what has not ended by then: checkpoints are whole at every moment."""
    for child in children:
        child.ask_to_stop()
    try:
        for child in children:
            child.wait(patience)
    finally:
        for child in children:
            child.kill()
