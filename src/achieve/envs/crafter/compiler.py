"""Compile the game, modified or not, and keep the machine code between runs.

The game's modules are plain Python. A `Program` gives every function in them a compiled twin whose references point at
the other twins, so replacing a rule changes it everywhere it is used, and a modified game is compiled exactly like the
original.
"""

from __future__ import annotations

import hashlib
import importlib
import types
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numba
import numpy as np

from ..arrays import short
from ..names import UnfitError, import_named
from . import cache
from .internal import compile_internal
from .sources import MODULES, rules_fingerprint

# Without reference counting (`_nrt`), compiled code cannot allocate; all memory comes from Python.
# The "numpy" error model only concerns division by zero, which no rule does.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
ENTRY_POINTS = ("advance", "build_terrain")


def _functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
    }


@lru_cache(maxsize=1)
def _source_modules() -> tuple[types.ModuleType, ...]:
    return tuple(importlib.import_module(f"{__package__}.{name}") for name in MODULES)


class Program:
    """The compiled game. ``changes`` maps a rule's name to its replacement.

    A replacement is a Python function with the rule's parameters, or a new value for one of the constants in capitals.
    Use `achieve.envs.crafter.mod` rather than this class. With ``callable``, every single rule can be called from
    Python, which takes longer to compile: for tests and experiments.
    """

    def __init__(
        self, name: str = "crafter", changes: dict[str, Any] | None = None, *, callable: bool = False
    ) -> None:
        self.name = name
        self.callable = callable
        self.changes = dict(changes or {})
        _check_changes(self.changes)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the rules: equal for equal sources, in any process."""
        return rules_fingerprint(self.changes_fingerprint)

    @cached_property
    def changes_fingerprint(self) -> str:
        """Identifies the changes alone, whatever the version of the other rules."""
        digest = hashlib.sha256()
        for name in sorted(self.changes):
            digest.update(name.encode())
            _fingerprint_value(self.changes[name], digest, set())
        return digest.hexdigest()

    @property
    def identity(self) -> str:
        """What saved states record: the name, and for a modified game also the changes."""
        return f"{self.name} ({self.changes_fingerprint[:16]})" if self.changes else self.name

    @cached_property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Every function of the game, compiled (lazily, at its first call)."""
        rules = {name: f for module in _source_modules() for name, f in _functions(module).items()}
        constants = {name: v for name, v in self.changes.items() if name not in rules}
        replaced = {name: f for name, f in self.changes.items() if name in rules}
        compiled: dict[int, Any] = {}
        namespaces: dict[str, dict[str, Any]] = {}

        def compile_twin(source: types.FunctionType, name: str, module: str) -> Any:
            namespace = {**source.__globals__}
            twin = types.FunctionType(source.__code__, namespace, name, source.__defaults__)
            twin.__module__ = module
            twin.__qualname__ = name
            namespaces[name] = namespace
            if not self.callable and name not in ENTRY_POINTS:
                return compile_internal(twin, OPTIONS)
            dispatcher = numba.njit(**OPTIONS)(twin)
            if name in ENTRY_POINTS:
                cache.attach(dispatcher, twin, self.fingerprint)
            return dispatcher

        named = {}
        for name, rule in rules.items():
            named[name] = compile_twin(replaced.get(name, rule), name, rule.__module__)
            compiled[id(rule)] = named[name]
        for i, helper in enumerate(_helpers(replaced, rules)):
            compiled[id(helper)] = compile_twin(helper, f"helper_{i}", helper.__module__)
        # A replacement that calls the rule it replaces means the original.
        super_rules = {
            name: compile_twin(rules[name], f"original_{name}", rules[name].__module__) for name in replaced
        }
        for name, namespace in namespaces.items():
            own = id(rules[name]) if name in replaced else None
            for key, value in namespace.items():
                if key in constants:
                    namespace[key] = constants[key]
                elif isinstance(value, types.FunctionType) and id(value) in compiled:
                    namespace[key] = super_rules[name] if id(value) == own else compiled[id(value)]
        return named

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ENTRY_POINTS:
            return self.functions[name]
        raise AttributeError(name)


