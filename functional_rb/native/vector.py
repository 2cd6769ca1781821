"""One node's children as a vector register: written in LLVM's own terms, because compilers keep this loop scalar."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from functional_rb.sum_tree import FANOUT, RESOLUTION

INTS = ir.VectorType(ir.IntType(32), FANOUT)
FLOATS = ir.VectorType(ir.FloatType(), FANOUT)


def _splat(builder: Any, scalar: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * FANOUT))


def _reduce(builder: Any, operation: str, vector: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [INTS])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{operation}.v{FANOUT}i32")
    return builder.call(reduce, [vector])


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _running_sums(builder: Any, vector: Any) -> Any:
    """Add the vector to itself shifted by 1, 2, 4, ... places, zeros coming in."""
    zeros = ir.Constant(INTS, [0] * FANOUT)
    shift = 1
    while shift < FANOUT:
        places = [FANOUT + i if i < shift else i - shift for i in range(FANOUT)]
        vector = builder.add(vector, builder.shuffle_vector(vector, zeros, ir.Constant(INTS, places)))
        shift *= 2
    return vector


@intrinsic
def pick_child(typingctx: Any, address: Any, unit: Any, draw: Any) -> Any:
    """Which of the FANOUT float32 at an address an integer draw picks: `sum_tree.as_integers` and the search.

    Args:
        typingctx: given by numba.
        address: of the children, aligned to 4 bytes.
        unit: the power of two that brings their sum into [1, 2), float32.
        draw: int32 in [0, 2^31).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        children = _load(builder, args[0], FLOATS)
        scale = _splat(builder, ir.Constant(ir.FloatType(), float(2**RESOLUTION)), FLOATS)
        scaled = builder.fmul(builder.fmul(children, _splat(builder, args[1], FLOATS)), scale)
        whole = builder.fptosi(scaled, INTS)
        positive = builder.zext(builder.fcmp_ordered(">", children, ir.Constant(FLOATS, [0.0] * FANOUT)), INTS)
        weights = builder.select(builder.icmp_signed(">", whole, positive), whole, positive)
        wide = ir.IntType(64)
        product = builder.mul(builder.zext(_reduce(builder, "add", weights), wide), builder.zext(args[2], wide))
        target = builder.trunc(builder.lshr(product, wide(31)), ir.IntType(32))
        passed = builder.icmp_signed("<=", _running_sums(builder, weights), _splat(builder, target, INTS))
        return builder.zext(_reduce(builder, "add", builder.zext(passed, INTS)), wide)

    return types.int64(types.int64, types.float32, types.int32), generate


@intrinsic
def add_up(typingctx: Any, address: Any) -> Any:
    """The sum of the FANOUT float32 at an address, in the order of `sum_tree.add_up`: halves onto halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums = _load(builder, args[0], FLOATS)
        half = FANOUT // 2
        while half:
            mask = ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(half)))
            upper = ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(half, 2 * half)))
            nothing = ir.Constant(sums.type, ir.Undefined)
            sums = builder.fadd(
                builder.shuffle_vector(sums, nothing, mask), builder.shuffle_vector(sums, nothing, upper)
            )
            half //= 2
        return builder.extract_element(sums, ir.IntType(32)(0))

    return types.float32(types.int64), generate


@intrinsic
def smallest(typingctx: Any, address: Any) -> Any:
    """The bits of the smallest positive of the FANOUT float32 at an address, 0 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Positive floats are ordered as their bits are; less one, zero is the largest of the unsigned.
        one = ir.Constant(INTS, [1] * FANOUT)
        least = _reduce(builder, "umin", builder.sub(_load(builder, args[0], INTS), one))
        return builder.add(least, ir.IntType(32)(1))

    return types.int32(types.int64), generate


@intrinsic
def largest(typingctx: Any, address: Any) -> Any:
    """The bits of the largest of the FANOUT float32 at an address, none of which is negative."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _reduce(builder, "smax", _load(builder, args[0], INTS))

    return types.int32(types.int64), generate
