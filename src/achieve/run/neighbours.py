"""Who else computes on the same device: a run's time means little without it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import torch


class Neighbours:
    """Counts the runs of this user on a device, this one included, and keeps their mean over the times it was asked.

    Each run has a file named after its process in a folder that all of them share. Where the folder cannot be used, a
    run counts itself alone.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir()) / f"achieve-runs-{os.getuid()}"
        self._own = folder / f"{device}.{os.getpid()}"
        self._counts: list[int] = []
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            self._own.touch(mode=0o600)

    def count(self) -> int:
        """Return the runs on the device at this moment, this one included."""
        others = 0
        with suppress(OSError):
            others = sum(_alive(path) for path in self._own.parent.glob(f"{self._own.stem}.*") if path != self._own)
        self._counts.append(1 + others)
        return 1 + others

    @property
    def mean(self) -> float:
        """Return the mean of all counts; 1 before the first."""
        return sum(self._counts) / len(self._counts) if self._counts else 1.0

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):
            self._own.unlink(missing_ok=True)


def device_key(device: torch.device) -> str:
    """Return a name for a device that means the same in every process, whatever GPUs each of them sees."""
    if device.type != "cuda":
        return device.type
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device.index or 0))


def _alive(path: Path) -> bool:
    """Return whether the run of this file is still there; if not, the file goes."""
    try:
        os.kill(int(path.suffix[1:]), 0)
    except (OSError, ValueError, OverflowError):
        path.unlink(missing_ok=True)
        return False
    return True
