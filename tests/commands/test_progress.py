"""What commands show of long work: lines in a pipe, a bar on a terminal."""

from __future__ import annotations

import io
import threading
import time

from rich.console import Console

from achieve.commands.progress import showing


class Output(io.StringIO):
    """Sets ``written`` when a whole line has come."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if "\n" in text:
            self.written.set()
        return count


def test_line_now_and_then_in_a_pipe() -> None:
    """Also while the work itself says nothing new."""
    out = Output()
    with showing(Console(file=out, force_terminal=False, width=20), interval=0.01) as show:
        show("expert [1] playing", 0.5)
        assert out.written.wait(60)
        show("clustering")
        out.written.clear()
        assert out.written.wait(60)
    lines = out.getvalue().splitlines()
    assert lines[0] == "expert [1] playing, 50% (0 s)" and lines[-1] == "clustering (0 s)"


def test_no_line_before_it_is_known_what_is_done() -> None:
    out = Output()
    with showing(Console(file=out, force_terminal=False, width=20), interval=0.01) as show:
        assert not out.written.wait(0.2)
        show("playing", 0.0)
        assert out.written.wait(60)
    assert out.getvalue().splitlines()[0].startswith("playing, 0%")


def test_nothing_of_short_work_in_a_pipe() -> None:
    out = Output()
    with showing(Console(file=out, force_terminal=False)) as show:
        show("playing", 1.0)
    assert out.getvalue() == ""


def test_bar_on_a_terminal_is_gone_in_the_end() -> None:
    out = Output()
    console = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with showing(console) as show:
        show("expert [1] playing", 0.25)
        deadline = time.monotonic() + 60
        while "25%" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        show("clustering")
    shown = out.getvalue()
    assert "expert [1] playing" in shown and "25%" in shown
    assert shown.rstrip("\n").endswith("\x1b[2K"), "its line is erased"
