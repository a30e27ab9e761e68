"""What values read from a file must look like: small checks that are put together, each of which says what is wrong.

    check = table({"step": whole(), "lengths": items(whole(1), 8)})
    check(json.loads(text), "state")  # raises UnfitError: state.step is 'x', not a whole number from 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
"""Takes a value and where it was found; raises UnfitError."""


class UnfitError(ValueError):
    """A value that is not what belongs there; what it quotes of a file stays on one line."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


def _refuse(value: Any, where: str, wanted: str) -> None:
    shown = repr(value)
    raise UnfitError(f"{where} is {shown if len(shown) < 40 else shown[:36] + ' ...'}, not {wanted}")


def anything(value: Any, where: str) -> None:
    """No check at all."""


def whole(low: int = 0, high: int = 2**63 - 1) -> Check:
    """A whole number from ``low`` to ``high``."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            _refuse(value, where, f"a whole number from {low}" + (f" to {high}" if high < 2**63 - 1 else ""))

    return check


def number(low: float = -math.inf) -> Check:
    """A finite number of at least ``low``."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not (low <= value and abs(value) < 1e300):
            _refuse(value, where, "a number" if low == -math.inf else f"a number from {low:g}")

    return check


def boolean(value: Any, where: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        _refuse(value, where, "true or false")


def text(value: Any, where: str) -> None:
    """A piece of text."""
    if not isinstance(value, str):
        _refuse(value, where, "text")


def one_of(*choices: str) -> Check:
    """One of these words."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in choices:
            _refuse(value, where, " or ".join(choices))

    return check


def maybe(inner: Check) -> Check:
    """Null, or what the inner check wants."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def items(each: Check, count: int | None = None, most: int | None = None) -> Check:
    """A list of such values, of that length or of at most that length where one is given."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list):
            _refuse(value, where, "a list")
        if (count is not None and len(value) != count) or (most is not None and len(value) > most):
            raise UnfitError(f"{where} has {len(value)} entries, not {count if count is not None else f'up to {most}'}")
        for index, item in enumerate(value):
            each(item, f"{where}[{index}]")

    return check


def table(fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """A table with these entries, and perhaps the optional ones; others are not looked at."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, where, "a table")
        prefix = f"{where}." if where else ""
        for name, inner in fields.items():
            if name not in value:
                raise UnfitError(f"{prefix}{name} is missing")
            inner(value[name], f"{prefix}{name}")
        for name, inner in (optional or {}).items():
            if name in value:
                inner(value[name], f"{prefix}{name}")

    return check


def each_value(inner: Check) -> Check:
    """A table of any names whose values are all such."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, where, "a table")
        for name, item in value.items():
            inner(item, f"{where}.{name}")

    return check
