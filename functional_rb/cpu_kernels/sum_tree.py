"""One node's children as a vector register: written in LLVM's own terms, because compilers keep this loop scalar."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from functional_rb.cpu_kernels.raw_memory import inside
from functional_rb.structures.sum_tree import FANOUT, RESOLUTION

INTS = ir.VectorType(ir.IntType(32), FANOUT)
FLOATS = ir.VectorType(ir.FloatType(), FANOUT)


def _splat(builder: Any, scalar: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * FANOUT))


def _reduce(builder: Any, operation: str, vector: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [INTS])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{operation}.v{FANOUT}i32")
    return builder.call(reduce, [vector])


def _load(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    """The row of a tree, which are the first two arguments."""
    offset = builder.mul(args[1], ir.IntType(64)(4 * FANOUT))
    address = inside(context, builder, signature.args[0], args[0], offset)
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
def pick_child(typingctx: Any, tree: Any, row: Any, unit: Any, draw: Any) -> Any:
    """Which of the FANOUT float32 in a row an integer draw picks: `sum_tree.as_integers` and the search.

    Args:
        typingctx: given by numba.
        tree: float32 [rows * FANOUT].
        row: that of the children.
        unit: the power of two that brings their sum into [1, 2), float32.
        draw: int32 in [0, 2^31).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        children = _load(context, builder, signature, args, FLOATS)
        scale = _splat(builder, ir.Constant(ir.FloatType(), float(2**RESOLUTION)), FLOATS)
        scaled = builder.fmul(builder.fmul(children, _splat(builder, args[2], FLOATS)), scale)
        whole = builder.fptosi(scaled, INTS)
        positive = builder.zext(builder.fcmp_ordered(">", children, ir.Constant(FLOATS, [0.0] * FANOUT)), INTS)
        weights = builder.select(builder.icmp_signed(">", whole, positive), whole, positive)
        wide = ir.IntType(64)
        product = builder.mul(builder.zext(_reduce(builder, "add", weights), wide), builder.zext(args[3], wide))
        target = builder.trunc(builder.lshr(product, wide(31)), ir.IntType(32))
        passed = builder.icmp_signed("<=", _running_sums(builder, weights), _splat(builder, target, INTS))
        return builder.zext(_reduce(builder, "add", builder.zext(passed, INTS)), wide)

    return types.int64(tree, types.int64, types.float32, types.int32), generate


@intrinsic
def add_up(typingctx: Any, tree: Any, row: Any) -> Any:
    """The sum of the FANOUT float32 in a row, in the order of `sum_tree.add_up`: halves onto halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums = _load(context, builder, signature, args, FLOATS)
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

    return types.float32(tree, types.int64), generate


@intrinsic
def smallest(typingctx: Any, tree: Any, row: Any) -> Any:
    """The bits of the smallest positive of the FANOUT float32 in a row, 0 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Positive floats are ordered as their bits are; less one, zero is the largest of the unsigned.
        one = ir.Constant(INTS, [1] * FANOUT)
        least = _reduce(builder, "umin", builder.sub(_load(context, builder, signature, args, INTS), one))
        return builder.add(least, ir.IntType(32)(1))

    return types.int32(tree, types.int64), generate


@intrinsic
def largest(typingctx: Any, tree: Any, row: Any) -> Any:
    """The bits of the largest of the FANOUT float32 in a row, none of which is negative."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _reduce(builder, "smax", _load(context, builder, signature, args, INTS))

    return types.int32(tree, types.int64), generate
