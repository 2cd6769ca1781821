"""Functions of the core over arrays, compiled once for what is static and the shapes: `Lib.carry_out`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from functional_rb.base.arrays import Nest
from jax_backend.arrays import lent, ops, tracing
from jax_backend.compiling import compile


@compile.program
def _traced(owned: Nest, operands: Sequence[object], function: Callable[..., object], static: Any) -> object:
    return function(ops, static, owned, *operands)


_STATIC = ("function", "static", "kernels")
_keeping = jax.jit(_traced, static_argnames=_STATIC, inline=True)
_consuming = jax.jit(_traced, static_argnames=_STATIC, donate_argnums=0)


def carry_out(
    function: Callable[..., object],
    static: object,
    owned: object,
    *operands: object,
    consume: tuple[object, str] | None = None,
) -> Any:
    """`function(ops, static, owned, *operands)`; where nothing is traced, arrays that are consumed are donated."""
    named = {"function": function, "static": static, "kernels": compile.use_kernels()}
    if consume is None or tracing.is_traced(*jax.tree.leaves((owned, operands))):
        return _keeping(owned, operands, **named)
    return lent.called(_consuming, (0,), owned, operands, **named)
