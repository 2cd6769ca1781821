"""Functions of the core over arrays, compiled once for what is static and the shapes: `maps.functions.MapBackend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jax_backend import compile, lent
from jax_backend.values import build_mapping as build_mapping
from jax_backend.values import convert as convert
from jax_backend.values import decoded as decoded
from jax_backend.values import draw as draw
from jax_backend.values import encoded as encoded
from jax_backend.values import inside as inside
from jax_backend.values import is_object_array as is_object_array
from jax_backend.values import is_traced as is_traced
from jax_backend.values import nearest as nearest
from jax_backend.values import ops as ops
from jax_backend.values import outline as outline
from jax_backend.values import to_numpy as to_numpy
from jax_backend.values import unsupported as unsupported


@compile.program
def _traced(owned: Any, given: Any, function: Callable[..., Any], static: Any) -> Any:
    return function(ops, static, owned, *given)


_STATIC = ("function", "static", "kernels")
_keeping = jax.jit(_traced, static_argnames=_STATIC, inline=True)
_consuming = jax.jit(_traced, static_argnames=_STATIC, donate_argnums=0)


def carry_out(
    function: Callable[..., Any], static: Any, owned: Any, *given: Any, consume: tuple[Any, str] | None = None
) -> Any:
    """`function(ops, static, owned, *given)`; where nothing is traced, arrays that are consumed are donated."""
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((owned, given)))
    named = {"function": function, "static": static, "kernels": compile.use_kernels()}
    if consume is None or traced:
        return _keeping(owned, given, **named)
    return lent.called(_consuming, (0,), owned, given, **named)


def is_own(array: Any) -> bool:
    """Whether an array is one of JAX's, traced ones among them."""
    return isinstance(array, jax.Array)
