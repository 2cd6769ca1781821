"""Whether what is called is carried out at once, or becomes a part of a program that JAX traces."""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp

from jax_backend import compat

with jax.ensure_compile_time_eval():
    _AT_ONCE: Final = compat.way_of_calls()


def is_traced(*arrays: object) -> bool:
    """Whether one of some arrays is a tracer, or they are used in a program: that may run again with the same ones."""
    return any(isinstance(x, jax.core.Tracer) for x in arrays) or in_program()


def in_program() -> bool:
    """Whether a program is traced, as by `jax.jit`, `scan` and `jax.checkpoint`.

    By `jax.grad`, `jax.vmap` and the like, unless they are in a program, all is carried out at once that depends on
    nothing which they trace.
    """
    # While a program is traced, whatever `jax.numpy` makes is a tracer; asking that alone would take far longer.
    return compat.way_of_calls() != _AT_ONCE and isinstance(jnp.zeros(()), jax.core.Tracer)
