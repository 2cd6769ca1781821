"""The part kernels of JAX: for each function of the core that one may replace, how its custom call is described.

What writes does so in its operand's memory; JAX copies first where the old value is still needed. Functions of the core
that are missing here stay XLA's operations, which it fuses better than any call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.core import handles
from functional_rb.core.draft import Draft
from functional_rb.core.strategy import Selection
from functional_rb.native import descriptor
from functional_rb.ops.part_kernels import Table
from functional_rb.samplers import draw_limits, importance
from functional_rb.structures import episode_windows, frame_ring, hash_map, ring, row_layout, sum_tree
from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.hash_map import HashMap, MapPlan
from functional_rb.structures.ring import Removal, Ring, RingState
from functional_rb.structures.row_layout import Layout
from functional_rb.transforms import returns, step_queue
from functional_rb.transforms.step_queue import Line
from functional_rb.writers import max_value
from jax_backend import ops
from jax_backend.custom_call import ABSENT, Kernel, barrier, choose

Described = Kernel | None
ARRAYS = (jax.Array, np.ndarray, np.generic)


def by_kernel(function: Any, describe: Callable[..., Described]) -> Callable[..., Any]:
    """A function of the core by a custom call, or as XLA's operations where that cannot be.

    Args:
        function: a `Replaceable`.
        describe: the custom call for its arguments behind `ops`, whose arrays are the operands in their order (None is
            an empty one); None where there is nothing to call it for.
    """
    signature = inspect.signature(function.core)

    def work(*args: Any, **named: Any) -> Any:
        bound = signature.bind(ops, *args, **named)
        bound.apply_defaults()
        given = bound.args[1:]
        leaves, outline = jax.tree.flatten(given, is_leaf=lambda x: x is None)
        places = [k for k, leaf in enumerate(leaves) if leaf is None or isinstance(leaf, ARRAYS)]
        operands = [leaves[k] for k in places]
        for k in places:  # what is being traced must not outlive this
            leaves[k] = None

        def core(*arrays: Any) -> Any:
            filled = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
            return function.core(ops, *jax.tree.unflatten(outline, filled.values()))

        return choose(describe(*given), core, *operands)

    return work


# --- custom calls ---------------------------------------------------------------------------------------------------


def _descend(tree: jax.Array, capacity: int, draws: jax.Array) -> Described:
    return Kernel("descend", ints(*draws.shape[:1]), [descriptor.encode_tree(capacity)]) if draws.shape[0] else None


def _set_leaves(tree: jax.Array, capacity: int, leaves: jax.Array, *others: Any) -> Described:
    kernel = Kernel("set_leaves", like(tree), [descriptor.encode_tree(capacity)], in_place={0: 0})
    return kernel if leaves.shape[0] else None


def _read(layout: Layout, rows: jax.Array, wide: Sequence[jax.Array], slots: jax.Array) -> Described:
    batch = slots.shape[0]
    results = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    return Kernel("read", results, [descriptor.encode_layout(layout)]) if batch and results else None


def _store(
    layout: Layout, rows: jax.Array, wide: Sequence[jax.Array], slots: jax.Array, source: Any, live: Any, leaves: Any
) -> Described:
    in_place = {k: k for k in range(1 + len(wide))}
    kernel = Kernel("store", (like(rows), tuple(map(like, wide))), [descriptor.encode_layout(layout)], in_place)
    return kernel if slots.shape[0] and leaves else None


def _stored_value(priorities: jax.Array, alpha: float) -> Described:
    results = like(priorities), bools(*priorities.shape)
    return Kernel("stored_values", results, [descriptor.encode_alpha(alpha)]) if priorities.shape[0] else None


def _updated_values(slots: jax.Array, live: jax.Array, priorities: jax.Array, alpha: float) -> Described:
    batch = slots.shape[0]
    results = like(priorities), bools(batch), ints(), ints()
    return Kernel("updated_values", results, [descriptor.encode_alpha(alpha)]) if batch else None


def _importance_weights(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> Described:
    return Kernel("importance_weights", like(values)) if values.shape[0] else None


def _choose_slots(ring: Ring, ends: RingState, batch: int, mask: jax.Array | None) -> Described:
    steps = batch // ring.lanes
    n = min(steps, ring.length) * ring.lanes
    chosen = (ABSENT, ABSENT) if mask is None else (ints(n), bools(n))
    results = (ints(n), *chosen, ints(ring.lanes), RingState(ints(ring.lanes), ints(ring.lanes)))
    kernel = Kernel("choose_slots", results, [descriptor.encode_ring(ring), np.full(1, steps, np.int32)])
    return kernel if batch else None


def _steps_in_episodes(next_in_episode: jax.Array, written: jax.Array, begins: Any, ends: Any) -> Described:
    given = begins if ends is None else ends
    return Kernel("steps_in_episodes", (ints(*given.shape), ints(*next_in_episode.shape)))


def _changed(rule: Rule, lanes: Lanes, in_episode: jax.Array, n: int, by_trajectory: bool) -> Described:
    distances = descriptor.encode_distances(lanes.ring, rule, n, by_trajectory)
    results = Entries(*(ints(descriptor.entries(lanes.ring, distances)) for _ in Entries._fields))
    return Kernel("changed", results, [descriptor.encode_windows(lanes.ring, rule, by_trajectory), distances])


def _weights_at(rule: Rule, lanes: Lanes, in_episode: jax.Array, slots: jax.Array) -> Described:
    kernel = Kernel("weights_at", ints(*slots.shape), [descriptor.encode_windows(lanes.ring, rule, False)])
    return kernel if slots.shape[0] else None


def _places(chain: Chain, at: jax.Array, slots: jax.Array, depth: int, following: bool) -> Described:
    encoded = descriptor.encode_stacks(chain, depth, following)
    return Kernel("places", ints(slots.shape[0] * depth), [encoded]) if slots.shape[0] else None


def _expand(
    rule: Rule,
    lanes: Lanes,
    in_episode: jax.Array,
    next_in_episode: jax.Array,
    slots: jax.Array,
    draws: jax.Array,
    live: jax.Array | None,
    by_trajectory: bool,
) -> Described:
    shape = (slots.shape[0], rule.length)
    results = Slices(ints(*shape), ints(*shape), *(bools(*shape) for _ in Slices._fields[2:]))
    kernel = Kernel("expand", results, [descriptor.encode_windows(lanes.ring, rule, by_trajectory)])
    return kernel if slots.shape[0] else None


def _following(lanes: Lanes, in_episode: jax.Array, slots: jax.Array, n: int) -> Described:
    shape = (slots.shape[0], n)
    kernel = Kernel("following", (ints(*shape), bools(*shape)), [descriptor.encode_ring(lanes.ring)])
    return kernel if slots.shape[0] else None


def _extent(lanes: Lanes, in_episode: jax.Array, slots: jax.Array) -> Described:
    kernel = Kernel("extent", (ints(*slots.shape), ints(*slots.shape)), [descriptor.encode_ring(lanes.ring)])
    return kernel if slots.shape[0] else None


def _fold_floats(rewards: jax.Array, real: jax.Array, gamma: float) -> Described:
    m, n, *shape = rewards.shape
    if not m or rewards.dtype != jnp.float32:  # float64 is added up by the core
        return None
    results = jax.ShapeDtypeStruct((m, *shape), jnp.float32), ints(m)
    return Kernel("fold", results, [descriptor.encode_discounts(gamma, n, "float32")])


def _plan_line(pending: jax.Array, ended: jax.Array, ids: Any, mask: Any, n: int) -> Described:
    lanes = pending.shape[0]
    rows = ended.shape[0] + lanes * (n - 1)
    return Kernel("plan_line", Line(ints(rows, n), bools(rows, n), bools(rows), ints(lanes * (n - 1)), ints(lanes)))


def _map_lookup(plan: MapPlan, map: HashMap, rows: jax.Array) -> Described:
    return Kernel("map_lookup", ints(rows.shape[0]), [descriptor.encode_map(plan)]) if rows.shape[0] else None


def _map_insert(plan: MapPlan, map: HashMap, rows: jax.Array, mask: jax.Array | None) -> Described:
    results = HashMap(*(like(x) for x in map)), ints(rows.shape[0]), bools(rows.shape[0])
    kernel = Kernel("map_insert", results, [descriptor.encode_map(plan)], in_place={k: k for k in range(len(map))})
    return kernel if rows.shape[0] else None


def like(x: jax.Array) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """The type of an int32 array of some shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def bools(*shape: int) -> jax.ShapeDtypeStruct:
    """The type of a bool array of some shape."""
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


