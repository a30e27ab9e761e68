"""Import what ``module:NAME`` names: the user's own environments and rules."""

from __future__ import annotations

import traceback
from typing import Any

from achieve.plugins import import_here


class UnfitError(ValueError):
    """Code of the user's that does not fit; the message says why."""


class WorkerError(RuntimeError):
    """Code of the user's that failed, or its process; the message ends with its traceback."""


def import_named(name: str) -> Any:
    """Return what ``module:NAME`` names, or None where the module has nothing of that name."""
    module_name, _, rest = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UnfitError(f"{module_name!r} is not the name of a module")
    try:
        found: Any = import_here(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise UnfitError(
                f"Python does not find its module: {error}; run this in the folder that holds it, or install it"
            ) from None
        # The module is there, but not something that it imports.
        raise failed(f"importing {module_name} failed", error) from error
    except (Exception, SystemExit) as error:
        raise failed(f"importing {module_name} failed", error) from error
    for part in rest.split("."):
        found = getattr(found, part, None)
    return found


def failed(what: str, error: BaseException) -> WorkerError:
    """Return an error in the user's code as one that says where it happened; call it while handling that error."""
    return WorkerError(f"{what}: {error!r}\n\n{traceback.format_exc()}")
