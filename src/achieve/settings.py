"""Trees of dataclasses from plain values, and back: unknown names and wrong types are refused by name."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from achieve.errors import ConfigError


def plain(value: Any) -> Any:
    """The same tree with lists for tuples, as JSON has them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def build(cls: type, data: Any, where: str = "") -> Any:
    """The dataclass ``cls`` from a tree of plain values; ``where`` names the place in the tree, for errors."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'the config'} must be a table of settings, not {data!r}")
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise ConfigError(f"unknown setting {where}{name}; known here: {', '.join(sorted(known))}")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = build(typing.cast(type, hint), value, f"{where}{name}.")
        else:
            values[name] = _convert(hint, value, f"{where}{name}")
    return cls(**values)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise ConfigError(f"{where} is {value!r}; accepted: {', '.join(map(repr, typing.get_args(hint)))}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return _convert(inner, value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} is {value!r}; give a list of numbers")
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} is {value!r}; a value of type {hint.__name__} is needed")
    return value
