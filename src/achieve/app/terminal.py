"""The game in a terminal: two pixels to a character, the same keys, the same log."""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
from PIL import Image

from achieve.app.sessions import Offer, Session
from achieve.errors import ConfigError
from achieve.scoring.episodes import title_case

PANEL = 34
"""Columns beside the picture, at least."""
SMALLEST = (62, 18)
ESCAPE = b"\x1b"
_SEQUENCES = {
    b"\x1b[A": "ArrowUp", b"\x1b[B": "ArrowDown", b"\x1b[C": "ArrowRight", b"\x1b[D": "ArrowLeft",
    b"\x1bOA": "ArrowUp", b"\x1bOB": "ArrowDown", b"\x1bOC": "ArrowRight", b"\x1bOD": "ArrowLeft",
    b"\x1b[5~": "PageUp", b"\x1b[6~": "PageDown",
}  # fmt: skip
_NAMED = {"\t": "Tab", "\r": "Enter", "\n": "Enter"}
_SHOWN = {" ": "Space", "ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓"}
DIM, BOLD, GREEN, RED, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[0m"


class Game:
    """What is known of the one game in the terminal."""

    def __init__(self) -> None:
        self.setup: dict[str, Any] = {}
        self.points: list[dict[str, Any]] = []
        self.lane: dict[str, Any] = {}
        self.playing = False
        self.note: Mapping[str, str] | None = None
        self.picture: np.ndarray | None = None

    def take(self, header: Mapping[str, Any], pictures: Sequence[bytes]) -> None:
        """Take in an update of a session."""
        self.setup = header.get("setup", self.setup)
        self.playing = header["playing"]
        self.note = header.get("note", self.note)
        if header["lanes"]:
            self.lane = header["lanes"][0]
            del self.points[self.lane["from"] :]
            self.points += self.lane["points"]
        if pictures:
            self.picture = np.asarray(Image.open(io.BytesIO(pictures[0])).convert("RGB"))

    @property
    def human(self) -> bool:
        return bool(self.lane) and self.lane["driver"] == "human"

    def command(self, key: str) -> dict[str, Any] | None:
        """Return what a key asks of the session; None for one that means nothing here."""
        if key in self.setup.get("keys", {}) and self.human:
            return {"do": "act", "action": self.setup["keys"][key]}
        at = self.lane.get("at", 0)
        others: dict[str, dict[str, Any]] = {
            "Enter": {"do": "pause" if self.playing else "play"},
            ".": {"do": "step"},
            ",": {"do": "seek", "to": max(0, at - 1)},
            "v": {"do": "new"},
            "+": {"do": "speed", "fps": 20.0},
            "-": {"do": "speed", "fps": 5.0},
        }
        if self.setup and self.setup["lanes"][0].get("agent"):
            others["x"] = {"do": "hand", "lane": 0, "to": "agent" if self.human else "human"}
        return others.get(key)

    def panel(self) -> Iterator[str]:
        """Yield the lines beside the picture."""
        now, lane = self.points[self.lane["at"]], self.lane
        about, names = self.setup["lanes"][0], self.setup["achievements"]
        who = {"human": "you play", "agent": f"{about.get('agent')} plays", "recording": "recording"}[lane["driver"]]
        action = "start" if now["a"] is None else self.setup["actions"][now["a"]].replace("_", " ")
        yield f"{BOLD}{self.setup['title']}{PLAIN}, world {self.setup['world']}"
        yield f"{who}{'' if self.playing else ', paused' if not self.human else ''}: {BOLD}{action}{PLAIN}"
        unlocked: dict[int, int] = {}
        for step, point in enumerate(self.points[: lane["at"] + 1]):
            for number in point.get("new", ()):
                unlocked.setdefault(number, step)
        yield f"step {lane['at']}  return {now['total']:.1f}  {len(unlocked)} of {len(names)}"
        if lane["has"]:
            yield ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in list(lane["has"].items())[:4])
            yield ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in list(lane["has"].items())[4:])
        if "p" in now:
            top = sorted(enumerate(now["p"]), key=lambda pair: -pair[1])[:3]
            likely = ", ".join(f"{self.setup['actions'][n].replace('_', ' ')} {100 * p:.0f}%" for n, p in top)
            yield f"{DIM}{likely}{PLAIN}"
            yield f"{DIM}value {now['v']:.2f}{self._after(now, about)}{PLAIN}"
        for number, name in enumerate(names):
            when = f" {unlocked[number]}" if number in unlocked else ""
            yield f"{f'{GREEN}●' if when else f'{DIM}○'} {title_case(name)}{when}{PLAIN}"
        if lane["over"]:
            yield f"{BOLD}the episode is over; V begins another{PLAIN}"

    def _after(self, now: Mapping[str, Any], about: Mapping[str, Any]) -> str:
        if not now.get("ahead"):
            return ""
        return f", after {about['head']['clusters'][int(np.argmax(now['ahead']))]['name'].replace('_', ' ')}"

    def keys(self) -> str:
        """Return the keys as one line."""
        first: dict[int, str] = {}
        for key, action in self.setup["keys"].items():
            first.setdefault(action, _SHOWN.get(key, key.upper() if len(key) == 1 else key))
        own = [f"{key} {self.setup['actions'][action].replace('_', ' ')}" for action, key in first.items()]
        hand = ["X take over, hand back"] if self.setup["lanes"][0].get("agent") else []
        others = ["Enter play or pause", ". step", ", back", *hand, "V new world", "Esc quit"]
        return ", ".join([*others, *(own if self.human else [])])


