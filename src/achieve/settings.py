"""Trees of dataclasses from plain values, and back: unknown names and wrong types are refused by name.

The plain values may come from a file that somebody else wrote. Whatever they are, :func:`build` returns a tree of the
promised types or raises :class:`ConfigError`: no other exception, and no value that could not be written back as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from achieve.errors import ConfigError

LARGEST = 2**63 - 1
"""The largest whole number a setting may have; PyTorch and NumPy count no further."""
LONGEST = 4096
"""Characters a text may have, and entries a list."""


def plain(value: Any) -> Any:
    """The same tree with lists for tuples, as JSON has them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON holds; a ValueError for anything else, however deep it is nested."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def build(cls: type, data: Any, where: str = "") -> Any:
    """The dataclass ``cls`` from a tree of plain values; ``where`` names the place in the tree, for errors."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the config'} must be a table of settings, not {shown(data)}")
    hints = _hints(cls)
    for name in data:
        if name not in hints:
            told = name if isinstance(name, str) and name.isidentifier() and len(name) < 100 else shown(name)
            raise ConfigError(f"unknown setting {where}{told}; known here: {', '.join(sorted(hints))}")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = build(typing.cast(type, hint), value, f"{where}{name}.")
        else:
            values[name] = _convert(hint, value, f"{where}{name}")
    return cls(**values)


def check_name(where: str, name: str) -> None:
    """Refuse what could lead elsewhere as part of a folder's name, or is no name at all."""
    if not re.fullmatch(r"\w[\w.+-]{0,99}", name):
        raise ConfigError(f"{where} is {shown(name)}; a name is needed, of letters, digits and . _ + - alone")


def shown(value: Any) -> str:
    """A value in a message: on one line, never long, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return "a huge number"
    try:
        return _SHORT.repr(value)
    except Exception:  # a class of someone's own, or a huge number somewhere inside
        return f"a {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is Literal:
        if not isinstance(value, str) or value not in typing.get_args(hint):
            raise ConfigError(f"{where} is {shown(value)}; accepted: {', '.join(map(repr, typing.get_args(hint)))}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return _convert(inner, value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} is {shown(value)}; give a list")
        if len(value) > LONGEST:
            raise ConfigError(f"{where} has {len(value):,} entries; at most {LONGEST:,} are possible")
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    if hint is float and type(value) is int and abs(value) <= LARGEST:
        return float(value)
    if type(value) is not hint:  # True is an int to Python, but not to whoever wrote it
        raise ConfigError(f"{where} is {shown(value)}; a value of type {hint.__name__} is needed")
    if hint is int and abs(value) > LARGEST:
        raise ConfigError(f"{where} is {shown(value)}; whole numbers go up to {LARGEST}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{where} is {value}; a finite number is needed")
    if hint is str and (len(value) > LONGEST or not value.isprintable()):
        raise ConfigError(f"{where} is {shown(value)}; a text of at most {LONGEST:,} printable characters is needed")
    return value
