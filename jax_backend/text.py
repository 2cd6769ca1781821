"""Text on JAX: `rb.text`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import ArrayLike, Nest
from functional_rb.ops.protocol import Array
from functional_rb.text import api, preferences
from functional_rb.text import generation as core
from functional_rb.text.generation import Cache, Generation, Settings
from functional_rb.text.laws import Law
from functional_rb.text.lib import EmptyCache, Step, TextLib
from jax_backend import lib
from jax_backend.arrays import convert, ops
from jax_backend.compiling import compile
from jax_backend.engines import execute

_KINDS = {"int32": "iu", "bool": "biu", "float32": "f"}


def _converted(x: ArrayLike, dtype: str, name: str) -> jax.Array:
    # Also of 64 bits: token ids fit into 32.
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise TypeError(f"{name}: expected an array of JAX or NumPy, got {type(x).__name__}")
    kind = "f" if jnp.issubdtype(x.dtype, jnp.floating) else np.dtype(x.dtype).kind
    if kind not in _KINDS[dtype]:
        raise TypeError(f"{name}: expected dtype {dtype}, got {x.dtype}; convert it")
    if isinstance(x, np.ndarray):
        return convert.copied(x.astype(dtype))
    return x.astype(dtype)


def _number(x: object, dtype: str, like: jax.Array) -> Array:
    return jnp.asarray(x, dtype) if isinstance(x, jax.Array) else np.dtype(dtype).type(x)


def _generating(
    step: Step,
    params: object,
    cache: EmptyCache | None,
    prompts: jax.Array,
    mask: jax.Array,
    key: jax.Array,
    law: Law,
    settings: Settings,
) -> Generation:
    execute.check_key(key)
    return _of(_generate, _generated, params, prompts, mask, key, law, step=step, cache=cache, settings=settings)


def _log_probs_of(
    step: Step,
    params: object,
    ids: jax.Array,
    mask: jax.Array,
    rows_at_once: int | None,
    tokens_at_once: int | None,
    cache: EmptyCache | None,
) -> jax.Array:
    static = {"step": step, "rows_at_once": rows_at_once, "tokens_at_once": tokens_at_once, "cache": cache}
    log_probs: jax.Array = _of(_log_probs, _traced_log_probs, params, ids, mask, **static)
    return log_probs


def _of(compiled: Callable[..., object], plain: Callable[..., object], *operands: object, **static: object) -> Nest:
    # While tracing nothing is compiled by itself: the model may use what is being traced.
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(operands))
    if not traced:
        return compiled(*operands, **static)
    return plain(*jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, operands), **static)


@compile.program
def _generated(
    params: object,
    prompts: jax.Array,
    mask: jax.Array,
    key: jax.Array,
    law: Law,
    *,
    step: Step,
    cache: EmptyCache | None,
    settings: Settings,
) -> Generation:
    batch, n, replies = prompts.shape[0], settings.n, settings.replies
    bits = compile.draws(key, batch * replies * n, 2).reshape(batch, replies, n, 2)
    model, empty = core.prepared(ops.OPS, core.model_of(ops.OPS, step, params), cache, prompts, n)
    return core.generate(ops.OPS, model, empty, _copied, prompts, mask, bits, law, settings)


def _copied(cache: object, rows: jax.Array) -> Cache:
    return jax.tree.map(lambda x: x[rows] if x.ndim else x, cache)


_generate = jax.jit(_generated, static_argnames=("step", "cache", "settings"))


@compile.program
def _traced_log_probs(
    params: object,
    ids: jax.Array,
    mask: jax.Array,
    *,
    step: Step,
    rows_at_once: int | None,
    tokens_at_once: int | None,
    cache: EmptyCache | None,
) -> jax.Array:
    model = core.model_of(ops.OPS, step, params)
    log_probs: jax.Array = core.log_probs(ops.OPS, model, ids, mask, rows_at_once, tokens_at_once, cache)
    return log_probs


_log_probs = jax.jit(_traced_log_probs, static_argnames=("step", "rows_at_once", "tokens_at_once", "cache"))


@functools.partial(jax.jit, static_argnames=("function", "static"), inline=True)
@compile.program
def _carried(operands: tuple[object, ...], function: Callable[..., object], static: tuple[object, ...]) -> Nest:
    return function(ops, *operands, *static)


def _run(function: Callable[..., object], *operands: object, static: tuple[object, ...] = ()) -> Nest:
    return _carried(operands, function=function, static=static)


LIB: Final[TextLib[jax.Array]] = TextLib.of(
    lib.LIB.within("text"),
    converted=_converted,
    number=_number,
    without_gradients=contextlib.nullcontext,
    run=_run,
    generating=_generating,
    log_probs_of=_log_probs_of,
)

bradley_terry_loss = LIB.bind(preferences.bradley_terry_loss)
gae = LIB.bind(api.gae)
generate = LIB.bind(api.generate)
group_advantages = LIB.bind(preferences.group_advantages)
log_probs = LIB.bind(api.log_probs)
pairs_of_groups = LIB.bind(preferences.pairs_of_groups)
rollout = LIB.bind(api.rollout)

__all__ = [*api.NAMES]
__dir__ = __all__.copy
