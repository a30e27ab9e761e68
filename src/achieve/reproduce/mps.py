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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")
# Tells runs that others use the GPU at the same moment; `nn/kernels/norm_conv.py` looks for it.
SHARED = "ACHIEVE_GPU_SHARED"
# A script by its path: `-m` would import the package, too.
TRIAL = [sys.executable, "-I", "-S", str(Path(__file__).with_name("mps_trial.py"))]


@contextmanager
def multi_process_service(say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Within the block runs can share a GPU at the same moment; yields what to add to their environment.

    A service that is running is used and left alone. Otherwise one is started in a folder of its own, and stopped at
    the end. Where that does not work, runs take turns on the GPU, and `say` says so.
    """
    control = shutil.which(CONTROL)
    running = PIPES in os.environ or (DEFAULT_PIPES / "control").exists()
    if running or control is None:
        there = "runs share the GPU through the multi-process service (MPS) that is already running"
        say(there if running else f"runs take turns on the GPU: {CONTROL} is not installed")
        yield {SHARED: "1"} if running else {}
        return
    with tempfile.TemporaryDirectory(prefix="achieve-mps-") as folder:
        added = dict.fromkeys((PIPES, LOGS), folder)
        # The service must see every GPU: a run's own CUDA_VISIBLE_DEVICES picks among those the service has.
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | added
        # In some containers it starts and does not serve, so it is tried.
        problem = _problem([control, "-d"], environment) or _problem(TRIAL, environment)
        if problem:
            say(f"runs take turns on the GPU: the multi-process service (MPS) does not work here ({problem})")
        else:
            say("runs share the GPU through a multi-process service (MPS) of their own")
        try:
            yield {} if problem else added | {SHARED: "1"}
        finally:
            # One that does not answer does no harm: it serves only those who know its folder.
            _problem([control], environment, "quit\n")


def _problem(command: list[str], environment: dict[str, str], text: str = "") -> str | None:
    """Run a command; return what went wrong."""
    # Output goes to a file, as the daemon would keep a pipe open and we would wait for its end.
    with tempfile.TemporaryFile("w+") as output:
        out: Any = {"stdout": output, "stderr": output, "env": environment, "timeout": 120}
        try:
            subprocess.run(command, input=text, text=True, check=True, **out)
        except (OSError, subprocess.SubprocessError) as error:
            output.seek(0)
            return (output.read().strip().splitlines() or [str(error)])[-1]
    return None
