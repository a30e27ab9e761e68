"""What ``module:NAME`` names: environments and rules of the user's own, found and imported when they are needed."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any


class UnfitError(ValueError):
    """Something of the user's that cannot be used here; the message says why."""


class WorkerError(RuntimeError):
    """Code of the user's that failed while it ran, or its process; the message ends with its traceback."""


def import_named(name: str) -> Any:
    """What ``module:NAME`` names, or None where the module has nothing of that name.

    The current folder is searched for modules too, as with ``python -m``.
    """
    module_name, _, rest = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UnfitError(f"{module_name!r} is not the name of a module")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise UnfitError(f"Python does not find its module: {error}") from None
        # The module is there, but not something that it imports.
        raise failed(f"importing {module_name} failed", error) from error
    except (Exception, SystemExit) as error:
        raise failed(f"importing {module_name} failed", error) from error
    for part in rest.split("."):
        found = getattr(found, part, None)
    return found


def failed(what: str, error: BaseException) -> WorkerError:
    """An error of the user's code as one that says where it happened; for use while it is being handled."""
    return WorkerError(f"{what}: {error!r}\n\n{traceback.format_exc()}")
