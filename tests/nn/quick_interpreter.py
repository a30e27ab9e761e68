"""Triton's interpreter without work that comes to nothing, which is half of what it does."""

from __future__ import annotations

import dataclasses
from typing import Any

from triton.runtime import interpreter


def hasten() -> None:
    """Leaves out checks for overflow, whose result it only looks at when debugging, and looks up `tl` once a launch.

    By itself it goes through all of `triton.language` each time a kernel calls a function.
    """
    builder: Any = interpreter.interpreter_builder
    if not builder.options.debug and getattr(builder.options, "sanitize_overflow", False):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    patch, launch = interpreter._patch_builtin, interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def patch_once(package: Any, *rest: Any) -> None:
        if id(package) not in patched:
            patched.add(id(package))
            patch(package, *rest)

    def launch_anew(executor: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()  # a launch takes back at its end what it has patched
        launch(executor, *args, **kwargs)

    interpreter._patch_builtin = patch_once
    interpreter.GridExecutor.__call__ = launch_anew
