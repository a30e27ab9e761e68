"""NVIDIA's multi-process service: kernels of several runs on one GPU at the same moment.

Without it the GPU serves one process at a time, in slices, and small kernels leave most of it idle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
_DEFAULT_PIPES = Path("/tmp/nvidia-mps")
_TRIAL = "import torch; torch.ones(8, device='cuda').sum().item()"


@contextmanager
def multi_process_service(
    say: Callable[[str], None], trial: str = _TRIAL, default_pipes: Path = _DEFAULT_PIPES
) -> Iterator[dict[str, str]]:
    """Within the block runs can share a GPU at the same moment; yields what to add to their environment.

    A service that is there already is used as it is and never stopped. Otherwise one is started with a folder of its
    own and stopped at the end. Where that does not work, runs take turns on the GPU, and `say` says so.
    """
    control = shutil.which(CONTROL)
    if PIPES in os.environ or (default_pipes / "control").exists():
        say("runs share the GPU through the multi-process service (MPS) that runs here already")
        yield {}
        return
    if control is None:
        say(f"runs take turns on the GPU: {CONTROL} is not installed")
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="achieve-mps-") as folder:
        added = {PIPES: folder, LOGS: folder}
        # The service must see every GPU: a run's own CUDA_VISIBLE_DEVICES picks among those the service has.
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | added
        problem = _start(control, environment) or _try(trial, environment)
        if problem is None:
            say("runs share the GPU through a multi-process service (MPS) of their own")
        else:
            say(f"runs take turns on the GPU: the multi-process service (MPS) does not work here ({problem})")
            _stop(control, environment)
        try:
            yield added if problem is None else {}
        finally:
            if problem is None:
                _stop(control, environment)


def _start(control: str, environment: dict[str, str]) -> str | None:
    # Its output goes nowhere, as the daemon would keep a pipe open and we would wait for its end.
    try:
        done = subprocess.run(
            [control, "-d"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else f"{CONTROL} -d ended with code {done.returncode}"


def _try(trial: str, environment: dict[str, str]) -> str | None:
    """What goes wrong when a process computes through the service; in some containers it starts and does not serve."""
    try:
        command = [sys.executable, "-c", trial]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
    return None if done.returncode == 0 else lines[-1]


def _stop(control: str, environment: dict[str, str]) -> None:
    # One that does not answer does no harm: it serves only those who know its folder.
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([control], input="quit\n", env=environment, capture_output=True, text=True, timeout=30)
