"""What JAX brings along: `LIB`, to which the public functions are bound."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.lib import Lib, add_library
from jax_backend import dispatch, mixtures
from jax_backend.arrays import convert, ops, rules, tracing
from jax_backend.engines import carried, execute, hosted, restore, values
from jax_backend.engines.shared import SharedState, chain
from jax_backend.scale import engine as sharded


def _as_array(x: object, like: object) -> jax.Array:
    if isinstance(x, np.ndarray):
        return convert.copied(x)
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def _not_here(*arguments: object) -> object:
    return NotImplemented


# The chain of shared buffers, which knows none of JAX's keys.
@functools.cache
def _writes() -> SimpleNamespace:
    functions = chain()
    return SimpleNamespace(
        add=functions.add,
        add_=functions.add_,
        update=functions.update,
        update_=functions.update_,
        sample=_not_here,
        sample_=_not_here,
    )


def _chain(state: SharedState) -> Any:
    return _writes() if type(state) is SharedState and not tracing.in_program() else None


LIB: Final[Lib[jax.Array]] = Lib(
    name="jax_backend",
    array=jax.Array,
    shown="jax.Array",
    ops=ops,
    convert=convert.to_array,
    as_array=_as_array,
    build_mapping=execute.build_mapping,
    unsupported=execute.unsupported,
    to_numpy=values.to_numpy,
    is_traced=values.is_traced,
    outline=values.outline,
    draw=values.draw,
    inside=values.inside,
    nearest=values.nearest,
    encoded=values.encoded,
    decoded=values.decoded,
    carry_out=carried.carry_out,
    engine=dispatch.of,
    engine_for=dispatch.for_spec,
    in_place=dispatch.in_place,
    mapper=execute,
    host=hosted,
    mixtures=mixtures,
    sharded=sharded,
    elsewhere=restore.elsewhere,
    chain=_chain,
    around=rules.transfers,
)
add_library(LIB)