# --- steps of the core between which there is a barrier ---------------------------------------------------------------


def _count_draws(draft: Draft, slots: jax.Array, selection: Selection, limit: int) -> Selection:
    """What was drawn has been read before the tree is written."""
    slots, handles, weights, probabilities = barrier([slots, *selection[:3]])
    return draw_limits.count_draws.core(ops, draft, slots, Selection(handles, weights, probabilities), limit)


def _clear_leaves(draft: Draft, removal: Removal) -> None:
    """The peak has been read back from the tree before it is written, see `Prioritized.added`."""
    slots, peak = barrier([removal.slots, draft.counters.peak])
    draft.counters = draft.counters.replace(peak=peak)
    importance.clear_leaves.core(ops, draft, removal._replace(slots=slots))


def _compare(draft: Draft, keys: jax.Array, best: jax.Array) -> Any:
    """Ranks have been read before they are written, and after all that the counters stand for."""
    ends = draft.counters.ends
    *found, sizes = barrier([*max_value.compare.core(ops, draft, keys, best), ends.sizes])
    draft.counters = draft.counters.replace(ends=ends._replace(sizes=sizes))
    return found


def _locate_current(ends: RingState, current: jax.Array, wanted: jax.Array) -> Any:
    """What is found is written to: so it comes after all that was done before, which the counters stand for."""
    (wanted,) = barrier([wanted], [ends.sizes])
    return handles.locate_current.core(ops, ends, current, wanted)


TABLE: Table = {
    **{
        function: by_kernel(function, describe)
        for function, describe in (
            (sum_tree.descend, _descend),
            (sum_tree.set_leaves, _set_leaves),
            (row_layout.read, _read),
            (row_layout.store, _store),
            (importance.stored_value, _stored_value),
            (importance.updated_values, _updated_values),
            (importance.importance_weights, _importance_weights),
            (ring.choose_slots, _choose_slots),
            (episode_windows.steps_in_episodes, _steps_in_episodes),
            (episode_windows.changed, _changed),
            (episode_windows.weights_at, _weights_at),
            (episode_windows.expand, _expand),
            (episode_windows.following, _following),
            (episode_windows.extent, _extent),
            (frame_ring.places, _places),
            (returns.fold_floats, _fold_floats),
            (step_queue.plan_line, _plan_line),
            (hash_map.lookup, _map_lookup),
            (hash_map.insert, _map_insert),
        )
    },
    row_layout.pack_rows: functools.partial(row_layout.pack_rows_by_store, ops),
    draw_limits.count_draws: _count_draws,
    importance.clear_leaves: _clear_leaves,
    max_value.compare: _compare,
    handles.locate_current: _locate_current,
}
"""What replaces which function of the core; see `functional_rb.ops.part_kernels`."""
