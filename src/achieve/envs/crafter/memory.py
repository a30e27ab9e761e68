"""How compiled code reaches memory that Python owns.

A world's size is not known when the game is compiled, so records hold the addresses of their larger
parts. Handing a rule one record, rather than a bundle of arrays, keeps calls cheap and compilation
short. Addresses are only ever written by `Batch`, which owns what they point to.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


@intrinsic
def record_at(typingctx: Any, address: Any, dtype: Any) -> Any:
    """The record of a dtype at an address."""
    record = dtype.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(record))

    return record(types.int64, dtype), codegen


@intrinsic
def array_at(typingctx: Any, address: Any, dtype: Any, count: Any) -> Any:
    """The array of ``count`` values at an address."""
    array_type = types.Array(dtype.dtype, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = make_array(array_type)(context, builder)
        itemsize = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(dtype.dtype))
        )
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
    """Copies bytes between addresses that do not overlap; a constant count becomes plain moves."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(args[0], pointer),
            builder.inttoptr(args[1], pointer),
            args[2],
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
