"""How compiled code reaches memory that Python owns.

A world's size is not known when the game is compiled, so records hold the addresses of their larger parts. Passing a
rule one record, rather than a bundle of arrays, keeps calls cheap and compilation short. Addresses are only ever
written by Python code that owns what they point to.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from llvmlite import ir
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


@intrinsic
def sum_of_lanes(
    typingctx: Any, gradients: Any, weights: Any, vertices: Any, rows: Any, corners: Any, divisor: Any, target: Any
) -> Any:
    """Compute the noise of four cells side by side: see `terrain.shape_column`, which says what is where.

    All but three are addresses. Numba leaves the loop in scalar instructions, hence this.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        gradients, weights, vertices, rows, corners, divisor, target = args
        word, lanes = ir.IntType(64), ir.VectorType(ir.DoubleType(), 4)

        def plus(value: Any, count: int, factor: Any) -> Any:
            return builder.add(value, builder.mul(ir.Constant(word, count), factor))

        def load(address: Any, kind: Any, align: int) -> Any:
            loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
            loaded.align = align
            return loaded

        def shuffle(first: Any, second: Any, *places: int) -> Any:
            mask = ir.Constant(ir.VectorType(ir.IntType(32), 4), list(places))
            return builder.shuffle_vector(first, second, mask)

        total = cgutils.alloca_once_value(builder, ir.Constant(lanes, [0.0] * 4))
        with cgutils.for_range(builder, corners, intp=word) as loop:
            row = builder.mul(loop.index, rows)
            at = plus(weights, 32, row)
            fade, dx, dy, dz = (load(plus(at, 8 * part, rows), lanes, 8) for part in range(4))
            numbers = load(plus(vertices, 2, row), ir.VectorType(ir.IntType(16), 4), 2)
            numbers = builder.zext(numbers, ir.VectorType(word, 4))
            a, b, c, d = (
                load(plus(gradients, 32, builder.extract_element(numbers, ir.Constant(ir.IntType(32), lane))), lanes, 8)
                for lane in range(4)
            )
            # Four gradients of (x, y, z, nothing) become all x, all y and all z.
            even_ab, even_cd = shuffle(a, b, 0, 4, 2, 6), shuffle(c, d, 0, 4, 2, 6)
            odd_ab, odd_cd = shuffle(a, b, 1, 5, 3, 7), shuffle(c, d, 1, 5, 3, 7)
            x, z = shuffle(even_ab, even_cd, 0, 1, 4, 5), shuffle(even_ab, even_cd, 2, 3, 6, 7)
            y = shuffle(odd_ab, odd_cd, 0, 1, 4, 5)
            product = builder.fadd(builder.fmul(x, dx), builder.fmul(y, dy))
            product = builder.fadd(product, builder.fmul(z, dz))
            builder.store(builder.fadd(builder.load(total), builder.fmul(fade, product)), total)
        by = builder.insert_element(ir.Constant(lanes, ir.Undefined), divisor, ir.Constant(ir.IntType(32), 0))
        mean = builder.fdiv(builder.load(total), shuffle(by, by, 0, 0, 0, 0))
        stored = builder.store(mean, builder.inttoptr(target, lanes.as_pointer()))
        stored.align = 8
        return context.get_dummy_value()

    addresses = (types.int64,) * 5
    return types.void(*addresses, types.float64, types.int64), codegen


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
