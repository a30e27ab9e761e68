"""Errors for people: one sentence that names the value, what is accepted, and a way out.

The command line prints them without a traceback and exits with code 2. Whatever a file holds, reading it raises nothing
but these: `load_agent`, `train`, the config's `from_dict` and everything that reads a run folder keep to that.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path


def on_one_line(text: str) -> str:
    """Return the text with line breaks and control characters escaped, since it may quote a file."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the known names that resemble this one, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class AchieveError(Exception):
    """Base of every error whose message is written for the person at the keyboard."""


class ConfigError(AchieveError):
    """A setting that cannot work: an unknown preset, an impossible size, a missing device."""


class NoPicturesError(ConfigError):
    """An environment that neither shows images nor draws itself, where there is something to look at."""


class DivergedError(AchieveError):
    """Training that has become meaningless: gradients that are not finite."""


class RunFolderError(AchieveError):
    """A run folder or one of its files that cannot be used. The message stays on one line, whatever it quotes."""

    def __str__(self) -> str:
        return on_one_line(super().__str__())


class CheckpointError(RunFolderError):
    """A checkpoint that cannot be written or read."""


class UntrustedError(RunFolderError):
    """A file that names code to import, without the user's consent."""

    def __init__(self, source: str | Path, named: Sequence[str], env: str | None = None) -> None:
        self.flag = "--trust" if env is None else f"--env {shlex.quote(env)}"
        """What expresses trust on the command line."""
        by_name = "" if env is None else f"name that environment yourself ({self.flag}, or env={env!r} in Python), or "
        super().__init__(
            f"{source} names code that would be imported and run: {', '.join(named)}. To allow it, {by_name}say that "
            "you trust the file (--trust, or trust=True in Python)"
        )


class EpisodeLogError(RunFolderError):
    """An episode log that is missing or does not hold what it should."""


class EnvFailedError(AchieveError):
    """An environment that failed, with its own traceback; what was saved before is intact."""


class GPUFailedError(AchieveError):
    """A GPU with too little memory, or one that does not take a kernel; what was saved before is intact."""


class MissingExtraError(AchieveError):
    """An optional package that is not installed; the message names the extra to install."""
