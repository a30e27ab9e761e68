"""Make PyTorch's CPU threads sleep while they wait for work.

By default they spin for a while after each operation, on cores that the environments and other processes could use:
on two cores, training takes several times as long. `OMP_WAIT_POLICY=passive` makes them sleep. The OpenMP library
reads it once, when PyTorch is loaded, so `import achieve` sets it; if PyTorch was loaded before, the library is made to
behave the same at run time.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

POLICY = "OMP_WAIT_POLICY"
_lock = threading.Lock()
_done = False


def ask_to_sleep() -> None:
    """Set the policy for a PyTorch that is yet to be loaded, unless the user has chosen one."""
    if "torch" not in sys.modules:
        os.environ.setdefault(POLICY, "passive")


def make_sleep() -> None:
    """Do the same for a PyTorch that was loaded before `achieve`, once per process.

    GNU's OpenMP, which is part of PyTorch's wheels for Linux, spins three thousand times less while it has more threads
    than there are cores (GOMP_SPINCOUNT in its manual). So a team of that size is created, which sleeps forever.
    """
    global _done
    with _lock:
        if _done or POLICY in os.environ:
            return
        _done = True
    for path in _loaded("libgomp"):
        gomp = ctypes.CDLL(path)
        started = threading.Event()
        threading.Thread(target=_hold, args=(gomp, started), name="achieve-openmp", daemon=True).start()
        started.wait()


def _hold(gomp: ctypes.CDLL, started: threading.Event) -> None:
    """Create a team of threads, one more than there are cores, and keep it."""
    nothing_to_do = ctypes.cast(gomp.omp_get_thread_num, ctypes.c_void_p)
    gomp.GOMP_parallel(nothing_to_do, None, len(os.sched_getaffinity(0)) + 1, 0)
    started.set()
    threading.Event().wait()  # a team ends with the thread that created it


def _loaded(name: str) -> list[str]:
    """Return the files of the shared libraries of that name in this process; none if the system does not tell."""
    try:
        with open("/proc/self/maps") as file:
            files = [line.split(maxsplit=5)[5].rstrip("\n") for line in file if f"/{name}" in line]
    except OSError:
        return []
    return list(dict.fromkeys(files))
