"""What runs in a worker process: one group of environments, told what to do over a socket.

The process is a fresh Python rather than a fork or a copy of the caller's main module: it holds no CUDA, no threads
and no PyTorch, and a script needs no guard around its last lines.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from achieve.processes import end_with_parent

from ..names import WorkerError
from .group import Board, Group
from .world import blamed

START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from achieve.envs.gym.worker import main; main()"
"""Run with ``python -c``, the caller's path, the numbers of the socket and of the shared memory's file, and
whether the process ends with the thread that started it."""


def main() -> None:
    """Serves until the other end is closed."""
    _leave_stopping_to_the_caller()
    if int(sys.argv[4]):
        end_with_parent(signal.SIGKILL)  # an environment that hangs would never notice the closed connection
    connection, memory = Connection(int(sys.argv[2])), int(sys.argv[3])
    group: Group | None = None
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            job, members = connection.recv()
            group = Group(job, Board(job, mmap.mmap(memory, Board.size(job))), members)
            answer: Any = None
            while True:
                with blamed(f"sending the infos of the world {job.name}"):
                    connection.send((True, answer))
                command, *arguments = connection.recv()
                answer = getattr(group, command)(*arguments)
        except WorkerError as error:
            connection.send((False, str(error)))
    if group is not None:
        group.close()


def _leave_stopping_to_the_caller() -> None:
    """Ctrl-C and a scheduler's SIGTERM reach every process of a run; the caller decides when it is over.

    It then closes the connection; so does the system when the caller is gone.
    """
    me = os.getpid()

    def handle(number: int, frame: Any) -> None:
        # Programs that an environment starts do not inherit a handler, but processes that it forks do.
        if os.getpid() != me:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
