"""How compiled code reaches memory that Python owns.

A world's size is not known when the game is compiled, so records hold the addresses of their larger parts. Passing a
rule one record, rather than a bundle of arrays, keeps calls cheap and compilation short. Addresses are only ever
written by Python code that owns what they point to.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types
from numba.core import cgutils
from numba.np.arrayobj import make_array, populate_array

intrinsic: Any = extending.intrinsic


@intrinsic
def record_at(typingctx: Any, address: Any, dtype: Any) -> Any:
    """Return the record of a dtype at an address."""
    record = dtype.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(record))

    return record(types.int64, dtype), codegen


@intrinsic
def address_of(typingctx: Any, record: Any) -> Any:
    """Return the address of a record."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(record), codegen


@intrinsic
def array_at(typingctx: Any, address: Any, dtype: Any, count: Any) -> Any:
    """Return the array of ``count`` values at an address."""
    array_type = types.Array(dtype.dtype, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = make_array(array_type)(context, builder)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(dtype.dtype)))
        populate_array(
            array,
            data=builder.inttoptr(args[0], array.data.type),
            shape=cgutils.pack_array(builder, [args[2]]),
            strides=cgutils.pack_array(builder, [itemsize]),
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.int64, dtype, types.int64), codegen


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes between addresses that do not overlap; a constant count compiles to plain moves."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, pointer) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _atomic(operation: str) -> Any:
    """Return an atomic read-modify-write of the int64 at an address, which returns the old value."""

    @intrinsic
    def change(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
            return builder.atomic_rmw(operation, pointer, args[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    return change


atomic_add = _atomic("add")
atomic_max = _atomic("max")
atomic_swap = _atomic("xchg")


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def spin_hint(typingctx: Any) -> Any:
    """Tell the processor that this is a waiting loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        machine = platform.machine().lower()
        if machine in ("x86_64", "amd64"):
            pause = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, pause, name), [])
        elif machine in ("aarch64", "arm64"):
            hint = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            name = "llvm.aarch64.hint"
            function = cgutils.get_or_insert_function(builder.module, hint, name)
            builder.call(function, [ir.Constant(ir.IntType(32), 1)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def yield_thread(typingctx: Any) -> Any:
    """Yield the processor to another thread, in case there are more threads than cores."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if os.name == "posix":
            yielding = ir.FunctionType(ir.IntType(32), [])
            function = cgutils.get_or_insert_function(builder.module, yielding, "sched_yield")
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen
