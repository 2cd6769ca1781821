"""Running mean and deviation on JAX: `rb.moments`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from functional_rb.buffer.binding import documented_by
from functional_rb.items import moments as functions
from functional_rb.items.moments import Moments
from jax_backend import ops, rules
from jax_backend.binder import Binder

_binds = Binder(lambda _: ops)

init = _binds(functions.init)
merge = _binds(functions.merge)


@rules.transfers
@documented_by(functions.update)
def update(moments: Moments, x: Any, mask: Any = None) -> Moments:
    return functions.update(ops, moments, jnp.asarray(x), None if mask is None else jnp.asarray(mask))


@rules.transfers
@documented_by(functions.apply)
def normalize(moments: Moments, x: Any, eps: float = 1e-4) -> jax.Array:
    made: jax.Array = functions.apply(ops, moments, jnp.asarray(x), eps)
    return made


__all__ = [
    "init",
    "merge",
    "normalize",
    "update",
]
__dir__ = __all__.copy
