"""Where runs can be computed here, and how much memory is left there.

Nothing here opens a CUDA context: this process would then hold memory on a GPU that the runs need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from achieve.reproduce.estimates import Machine
from achieve.run.hardware import usable_cores


@dataclass(frozen=True)
class Device:
    """A GPU, by what CUDA_VISIBLE_DEVICES calls it; or the processor, which has no such name."""

    id: str | None
    name: str

    @property
    def label(self) -> str:
        return "CPU" if self.id is None else f"GPU {self.id}"

    @property
    def environment(self) -> dict[str, str]:
        """What a run must be told to compute here and nowhere else."""
        return {} if self.id is None else {"CUDA_VISIBLE_DEVICES": self.id}


CPU = Device(None, "CPU")


def find_devices(wanted: str = "auto") -> list[Device]:
    """The GPUs that PyTorch can use, unless `wanted` is `cpu`; the processor where there is none."""
    if wanted == "cpu":
        return [CPU]
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        return [CPU]
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    ids = visible[:count] if visible else [str(index) for index in range(count)]
    names = _query("name", ids)
    return [Device(id, names.get(id, "GPU")) for id in ids]


def this_machine(devices: list[Device]) -> Machine:
    return Machine(usable_cores(), tuple(device.name for device in devices if device.id is not None))


def free_gib(device: Device) -> float | None:
    """Memory that no process holds on a GPU, or of the machine; None where it cannot be told."""
    if device.id is None:
        return host_free_gib()
    found = _query("memory.free", [device.id]).get(device.id)
    try:
        return float(found) / 1024 if found is not None else None
    except ValueError:
        return None


def host_free_gib() -> float | None:
    """Memory of the machine that programs could still have."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return None


def _query(what: str, ids: list[str]) -> dict[str, str]:
    """One property of some GPUs, by the names given; empty where the driver's tool does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    found = {}
    for id in ids:
        command = [tool, f"--id={id}", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            found[id] = done.stdout.strip().splitlines()[0]
    return found
