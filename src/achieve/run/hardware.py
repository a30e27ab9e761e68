"""What a run was computed on: machine, versions, commit."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import achieve

PACKAGES = ("torch", "numpy", "numba", "gymnasium", "crafter", "minigrid", "procgen-mirror")


def describe(*, gpus: bool = True) -> dict[str, Any]:
    """Machine, versions and commit, ready for JSON. Without ``gpus``, PyTorch is not imported to look for them."""
    return {"machine": machine(gpus=gpus), "versions": versions(), "commit": commit()}


def machine(*, gpus: bool = True) -> dict[str, Any]:
    """Processor, cores this process may use, memory, graphics cards."""
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "gpus": [],
    }
    if not gpus:
        return facts
    import torch

    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        facts["gpus"] = [{"name": card.name, "memory_gib": round(card.total_memory / 2**30, 1)} for card in cards]
        facts["cuda"] = torch.version.cuda
    return facts


def versions() -> dict[str, str]:
    """Python, achieve and the packages that decide a run's numbers."""
    found = {"python": platform.python_version(), "achieve": achieve.__version__}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@cache
def commit() -> str | None:
    """The commit of the checkout this package runs from; None for an installed package.

    `+` at the end means that tracked files differ from it. The environment variable ACHIEVE_COMMIT
    speaks for a copy without its repository.
    """
    if named := os.environ.get("ACHIEVE_COMMIT"):
        return named
    package = Path(achieve.__file__).resolve().parent
    top = _git(package, "rev-parse", "--show-toplevel")
    # A package installed in some other project's repository must not claim that one's commit.
    if top is None or package != Path(top).resolve() / "src" / "achieve":
        return None
    head = _git(package, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(package, "status", "--porcelain", "-uno") else "")


def usable_cores() -> int:
    """Cores this process may run on, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int | None:
    """Bytes of memory this process can still get, by the machine and by the container it runs in; None if not known."""
    found, cgroup = [], Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        found.append(1024 * int(_entry("/proc/meminfo", "MemAvailable:").split()[0]))
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit.isdecimal():
            found.append(int(limit) - int(used) + int(_entry(cgroup / "memory.stat", "file ")))
    return min(found, default=None)


def one_line(facts: dict[str, Any]) -> str:
    """`NVIDIA H200 (141 GiB), 16 cores, 128 GiB` from `machine()`."""
    gpus = [f"{card['name']} ({card['memory_gib']:.0f} GiB)" for card in facts["gpus"]]
    memory = facts["memory_gib"]
    parts = [*gpus, facts["cpu"], f"{facts['cores']} cores", memory and f"{memory:.0f} GiB memory"]
    return ", ".join(part for part in parts if part)


def _cpu_name() -> str:
    with suppress(OSError, ValueError):
        return _entry("/proc/cpuinfo", "model name").lstrip("\t :")
    return platform.processor() or platform.machine()


def _entry(path: str | Path, name: str) -> str:
    """Return what follows a name at the beginning of a line; a ValueError where there is no such line."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.removeprefix(name).strip()
    raise ValueError(f"{path} has no line {name}")


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
