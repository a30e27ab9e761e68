"""Type hints as the one description of what is read from files: configs, checkpoints, summaries.

Any file may have been written by somebody else. Whatever it holds, :func:`convert` returns a value of the promised type
or raises :class:`UnfitError`, a sentence that names the place. ``Annotated`` gives a hint its bounds, and a dictionary
of hints describes a JSON object:

    convert({"step": NonNegativeInt, "ages": Annotated[list[int], Range(8, 8)]}, json.loads(text))
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
from dataclasses import dataclass
from typing import Annotated, Any, Literal

LARGEST = 2**63 - 1
"""The largest integer a setting may have; PyTorch and NumPy count no further."""
LONGEST = 4096
"""The most characters of a text, and the most entries of a tuple."""


class UnfitError(ValueError):
    """A value that does not belong where it was found."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number, or of the length of a list. With ``above``, ``low`` itself is excluded."""

    low: float
    high: float = math.inf
    above: bool = False

    def check(self, value: Any, where: str) -> None:
        """Raise UnfitError for a value outside."""
        is_list = isinstance(value, list)
        amount = len(value) if is_list else value
        if not self.low <= amount <= self.high or (self.above and amount == self.low):
            subject = f"{where} has {amount} entries" if is_list else f"{where} is {shown(value)}"
            raise UnfitError(f"{subject}; it must {self._words('have' if is_list else 'be')}")

    def _words(self, verb: str) -> str:
        if self.above:
            return f"{verb} above {self.low:g}"
        if self.high == math.inf:
            return f"{verb} {self.low:g} or more"
        return f"{verb} {self.low:g}" if self.low == self.high else f"lie between {self.low:g} and {self.high:g}"


PositiveInt = Annotated[int, Range(0, above=True)]
PositiveFloat = Annotated[float, Range(0, above=True)]
NonNegativeInt = Annotated[int, Range(0)]
NonNegativeFloat = Annotated[float, Range(0)]
UnitFloat = Annotated[float, Range(0, 1)]


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text holds; raise ValueError for anything else, however deeply nested."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_name(where: str, name: str) -> None:
    """Raise UnfitError for a name that could lead elsewhere as part of a folder's name."""
    if not re.fullmatch(r"\w[\w.+-]{0,99}", name):
        raise UnfitError(f"{where} is {shown(name)}; a name consists of letters, digits and . _ + - alone")


def shown(value: Any) -> str:
    """Return a value for a message: on one line, and short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return "a huge number"
    try:
        return _SHORT.repr(value)
    except Exception:  # a class with a broken __repr__, or a huge number inside
        return f"a {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def convert(hint: Any, value: Any, where: str = "") -> Any:
    """Return the value in the type that the hint names; raise UnfitError where it does not fit.

    Lists become tuples where the hint is a tuple. A dataclass refuses unknown names and fills in its defaults; a
    dictionary of hints ignores unknown names and needs all of its own.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if isinstance(hint, Mapping) or dataclasses.is_dataclass(hint):
        return _object(hint, value, where)
    if origin is Annotated:
        converted = convert(arguments[0], value, where)
        for bounds in arguments[1:]:
            bounds.check(converted, where)
        return converted
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise UnfitError(f"{where} is {shown(value)}; accepted: {', '.join(map(repr, arguments))}")
        return value
    if origin in (typing.Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else convert(inner, value, where)
    if origin is dict:
        _check_object(value, where)
        return {name: convert(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    if origin in (tuple, list):
        return _sequence(origin, arguments, value, where)
    return _scalar(hint, value, where)


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise UnfitError(f"{where or 'the config'} must be a table of settings, not {shown(value)}")


def _object(hint: Any, value: Any, where: str) -> Any:
    _check_object(value, where)
    prefix = f"{where}." if where else ""
    hints = hint if isinstance(hint, Mapping) else _hints(hint)
    if hint is not hints and (unknown := [name for name in value if name not in hints]):
        name = unknown[0] if isinstance(unknown[0], str) and unknown[0].isidentifier() else shown(unknown[0])
        raise UnfitError(f"unknown setting {prefix}{name[:100]}; known here: {', '.join(sorted(hints))}")
    if hint is hints and (missing := [name for name in hints if name not in value]):
        raise UnfitError(f"{prefix}{missing[0]} is missing")
    converted = {name: convert(hints[name], value[name], f"{prefix}{name}") for name in hints if name in value}
    return converted if hint is hints else hint(**converted)


def _sequence(kind: type, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise UnfitError(f"{where} is {shown(value)}; give a list")
    if kind is tuple and len(value) > LONGEST:
        raise UnfitError(f"{where} has {len(value):,} entries; at most {LONGEST:,} are possible")
    return kind(convert(arguments[0], item, where) for item in value)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and type(value) is int and abs(value) <= LARGEST:
        return float(value)
    # True is an int to Python, but not to whoever wrote it.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UnfitError(f"{where} is {shown(value)}; a value of type {hint.__name__} is needed")
    if hint is int and abs(value) > LARGEST:
        raise UnfitError(f"{where} is {shown(value)}; integers go up to {LARGEST}")
    if hint is float and not math.isfinite(value):
        raise UnfitError(f"{where} is {value}; a finite number is needed")
    if hint is str and (len(value) > LONGEST or not value.isprintable()):
        raise UnfitError(f"{where} is {shown(value)}; a text of at most {LONGEST:,} printable characters is needed")
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}
