"""Loads, stores and fences that keep their order, for memory that several processes write and read at once.

x86 keeps the order of stores and of loads by itself, ARM does not, and compilers on neither: so these are LLVM's own
atomics, which bind both. Addresses are int64, multiples of 8.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WORD = ir.IntType(64)


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """Load an int64; no later read takes place before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64; whatever was written before is written when others see it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _fence(ordering: str) -> Any:
    @intrinsic
    def fence(typingctx: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), generate

    return fence


reads_before = _fence("acquire")
"""What was read before is read before anything that follows is read or written."""
writes_before = _fence("release")
"""What was written before is written before anything that follows is."""
