"""The in-place forms on JAX: compiled functions to which the state is donated.

JAX deletes the arrays that are donated, so that the state is consumed wherever it is held. While tracing there is
nothing to donate, and these are the functions without an underscore. That goes for a state that a traced program has
from outside too: what is traced by `jax.checkpoint` runs again and again, each time with the same arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import jax
import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.buffer import checks, functions
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.in_place import Finish
from functional_rb.buffer.state import State
from functional_rb.core import counters
from functional_rb.core.sample import AnySample
from functional_rb.core.strategy import Selection
from jax_backend.arrays import convert, keys, lent, tracing
from jax_backend.compiling import compile
from jax_backend.engines import execute, mapping

# Which argument each program donates.
STATE: Final = (0,)

_add = jax.jit(execute.added, static_argnames=("batch", "kernels"), donate_argnums=0)
_update = jax.jit(execute.updated, static_argnames="kernels", donate_argnums=0)


def add_(state: State, batch: Batch, key: jax.Array | None) -> State:
    """Write a batch of items in place, and consume the state."""
    if tracing.is_traced(state.counters, *batch.leaves, batch.mask, batch.priorities, key):
        return execute.add(state, batch, key)
    if key is not None:
        keys.check_key(key)
    kernels = compile.use_kernels()
    after: State = lent.called(_add, STATE, state, *batch, key, kernels=kernels)
    return after


def sample_(state: State, key: jax.Array, batch: int, beta: jax.Array, finish: Finish) -> tuple[State, AnySample[Nest]]:
    """Draw items. Where nothing can be drawn, or a function of items fails, that is an error before all else."""
    if tracing.is_traced(state.counters, key, beta):
        state, leaves, selection = execute.sample(state, key, batch, beta)
        return state, finish(leaves, selection)
    keys.check_key(key)
    # Before the state is donated: afterwards there would be none to go back to.
    if batch:
        _check_nonempty(state, batch)
    # A function of items that fails does so while it is traced, before anything is donated.
    state, leaves, structure, selection = lent.called(
        _sample, STATE, state, key, batch, convert.number(beta), kernels=compile.use_kernels()
    )
    return state, finish(leaves if structure is None else mapping.Mapped(leaves, structure), selection)


def _check_nonempty(state: State, batch: int) -> None:
    needed = batch if getattr(state.spec.sampler, "drop_last", False) else 1
    possible = execute.look(state, functions.drawable, n=needed)
    if possible.is_fully_addressable:
        checks.check_nonempty(state.spec, bool(possible), int(np.asarray(state.counters)[counters.SIZE]))


def _sampled(
    state: State, key: jax.Array, batch: int, beta: jax.Array, kernels: bool = False
) -> tuple[State, list[jax.Array], object, Selection]:
    drawn = execute.drawn_from(state, key, batch, beta, kernels=kernels)  # type: ignore[call-arg]  # see `compile.program`
    return execute.changed_by(state, drawn[0]), *drawn[1:]


_sample = jax.jit(_sampled, static_argnames=("batch", "kernels"), donate_argnums=0)


def update_(
    state: State, handles: jax.Array, priorities: jax.Array | None, replacements: Mapping[int, jax.Array]
) -> State:
    """Set priorities and rewrite leaves."""
    if tracing.is_traced(state.counters, handles, priorities, *replacements.values()):
        return execute.update(state, handles, priorities, replacements)
    kernels = compile.use_kernels()
    after: State = lent.called(_update, STATE, state, handles, priorities, dict(replacements), kernels=kernels)
    return after


def advance_(state: State, version: object) -> State:
    """Tell the sampler the version of the policy that learns, in place, and consume the state."""
    if tracing.is_traced(state.counters, version):
        return execute.advance(state, version)
    version = convert.number(version, np.int32)
    after: State = lent.called(_advance, STATE, state, version, kernels=compile.use_kernels())
    return after


def _advanced(state: State, version: jax.Array, kernels: bool = False) -> State:
    return execute.changed_by(state, execute.advanced(state, version, kernels=kernels))  # type: ignore[call-arg]  # see `compile.program`


_advance = jax.jit(_advanced, static_argnames="kernels", donate_argnums=0)


def clear_(state: State) -> State:
    """Take all items out in place, and consume the state."""
    if tracing.is_traced(state.counters):
        return execute.clear(state)
    after: State = lent.called(_clear, STATE, state, kernels=compile.use_kernels())
    return after


def _cleared(state: State, kernels: bool = False) -> State:
    return execute.changed_by(state, execute.cleared(state, kernels=kernels))  # type: ignore[call-arg]  # see `compile.program`


_clear = jax.jit(_cleared, static_argnames="kernels", donate_argnums=0)