def half_blocks(picture: np.ndarray, columns: int, rows: int, truecolour: bool) -> list[str]:
    """Return a picture [H, W, 3] as lines of at most this many columns and rows, its proportions kept."""
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    size = max(1, int(width * scale)), max(2, int(height * scale) // 2 * 2)
    small = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    lines = []
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        cells, last = [], ""
        for above, below in zip(upper, lower, strict=True):
            colours = _colours(above, below, truecolour)
            cells.append(("" if colours == last else colours) + "▀")
            last = colours
        lines.append("".join(cells) + PLAIN)
    return lines


def _colours(above: Sequence[int], below: Sequence[int], truecolour: bool) -> str:
    if truecolour:
        return f"\x1b[38;2;{above[0]};{above[1]};{above[2]};48;2;{below[0]};{below[1]};{below[2]}m"
    front, back = (16 + 36 * round(c[0] / 51) + 6 * round(c[1] / 51) + round(c[2] / 51) for c in (above, below))
    return f"\x1b[38;5;{front};48;5;{back}m"


def read_keys(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent, by the names of `achieve.envs.keys`; ``Escape`` for that key alone."""
    keys = []
    while data:
        found = next((known for known in _SEQUENCES if data.startswith(known)), None)
        if found is not None:
            keys.append(_SEQUENCES[found])
            data = data[len(found) :]
        elif data.startswith(ESCAPE):
            if len(data) == 1:
                keys.append("Escape")
            data = b"" if len(data) > 1 else data[1:]  # some other key's sequence means nothing here
        else:
            letter = chr(data[0])
            keys.append(_NAMED.get(letter, letter.lower()))
            data = data[1:]
    return keys


def play_in_terminal(offer: Offer) -> None:
    """Play until Esc or Ctrl-C."""
    if len(offer.first) != 1:
        raise ConfigError("two side by side need the browser: leave out --terminal")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") in (None, "dumb"):
        raise ConfigError("this is not a terminal that can show a game; run it in one, or leave out --terminal")
    truecolour = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def wake(*_: object) -> None:
        with suppress(BlockingIOError):  # there is plenty to wake up for already
            os.write(writing, b".")

    game: Game = Game()
    shown: list[str] = []
    try:
        with closing(Session(offer, wake)) as session, _screen(), _resized(wake):
            session.submit({"do": "new"})
            while True:
                ready, _, _ = select.select([reading, sys.stdin.fileno()], [], [])
                if reading in ready:
                    os.read(reading, 4096)
                    update = session.collect()
                    if update is not None:
                        game.take(update.header, update.pictures)
                if sys.stdin.fileno() in ready:
                    for key in read_keys(os.read(sys.stdin.fileno(), 256)):
                        if key == "Escape":
                            return
                        command = game.command(key)
                        if command is not None:
                            game.note = None
                            session.submit(command)
                lines = screen(game, shutil.get_terminal_size(), truecolour)
                sys.stdout.write(changes(shown, lines))
                sys.stdout.flush()
                shown = lines
    except KeyboardInterrupt:
        return
    finally:
        os.close(reading)
        os.close(writing)


def changes(before: Sequence[str], now: Sequence[str]) -> str:
    """Return what makes a terminal show other lines than before: those alone that differ."""
    lines = [f"\x1b[{n};1H{line}\x1b[K" for n, line in enumerate(now, 1) if n > len(before) or before[n - 1] != line]
    return "".join(lines) + (f"\x1b[{len(now) + 1};1H\x1b[J" if len(now) < len(before) else "")


def screen(game: Game, size: os.terminal_size, truecolour: bool) -> list[str]:
    """Return the whole screen, line by line."""
    if size.columns < SMALLEST[0] or size.lines < SMALLEST[1]:
        need = f"the game needs {SMALLEST[0]} x {SMALLEST[1]} characters"
        return [f"{need}, this terminal has {size.columns} x {size.lines}"[: size.columns]]
    lines: list[str] = []
    if game.points and game.picture is not None:
        wrapped = _wrap(game.keys(), size.columns)
        if game.note is not None:
            colour = RED if game.note["level"] == "error" else GREEN
            wrapped = [f"{colour}{line}{PLAIN}" for line in _wrap(game.note["text"], size.columns)] + wrapped
        rows = size.lines - len(wrapped) - 1
        picture = half_blocks(game.picture, size.columns - PANEL - 2, rows, truecolour)
        panel = list(game.panel())
        if len(panel) > rows:  # what is unlocked matters more than what is not
            panel = [line for line in panel if "○" not in line][:rows]
        width = _width(picture[0])
        for n in range(max(len(picture), min(len(panel), rows))):
            left = picture[n] if n < len(picture) else " " * width
            lines.append(f"{left}  {_cut(panel[n], size.columns - width - 2) if n < len(panel) else ''}")
        lines += wrapped
    return lines[: size.lines]


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _width(line: str) -> int:
    return line.count("▀")


def _cut(line: str, width: int) -> str:
    """Shorten a line to this many visible characters."""
    out, seen, inside = [], 0, False
    for letter in line:
        if letter == "\x1b":
            inside = True
        if inside or seen < width:
            out.append(letter)
        if not inside:
            seen += 1
        elif letter == "m":
            inside = False
    return "".join(out)


@contextmanager
def _screen() -> Iterator[None]:
    """Take over the terminal, and give it back as it was, whatever happens."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        sys.stdout.flush()
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _resized(wake: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGWINCH, wake)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
