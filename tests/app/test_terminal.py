"""The game in a terminal: a real one, with keys typed into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from achieve.app.terminal import Game, changes, half_blocks, read_keys, screen
from achieve.cli import main
from achieve.scoring.episodes import load_episodes

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`achieve play --terminal` in a terminal of its own."""

    def __init__(self, folder: Path, *flags: str, columns: int = 120, lines: int = 40) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        command = [sys.executable, "-m", "achieve", "play", "--terminal", "--folder", str(folder), *flags]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str) -> None:
        """Wait until a text is shown, after whatever was waited for before."""
        deadline = time.monotonic() + 120
        while True:
            if text in self.shown:
                self.shown = self.shown.partition(text)[2]
                return
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.shown[-2000:]!r}"
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if ready:
                try:
                    data = os.read(self._master, 65536)
                except OSError:  # it has ended
                    data = b""
                assert data or text in self.shown, f"it ended without {text!r}: {self.shown[-2000:]!r}"
                self.shown += ANSI.sub("", data.decode(errors="replace"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path / "runs", "--options", "length=4", "--world", "6")
    yield made
    made.close()


def test_a_game_is_played_logged_and_left(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("Crafter, world 6")
    terminal.type(b" ")
    terminal.wait_for("Collect sapling 1")
    terminal.type(b"p")
    terminal.wait_for("Place plant 2")
    terminal.type(b"\x1b[D")
    terminal.wait_for("move left")
    terminal.type(b"\t")
    terminal.wait_for("Episode 1 is logged")
    assert load_episodes(tmp_path / "runs" / "human-crafter").length.tolist() == [4]
    terminal.type(b"\x1b")
    assert terminal.process.wait(60) == 0


def test_where_there_is_no_terminal_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--terminal"]) == 2
    assert "not a terminal" in capsys.readouterr().err
    assert main(["play", "you", "pretrained", "--terminal"]) == 2
    assert "side by side" in capsys.readouterr().err


def test_keys() -> None:
    assert read_keys(b"wA \t\r") == ["w", "a", " ", "Tab", "Enter"]
    assert read_keys(b"\x1b[A\x1b[D\x1bOC\x1b[5~") == ["ArrowUp", "ArrowLeft", "ArrowRight", "PageUp"]
    assert read_keys(b"\x1b") == ["Escape"]
    assert read_keys(b"\x1b[15~") == []


def test_picture_keeps_its_colours_and_proportions() -> None:
    picture = np.zeros((4, 8, 3), np.uint8)
    picture[0] = (255, 0, 0)
    picture[1] = (0, 0, 255)
    lines = half_blocks(picture, 8, 10, True)
    assert len(lines) == 2 and lines[0].count("▀") == 8
    assert lines[0].startswith("\x1b[38;2;255;0;0;48;2;0;0;255m▀▀")
    assert half_blocks(picture, 8, 10, False)[0].startswith("\x1b[38;5;196;48;5;21m▀▀")
    assert len(half_blocks(np.zeros((100, 100, 3), np.uint8), 30, 100, True)) == 15


def test_only_lines_that_differ_are_sent() -> None:
    assert changes([], ["a", "b"]) == "\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K"
    assert changes(["a", "b"], ["a", "c"]) == "\x1b[2;1Hc\x1b[K"
    assert changes(["a", "b"], ["a"]) == "\x1b[2;1H\x1b[J"
    assert changes(["a"], ["a"]) == ""


def test_small_terminal_is_told_how_large_it_must_be() -> None:
    (line,) = screen(Game(), os.terminal_size((61, 30)), True)
    assert line == "the game needs 62 x 18 characters, this terminal has 61 x 30"
