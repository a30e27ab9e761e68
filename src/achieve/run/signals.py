"""Stopping on request: the first Ctrl-C or SIGTERM asks, the second one insists."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, by Ctrl-C or SIGTERM; the same command continues it."""


class StopRequest:
    """Within the block, a first SIGINT or SIGTERM sets `requested`, which the loop polls.

    A second one raises KeyboardInterrupt at once. The previous handlers are restored at the end of the block. Outside
    the main thread, where Python accepts no handlers, `requested` stays unset. The first signal writes ``note`` to
    stderr, as an acknowledgement.

        with StopRequest() as stop:
            while not stop.requested:
                ...
    """

    def __init__(self, note: str = "") -> None:
        self._note = note
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # None is a handler that was not installed from Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._note:
            # Not through Python's streams, which may be in the middle of a write.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self._note}\n".encode())
