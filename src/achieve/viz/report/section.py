"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from achieve.viz.report.table import Table


@dataclass(frozen=True)
class Picture:
    """A PNG with its caption; `name` is the stem of its file."""

    name: str
    caption: str
    data: bytes


@dataclass(frozen=True)
class Video:
    """An MP4 with its caption; `name` is the stem of its file."""

    name: str
    caption: str
    data: bytes


@dataclass(frozen=True)
class Section:
    """A part of the page under one heading."""

    key: str
    title: str
    about: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    videos: Sequence[Video] = ()
    commands: Sequence[str] = ()
    """What to type to get it, or more of it."""
    notes: Sequence[str] = ()
    folded: Sequence[tuple[str, str]] = ()
    """Long texts behind a title, opened by a click."""
    missing: str | None = None
    """Said in place of figures where nothing was run."""
    collapsed: bool = False
    """Whether it holds nothing of ours: it then stands at the end, and is opened by a click."""
