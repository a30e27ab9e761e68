"""PyTorch's CPU threads sleep while they wait for work.

By default they spin for a while after each operation, on cores that the environments and other processes could use:
on two cores, training takes several times as long. `OMP_WAIT_POLICY=passive` makes them sleep. The OpenMP library
reads it once, when PyTorch is loaded, so `import achieve` sets it; where PyTorch was there first, the library is
brought to do the same as it runs.
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
    """Set the policy for a PyTorch that is yet to be loaded. A policy the user has chosen stands."""
    if "torch" not in sys.modules:
        os.environ.setdefault(POLICY, "passive")


def make_sleep() -> None:
    """Do so for a PyTorch that was loaded before `achieve`; once in a process.

    GNU's OpenMP, which PyTorch's wheels for Linux bring, spins three thousand times less while there are more of its
    threads than cores (GOMP_SPINCOUNT in its manual). A few that sleep for good see to that.
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
    """Call a team of threads together, one more than there are cores, and keep it."""
    nothing_to_do = ctypes.cast(gomp.omp_get_thread_num, ctypes.c_void_p)
    gomp.GOMP_parallel(nothing_to_do, None, len(os.sched_getaffinity(0)) + 1, 0)
    started.set()
    threading.Event().wait()  # a team is dismissed when the thread that called it together ends


def _loaded(name: str) -> list[str]:
    """Files of the shared libraries of that name in this process; none where the system does not tell."""
    try:
        with open("/proc/self/maps") as file:
            files = [line.split(maxsplit=5)[5].rstrip("\n") for line in file if f"/{name}" in line]
    except OSError:
        return []
    return list(dict.fromkeys(files))
