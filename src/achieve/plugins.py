"""The user's own code, named in the config as ``module:name``."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from achieve.errors import ConfigError, did_you_mean

ENCODER_NAMES = ("residual", "strided", "spcnn", "tokens", "mlp")
TRAINER_NAMES = ("ppo", "qrdqn")
OBJECTIVE_NAMES = ("matching", "prediction")
"""What the package provides."""
SHOWN = 8
"""Names of a module that a message lists."""


def is_plugin(name: str) -> bool:
    """Return whether a setting names code: ``module:name``, both of them identifiers."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def import_here(module: str) -> ModuleType:
    """Import a module, which may also be in the current folder, as with ``python -m``."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    return import_module(module)


def source_digests(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the module of each ``module:name`` that was imported; of a package, of all its files.

    It tells whether that code has changed. What the module imports from elsewhere does not count.
    """
    digests = {}
    for name in names:
        source = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
        if source is None or not Path(source).is_file():
            continue
        path = Path(source)
        files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
        digests[name] = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return digests


def load(name: str, setting: str) -> Any:
    """Import what a setting names; raise ConfigError if it does not exist."""
    if not is_plugin(name):
        raise ConfigError(f"{setting} is {name!r}; name code of your own as module:name, such as my_module:MyClass")
    module, _, attribute = name.partition(":")
    try:
        found = import_here(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # a module that the user's own imports
        raise ConfigError(
            f"{setting} is {name!r}, but there is no module {error.name!r}; run from the folder it is in, or put that "
            "folder on PYTHONPATH"
        ) from None
    if not hasattr(found, attribute):
        there = [own for own, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__]
        hint = did_you_mean(attribute, there) or (f"; it defines {', '.join(there[:SHOWN])}" if there else "")
        raise ConfigError(f"{setting} is {name!r}, but {module} has no {attribute!r}{hint}")
    return getattr(found, attribute)


def load_class(name: str, setting: str, base: type) -> Any:
    """Import the class that a setting names, which must be a concrete subclass of ``base``."""
    found = load(name, setting)
    where = f"{base.__module__}.{base.__qualname__}"
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{setting} is {name!r}, which is not a subclass of {where}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise ConfigError(f"{setting} is {name!r}, which lacks {missing}; {where} says what each must do")
    return found
