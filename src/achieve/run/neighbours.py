"""Who else computes on the same device: a run's time means little without it.

Every run holds a lock on a file of its own in a folder that all runs of a user share. A file whose lock is held belongs
to a run under way; one whose lock is free was left behind by a process that was killed, and is removed.
"""

import fcntl
import itertools
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

_NUMBERS = itertools.count()
"""Of this process's runs: a name used twice would wait for a lock that the process holds itself."""


class Neighbours:
    """Counts the runs on a device, this one included, and keeps their mean over the times it was asked.

    Where the folder cannot be used, a run counts itself alone.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"achieve-runs-{os.getuid()}"
        self._prefix = f"{device}."
        self._counts: list[int] = []
        self._own: tuple[int, Path] | None = None
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._own = self._enter()

    def _enter(self) -> tuple[int, Path]:
        path = self._folder / f"{self._prefix}{os.getpid()}.{next(_NUMBERS)}"
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another run may have taken the file for a dead one's before it was locked.
                if os.stat(path).st_ino == os.fstat(file).st_ino:
                    return file, path
            except FileNotFoundError:
                pass
            except OSError:
                os.close(file)
                raise
            os.close(file)

    def count(self) -> int:
        """Runs on the device at this moment, this one included."""
        others = 0
        if self._own is not None:
            with suppress(OSError):
                files = [path for path in self._folder.iterdir() if path.name.startswith(self._prefix)]
                others = sum(_alive(path) for path in files if path != self._own[1])
        self._counts.append(1 + others)
        return 1 + others

    @property
    def mean(self) -> float:
        """The mean of all counts; 1 before the first."""
        return sum(self._counts) / len(self._counts) if self._counts else 1.0

    def close(self) -> None:
        """Leave."""
        if self._own is not None:
            file, path = self._own
            with suppress(OSError):
                path.unlink()
            os.close(file)
            self._own = None


def device_key(device: torch.device) -> str:
    """A name for a device that means the same in every process, whatever GPUs each of them sees."""
    if device.type != "cuda":
        return device.type
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device.index or 0))


def _alive(path: Path) -> bool:
    """Whether the run that made this file is still there; if not, the file goes."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
