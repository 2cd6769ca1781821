"""Text on JAX: `rb.text`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.text import api, preferences
from functional_rb.text import generation as core
from functional_rb.text.backend import EmptyCache, Step
from functional_rb.text.generation import Generation, Settings
from functional_rb.text.laws import Law
from jax_backend import compile, convert, execute, ops
from jax_backend.lib import LIB

_KINDS = {"int32": "iu", "bool": "biu", "float32": "f"}


class _Backend:
    """`functional_rb.text.backend.Backend` on JAX: functions are compiled once for what is static and the shapes."""

    build_mapping = staticmethod(convert.build_mapping)
    convert = staticmethod(convert.convert)

    def array(self, x: Any, dtype: str, name: str) -> jax.Array:
        """JAX's arrays and NumPy's, also of 64 bits: token ids fit into 32."""
        if not isinstance(x, (jax.Array, np.ndarray)):
            raise TypeError(f"{name}: expected an array of JAX or NumPy, got {type(x).__name__}")
        kind = "f" if jnp.issubdtype(x.dtype, jnp.floating) else np.dtype(x.dtype).kind
        if kind not in _KINDS[dtype]:
            raise TypeError(f"{name}: expected dtype {dtype}, got {x.dtype}; convert it")
        if isinstance(x, np.ndarray):
            return jnp.array(x, dtype)  # a copy: JAX reads in the background, the caller may write
        return x.astype(dtype)

    def without_gradients(self) -> AbstractContextManager[Any]:
        """JAX remembers nothing."""
        return contextlib.nullcontext()

    def number(self, x: object, dtype: str, like: jax.Array) -> Any:
        """A scalar."""
        return jnp.asarray(x, dtype) if isinstance(x, jax.Array) else np.dtype(dtype).type(x)

    def values(self, x: jax.Array) -> Any:
        """The array in NumPy; None while tracing."""
        return None if isinstance(x, jax.core.Tracer) else np.asarray(x)

    def generate(
        self,
        step: Step,
        params: object,
        cache: EmptyCache | None,
        prompts: jax.Array,
        mask: jax.Array,
        key: jax.Array,
        law: Law,
        settings: Settings,
    ) -> Generation:
        """Generate replies."""
        execute.check_key(key)
        return _of(_generate, _generated, params, prompts, mask, key, law, step=step, cache=cache, settings=settings)

    def log_probs(
        self,
        step: Step,
        params: object,
        ids: jax.Array,
        mask: jax.Array,
        rows_at_once: int | None,
        tokens_at_once: int | None,
        cache: EmptyCache | None,
    ) -> jax.Array:
        """Tell log-probabilities."""
        static = {"step": step, "rows_at_once": rows_at_once, "tokens_at_once": tokens_at_once, "cache": cache}
        told: jax.Array = _of(_log_probs, _told_log_probs, params, ids, mask, **static)
        return told

    def run(self, function: Callable[..., Any], *given: Any, static: tuple[Any, ...] = ()) -> Any:
        """A compiled function of the core."""
        return _run(given, function=function, static=static)


def _of(compiled: Callable[..., object], plain: Callable[..., object], *given: object, **static: object) -> Any:
    """While tracing nothing is compiled by itself: the model may use what is being traced."""
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(given))
    if not traced:
        return compiled(*given, **static)
    return plain(*jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, given), **static)


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
    model, empty = core.prepared(ops, core.model_of(ops, step, params), cache, prompts, n)
    return core.generate(ops, model, empty, _copied, prompts, mask, bits, law, settings)


def _copied(cache: object, rows: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[rows] if x.ndim else x, cache)


_generate = jax.jit(_generated, static_argnames=("step", "cache", "settings"))


@compile.program
def _told_log_probs(
    params: object,
    ids: jax.Array,
    mask: jax.Array,
    *,
    step: Step,
    rows_at_once: int | None,
    tokens_at_once: int | None,
    cache: EmptyCache | None,
) -> jax.Array:
    model = core.model_of(ops, step, params)
    told: jax.Array = core.log_probs(ops, model, ids, mask, rows_at_once, tokens_at_once, cache)
    return told


_log_probs = jax.jit(_told_log_probs, static_argnames=("step", "rows_at_once", "tokens_at_once", "cache"))


@functools.partial(jax.jit, static_argnames=("function", "static"), inline=True)
@compile.program
def _run(given: tuple[object, ...], function: Callable[..., object], static: tuple[object, ...]) -> Any:
    return function(ops, *given, *static)


_backend = _Backend()


_lib = LIB.within("text")

bradley_terry_loss = _lib.bind_to(_backend, preferences.bradley_terry_loss)
end_scores = _lib.bind_to(_backend, preferences.end_scores)
generate = _lib.bind_to(_backend, api.generate)
join = _lib.bind_to(_backend, api.join)
group_advantages = _lib.bind_to(_backend, preferences.group_advantages)
log_probs = _lib.bind_to(_backend, api.log_probs)
gae = _lib.bind_to(_backend, api.gae)
pairs_of_groups = _lib.bind_to(_backend, preferences.pairs_of_groups)
reward_loss = _lib.bind_to(_backend, preferences.reward_loss)
rollout = _lib.bind_to(_backend, api.rollout)
update_kl = _lib.bind_to(_backend, preferences.update_kl)

__all__ = [*api.NAMES]
__dir__ = __all__.copy
