"""Functions that only compiled code calls: they never become machine code of their own.

Numba optimises every function and turns it into machine code. These are linked into the entry points as well, which are
optimised as a whole, so all of that would be thrown away. Without it compiling takes two thirds of the time.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _Library(JITCodeLibrary):
    """One function as intermediate code, for others to link in."""

    def _optimize_final_module(self) -> None:
        """Leaves that to what it is linked into."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0  # Numba's word for "not defined here"

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Does nothing: Python objects, which an environment holds, are of no use without reference counting."""


class _Compiler(Compiler):
    def compile_extra(self, func: Any) -> Any:
        self.state.library = _Library(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


def compile_internal(function: Any, options: dict[str, Any]) -> Any:
    """Return a dispatcher for ``function``, which only other compiled functions may call."""
    options = {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _Compiler}
    dispatcher: Any = numba.njit(**options)(function)
    plain = dispatcher.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        # Else f(1) and f(2) would be compiled apart. What constants allow, LLVM does after inlining.
        return plain(tuple(types.unliteral(a) for a in args), {k: types.unliteral(v) for k, v in kws.items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher
