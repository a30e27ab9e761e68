"""Compiling the game in a process of its own, beside one that has other things to load first.

The process that needs the game finds it in the cache, or waits there until it is: see `cache`.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from achieve.processes import end_with_parent

from .sources import cache_folder, is_compiled


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Within the block the game is being compiled, unless it was before."""
    if cache_folder() is None or is_compiled():
        yield
        return
    # Colours of error messages that nobody sees take a twentieth of the time.
    environment = {**os.environ, "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1", "OMP_NUM_THREADS": "1"}
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def compile_game() -> None:
    """Compile all of the game as published, by playing a little of it."""
    import numpy as np

    from .batch import Batch, Config
    from .thread_pool import ThreadPool

    gc.disable()  # there is much to go through, and nothing to be freed before the end
    batch = Batch(Config.make((9, 9), (9, 9), (64, 64), True, 10000), 1, rules=None, autoreset=True)
    batch.seed([0])
    ThreadPool(batch).reset(np.zeros((1, *batch.config.image_shape), np.uint8))


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    compile_game()
