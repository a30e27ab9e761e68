"""The energy a GPU uses: its power limit bounds several processes at once, so what only saves time may gain nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"


def uuid_of(device: torch.device) -> str | None:
    """Return a GPU's name in NVIDIA's library; None for what is not a GPU."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None


class Meter:
    """Reads the energy that a GPU has used since its driver was loaded, by all processes together.

    Args:
        uuid: of the GPU, as :func:`uuid_of` returns it.
        load: opens NVIDIA's library.
    """

    def __init__(self, uuid: str | None, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._handle = ctypes.c_void_p()
        self._library: Any = None
        if uuid is None:
            return
        try:
            library = load(LIBRARY)
        except OSError:
            return
        if not (library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle))):
            self._library = library

    def joules(self) -> float:
        """Return the energy; NaN where it cannot be read."""
        millijoules = ctypes.c_ulonglong()
        if self._library is None:
            return float("nan")
        failed = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(millijoules))
        return float("nan") if failed else millijoules.value / 1000