_VALUES = (bool, int, float, str, tuple, np.generic, np.ndarray)
"""Types of the constants that compiled code uses."""


def _check_changes(changes: dict[str, Any]) -> None:
    functions: dict[str, types.FunctionType] = {}
    constants: set[str] = set()
    for module in _source_modules():
        functions.update(_functions(module))
        constants.update(name for name in vars(module) if name.isupper())
    for name, value in changes.items():
        if name in functions:
            wanted = functions[name].__code__.co_varnames[: functions[name].__code__.co_argcount]
            if not isinstance(value, types.FunctionType):
                raise TypeError(f"rule {name!r} needs a Python function, got {value!r}")
            if value.__closure__:
                raise TypeError(
                    f"the replacement of rule {name!r} uses {', '.join(value.__code__.co_freevars)} of the function "
                    "around it; define it at the top of a module"
                )
            if value.__code__.co_argcount != len(wanted):
                raise TypeError(
                    f"rule {name!r} takes the parameters ({', '.join(wanted)}), "
                    f"the replacement takes {value.__code__.co_argcount}"
                )
        elif name not in constants:
            raise ValueError(f"there is no rule or constant named {name!r}; see the modules in {__package__}")
        elif not isinstance(value, _VALUES):
            raise TypeError(f"the constant {name} needs a number, a tuple or an array, got {value!r}")


def _helpers(changes: dict[str, Any], originals: dict[str, types.FunctionType]) -> list[types.FunctionType]:
    """Return the user's own functions that replacements call, directly or through one another."""
    known = {id(f) for f in originals.values()} | {id(f) for f in changes.values()}
    found: list[types.FunctionType] = []
    queue = [f for f in changes.values() if isinstance(f, types.FunctionType)]
    while queue:
        function = queue.pop()
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType) and id(value) not in known:
                known.add(id(value))
                found.append(value)
                queue.append(value)
    return found


def _fingerprint_value(value: Any, digest: Any, seen: set[int]) -> None:
    if isinstance(value, types.FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        if value.__module__.startswith(f"{__package__}."):
            digest.update(value.__qualname__.encode())  # its source is in the fingerprint of the sources
            return
        digest.update(repr(value.__defaults__).encode())
        _fingerprint_code(value.__code__, value.__globals__, digest, seen)
    elif isinstance(value, np.ndarray):
        digest.update(repr((value.shape, value.dtype)).encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, _VALUES):
        digest.update(repr(value).encode())


def _fingerprint_code(code: types.CodeType, names: dict[str, Any], digest: Any, seen: set[int]) -> None:
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _fingerprint_code(constant, names, digest, seen)
        else:
            digest.update(repr(constant).encode())
    for name in code.co_names:
        if name in names:
            _fingerprint_value(names[name], digest, seen)


def mod(name: str, **changes: Any) -> Program:
    """Return a modified game, for the ``rules`` argument of the environments.

    Args:
        name: what to call it; recorded in saved states.
        changes: for a rule (any function in the game's modules) the Python function that replaces it; for a constant in
            capitals its new value.
    """
    if name == "crafter":
        raise ValueError("a modified game needs a name of its own, not 'crafter'")
    return Program(name, changes)


@lru_cache(maxsize=1)
def original() -> Program:
    """Return Crafter as published."""
    return Program()


def find_rules(rules: Program | str | None) -> Program:
    """Return the game that an argument ``rules`` means: as published, as given, or found as ``module:NAME``."""
    if rules is None:
        return original()
    found = rules
    if isinstance(rules, str):
        try:
            if ":" not in rules:
                raise UnfitError("give module:NAME, such as my_rules:RULES")
            found = import_named(rules)
        except UnfitError as error:
            raise ValueError(f"rules={rules} cannot be used: {error}") from None
        if found is None:
            module, _, name = rules.partition(":")
            raise ValueError(f"rules={rules} cannot be used: the module {module} has no {name!r}")
    if not isinstance(found, Program):
        kind = type(found).__name__
        raise ValueError(f"rules={short(rules)} is of type {kind}; make rules with achieve.envs.crafter.mod")
    return found
