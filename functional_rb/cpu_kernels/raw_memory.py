"""Raw memory for compiled code: addresses as int64, because XLA hands out nothing else and torch's are cheap to get.

They are of memory that the caller of the kernel keeps alive. Compiled code never takes the address of an array itself:
numba frees an array after its last use, and knows nothing of what its address is used for later. What reaches into
arrays takes the array and a place in it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np import arrayobj

from functional_rb.cpu_kernels.cache import compiled

INT32, UINT8, FLOAT32 = np.int32(0), np.uint8(0), np.float32(0)
"""Examples of elements, by which a view gets its dtype."""


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes between addresses that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, start = builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer)
        cgutils.raw_memcpy(builder, to, start, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def inside(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """For intrinsics: the address so many bytes into a contiguous array, which they were given as an argument."""
    first = builder.ptrtoint(arrayobj.make_array(kind)(context, builder, array).data, ir.IntType(64))
    return builder.add(first, offset)


@intrinsic
def copy_into(typingctx: Any, array: Any, offset: Any, source: Any, count: Any) -> Any:
    """Copy bytes from an address to a place in an array, so many bytes from its beginning."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target = inside(context, builder, signature.args[0], args[0], args[1])
        cgutils.raw_memcpy(builder, builder.inttoptr(target, pointer), builder.inttoptr(args[2], pointer), args[3], 1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), generate


@intrinsic
def copy_out(typingctx: Any, target: Any, array: Any, offset: Any, count: Any) -> Any:
    """Copy bytes from a place in an array to an address, so many bytes from the array's beginning."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        source = inside(context, builder, signature.args[1], args[1], args[2])
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], pointer), builder.inttoptr(source, pointer), args[3], 1)
        return context.get_dummy_value()

    return types.void(types.int64, array, types.int64, types.int64), generate


@intrinsic
def fetch_ahead(typingctx: Any, array: Any, offset: Any) -> Any:
    """Let the processor begin to bring what lies so many bytes into an array, and go on meanwhile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.inttoptr(inside(context, builder, signature.args[0], args[0], args[1]), pointer)
        builder.call(prefetch, [place, word(1), word(3), word(1)])  # to be written, and kept; of data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _getter(width: int) -> Any:
    @intrinsic
    def get(typingctx: Any, array: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = inside(context, builder, signature.args[0], args[0], args[1])
            return builder.load(builder.inttoptr(source, ir.IntType(width).as_pointer()), align=1)

        return getattr(types, f"int{width}")(array, types.int64), generate

    return get


def _loader(width: int) -> Any:
    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], ir.IntType(width).as_pointer()), align=1)

        return getattr(types, f"int{width}")(types.int64), generate

    return load


def _storer(width: int) -> Any:
    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], builder.inttoptr(args[0], ir.IntType(width).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, getattr(types, f"int{width}")), generate

    return store


load_int64 = _loader(64)
load_int32 = _loader(32)
get_int32 = _getter(32)
"""So many bytes into an array."""
get_int8 = _getter(8)
store_int32 = _storer(32)
store_int8 = _storer(8)


@intrinsic
def pointer_to(typingctx: Any, address: Any, example: Any) -> Any:
    """An address as a typed pointer, for `numba.carray`; the type is that of a scalar example."""
    pointer = types.CPointer(example)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, example), generate


@intrinsic
def read_only(typingctx: Any, array: Any) -> Any:
    """An array as one that is only read, of the type of what Python hands over as such."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array.copy(readonly=True)(array), generate


@intrinsic
def float_of(typingctx: Any, bits: Any) -> Any:
    """The float32 of given bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@compiled
def bounded(place: Any, size: Any) -> Any:
    """A place among so many, the first for one outside: in an array that others may have made may be anything."""
    return np.int64(place) if 0 <= place < size else np.int64(0)


@compiled
def table(address: Any, example: Any, shape: Any) -> Any:
    """What lies at an address as an array of elements like a scalar, in a shape."""
    return numba.carray(pointer_to(address, example), shape)


@compiled
def ints(address: Any, size: Any) -> Any:
    """int32 [size] at an address, empty if that is 0."""
    return table(address, INT32, (size if address else 0,))


@compiled
def floats(address: Any, size: Any) -> Any:
    """float32 [size] at an address, empty if that is 0."""
    return table(address, FLOAT32, (size if address else 0,))


@compiled
def bools(address: Any, size: Any) -> Any:
    """Truth values as uint8 [size] at an address, empty if that is 0."""
    return table(address, UINT8, (size if address else 0,))
