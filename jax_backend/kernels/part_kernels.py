"""The part kernels of JAX: custom calls of what `functional_rb.native.kernels` declares.

What writes does so in its operand's memory; JAX copies first where the old value is still needed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import frame_store, handles
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Selection
from functional_rb.items import crops
from functional_rb.native import launches
from functional_rb.native.kernels import DECLARED, Declaration
from functional_rb.ops import random_bits
from functional_rb.ops.part_kernels import Table
from functional_rb.samplers import draw_limits, importance
from functional_rb.structures import sparse_set
from functional_rb.structures.ring import Removal, RingState
from functional_rb.transforms.her import find_goals
from functional_rb.writers import max_value
from jax_backend.arrays import ops
from jax_backend.kernels.custom_call import barrier, choose, in_use, on_gpu

# Functions of the core whose operations XLA fuses better than any call.
LEFT_TO_XLA = {
    *(random_bits.below, frame_store.plan_frames, frame_store.overwritten, crops.windows),
    *(sparse_set.members, sparse_set.exchanges, sparse_set.appended, sparse_set.distinct),
}


def by_kernel(function: Any, declaration: Declaration) -> Callable[..., object]:
    """A `Replaceable` of the core by a custom call of what is declared, or as XLA's operations where that cannot be."""
    core = functools.partial(function.core, ops)
    signature = inspect.signature(core)

    def work(*args: object, **named: object) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        return choose(declaration(*bound.args), core, *bound.args)

    return work


# --- steps of the core between which there is a barrier ---------------------------------------------------------------


def _count_draws(draft: Draft, slots: jax.Array, selection: Selection, limit: int) -> Selection:
    """What was drawn has been read before the tree is written."""
    slots, handles, weights, probabilities = barrier([slots, *selection[:3]])
    return draw_limits.count_draws.core(ops.OPS, draft, slots, Selection(handles, weights, probabilities), limit)


def _clear_leaves(draft: Draft, removal: Removal) -> None:
    """The peak has been read back from the tree before it is written, see `Prioritized.added`."""
    slots, peak = barrier([removal.slots, draft.counters.peak])
    draft.counters = draft.counters.replace(peak=peak)
    importance.clear_leaves.core(ops.OPS, draft, removal._replace(slots=slots))


def _compare(draft: Draft, keys: jax.Array, best: jax.Array) -> list[jax.Array]:
    """Ranks have been read before they are written, and after all that the counters stand for."""
    ends = draft.counters.ends
    *ranks, sizes = barrier([*max_value.compare.core(ops.OPS, draft, keys, best), ends.sizes])
    draft.counters = draft.counters.replace(ends=ends._replace(sizes=sizes))
    return ranks


def _locate_current(ends: RingState, current: jax.Array, wanted: jax.Array) -> object:
    """What is found is written to: so it comes after all that was done before, which the counters stand for."""
    (wanted,) = barrier([wanted], [ends.sizes])
    return handles.locate_current.core(ops.OPS, ends, current, wanted)


def _read_drawn(
    draft: Draft,
    spec: BufferSpec,
    slots: jax.Array,
    handles: jax.Array,
    draws: jax.Array | None,
    known: Mapping[int, jax.Array] | None = None,
) -> Any:
    """By a launch, where there is one for that."""

    def core(arrays: Arrays, slots: jax.Array, handles: jax.Array) -> Any:
        return functions.read_drawn.core(ops.OPS, Draft.of(arrays, spec.plan), spec, slots, handles, None)

    arrays = draft.as_begun
    launch = launches.read(arrays, spec, slots) if on_gpu() else None
    if launch is None or not in_use(launch):
        return functions.read_drawn.core(ops.OPS, draft, spec, slots, handles, draws, known)
    return choose(launch, core, arrays, slots, handles)


def _find_goals(*args: Any) -> Any:
    """By a launch alone, as CPUs have no one kernel for it."""
    core = functools.partial(find_goals.core, ops.OPS)
    return choose(launches.find_goals(*args), core, *args) if on_gpu() else core(*args)


# What replaces which function of the core; see `functional_rb.ops.part_kernels`.
TABLE: Table = {
    **{function: by_kernel(function, DECLARED[function]) for function in DECLARED if function not in LEFT_TO_XLA},
    draw_limits.count_draws: _count_draws,
    importance.clear_leaves: _clear_leaves,
    max_value.compare: _compare,
    handles.locate_current: _locate_current,
    functions.read_drawn: _read_drawn,
    find_goals: _find_goals,
}
