"""File operations as they happen, numbered, and a process that ends itself at one of them.

Python's audit events tell of files that are opened, renamed, removed and cut; writes and syncs are no events, so files
opened for writing are ours, and a few functions of `os` are wrapped. Everything stays as it is until the process ends.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

_PLAIN_OPEN = io.open
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events by the position of the path and of the folder it may be relative to.
_EVENTS = {
    "os.rename": ("rename", 1, 3),
    "os.remove": ("remove", 0, 1),
    "os.mkdir": ("mkdir", 0, 2),
    "os.rmdir": ("rmdir", 0, 1),
    "os.truncate": ("truncate", 0, None),
    "os.link": ("link", 1, 3),
    "os.symlink": ("link", 1, 2),
    "shutil.rmtree": ("rmtree", 0, 1),
}


class Event(NamedTuple):
    """The `number`-th time that `operation` is done to the file `name`."""

    operation: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.operation}:{self.name}#{self.number}"


class Tracer:
    """Numbers the operations on files below `root`; at the event `aim` (`...+half`: in its middle) the process dies."""

    def __init__(self, root: Path, aim: str | None = None) -> None:
        self.events: list[Event] = []
        self._root = os.path.realpath(root) + os.sep
        self._aim = aim
        self._counts: dict[tuple[str, str], int] = {}

    def install(self) -> None:
        """Trace this process, from now to its end."""
        sys.addaudithook(self._audit)
        builtins.open = io.open = self._open  # type: ignore[assignment]
        for function in ("fsync", "fdatasync", "write", "pwrite"):
            self._wrap(function, "fsync" if "sync" in function else "write")

    def happen(self, operation: str, path: Any, folder: int | None = None) -> bool:
        """Count an event, and die where it is the one aimed at; True where its middle is."""
        name = self.name(path, folder)
        if name is None:
            return False
        number = self._counts[operation, name] = self._counts.get((operation, name), 0) + 1
        event = Event(operation, name, number)
        self.events.append(event)
        if str(event) == self._aim:
            die()
        return f"{event}+half" == self._aim

    def name(self, path: Any, folder: int | None = None) -> str | None:
        """A file's name within the root, the same in every process; None for one that lies elsewhere."""
        try:
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            path = os.fsdecode(path)
            if folder is not None and folder >= 0:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        except (OSError, TypeError):
            return None
        path = os.path.abspath(path)
        if not path.startswith(self._root):
            return None
        # Names with a process's number, and with those of the rows they hold, are another in every run.
        return re.sub(r"(/cpu)\.\d+\.\d+$|(rows)-\d+-\d+", r"\1\2", path.removeprefix(self._root))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITING:
                self.happen("open", path)
        elif event in _EVENTS:
            operation, at, folder_at = _EVENTS[event]
            folder = arguments[folder_at] if folder_at is not None and folder_at < len(arguments) else None
            self.happen(operation, arguments[at], folder)

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int) or self.name(file) is None:
            return _PLAIN_OPEN(file, mode, buffering, *args, **kwargs)
        raw = _TracedFile(self, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)

    def _wrap(self, function: str, operation: str) -> None:
        plain = getattr(os, function)

        def traced(file: Any, *args: Any) -> Any:
            if self.happen(operation, file if isinstance(file, int) else file.fileno()):
                data, *rest = args
                plain(file, bytes(data)[: len(data) // 2], *rest)
                die()
            return plain(file, *args)

        setattr(os, function, traced)


class _TracedFile(io.FileIO):
    """A file whose every write is an event: what buffers above it hand down, not what the program calls a write."""

    def __init__(self, tracer: Tracer, path: Any, mode: str) -> None:
        self._tracer = tracer
        self._path = os.path.abspath(os.fsdecode(path))
        super().__init__(path, mode)

    def write(self, data: Any) -> int:
        if self._tracer.happen("write", self._path):
            with memoryview(data).cast("B") as view:
                super().write(view[: len(view) // 2])
            die()
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._tracer.happen("truncate", self._path)
        return super().truncate(size)


def die() -> None:
    """What `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def aims(events: list[Event], times: int = 3) -> list[str]:
    """Where to aim: at what is done to a file, the first few times.

    A file that is written is aimed at before its first write and in the middle of its first, middle and last one, from
    one opening to the next. A sync is no aim: a process that dies before it leaves the same files as one that dies
    after it.
    """
    found: list[str] = []
    writes: dict[str, list[Event]] = {}
    rounds: dict[str, int] = {}

    def flush(name: str) -> None:
        held = writes.pop(name, [])
        rounds[name] = rounds.get(name, 0) + bool(held)
        if held and rounds[name] <= times:
            found.append(str(held[0]))
            found.extend(f"{one}+half" for one in dict.fromkeys((held[0], held[len(held) // 2], held[-1])))

    for event in events:
        if event.operation == "write":
            writes.setdefault(event.name, []).append(event)
            continue
        flush(event.name)
        if event.operation != "fsync" and event.number <= times:
            found.append(str(event))
    for name in list(writes):
        flush(name)
    return found
