"""The kernels that stand in for functions of the core, each declared once.

A declaration takes what its function takes behind `ops` and names a handler of `functional_rb/native/src/handlers.h`,
its operands, results and records. JAX makes custom calls of it (`jax_backend.part_kernels`), torch and NumPy call it on
their arrays (`functional_rb.native.calls`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from functional_rb.base.dtypes import shown
from functional_rb.core import frame_store
from functional_rb.core.frame_store import FramePlan
from functional_rb.items import crops
from functional_rb.native import descriptor
from functional_rb.ops import random_bits
from functional_rb.ops.protocol import Array
from functional_rb.samplers import importance
from functional_rb.structures import episode_windows, frame_ring, hash_map, ring, row_layout, sparse_set, sum_tree
from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.hash_map import HashMap, MapPlan
from functional_rb.structures.ring import Removal, Ring, RingState
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms import returns, step_queue
from functional_rb.transforms.step_queue import Line


@dataclasses.dataclass(slots=True, eq=False)
class Made:
    """An array that a kernel fills, of a shape and of a dtype by its name."""

    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(slots=True, eq=False)
class Kernel:
    """A call of a kernel.

    Attributes:
        name: of the handler.
        operands: arrays in the order in which the function takes them; None for one that is not given.
        results: what the function returns, with `Made` for each new array, the operand itself for one that is changed
            in place, and `ABSENT` for one that the handler leaves out.
        records: of int32 and the like, which the handler has before the operands.
        cut: how many of the first results are cut to as many rows as the handler tells in one more result, int32 [1].
    """

    name: str
    operands: Sequence[Array | None]
    results: Any
    records: Sequence[np.ndarray[Any, Any]] = ()
    cut: int = 0


ABSENT: Final = "absent"
DECLARED: Final[dict[Callable[..., Any], Callable[..., Kernel | None]]] = {}
"""By the function that each kernel replaces; a declaration that returns None leaves its arguments to the core."""


def stands_in_for(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the kernel of a function of the core."""

    def declared(declaration: Callable[..., Any]) -> Callable[..., Any]:
        DECLARED[function] = declaration
        return declaration

    return declared


def ints(*shape: int) -> Made:
    """An array int32 that is made."""
    return Made(shape, "int32")


def bools(*shape: int) -> Made:
    """An array bool that is made."""
    return Made(shape, "bool")


def floats(*shape: int) -> Made:
    """An array float32 that is made."""
    return Made(shape, "float32")


# --- sum tree and priorities ------------------------------------------------------------------------------------------


@stands_in_for(sum_tree.descend)
def _descend(tree: Array, capacity: int, draws: Array) -> Kernel | None:
    batch = draws.shape[0]
    return Kernel("descend", (tree, draws), ints(batch), [descriptor.encode_tree(capacity)]) if batch else None


@stands_in_for(sum_tree.set_leaves)
def _set_leaves(tree: Array, capacity: int, leaves: Array, values: Array, consecutive: bool = False) -> Kernel | None:
    encoded = descriptor.encode_tree(capacity)
    return Kernel("set_leaves", (tree, leaves, values), tree, [encoded]) if leaves.shape[0] else None


@stands_in_for(importance.stored_value)
def _stored_value(priorities: Array, alpha: float) -> Kernel | None:
    count = priorities.shape[0]
    results = floats(count), bools(count)
    return Kernel("stored_values", (priorities,), results, [descriptor.encode_alpha(alpha)]) if count else None


@stands_in_for(importance.updated_values)
def _updated_values(slots: Array, live: Array, priorities: Array, alpha: float) -> Kernel | None:
    count = slots.shape[0]
    results = floats(count), bools(count), ints(), ints()
    operands = slots, live, priorities
    return Kernel("updated_values", operands, results, [descriptor.encode_alpha(alpha)]) if count else None


@stands_in_for(importance.importance_weights)
def _importance_weights(values: Array, smallest: Array, beta: Array) -> Kernel | None:
    count = values.shape[0]
    return Kernel("importance_weights", (values, smallest, beta), floats(count)) if count else None


@stands_in_for(random_bits.below)
def _below(draws: Array, n: Array) -> Kernel | None:
    return Kernel("below", (draws, n), ints(draws.shape[0])) if draws.shape[0] else None


# --- row layout -------------------------------------------------------------------------------------------------------


@stands_in_for(row_layout.read)
def _read(layout: Layout, rows: Array, wide: Sequence[Array], slots: Array) -> Kernel | None:
    batch = slots.shape[0]
    results = [Made((batch, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    encoded = descriptor.encode_layout(layout)
    return Kernel("read", (rows, *wide, slots), results, [encoded]) if batch and results else None


@stands_in_for(row_layout.store)
def _store(
    layout: Layout,
    rows: Array,
    wide: Sequence[Array],
    slots: Array,
    source: Array | None,
    live: Array | None,
    leaves: Sequence[Array],
) -> Kernel | None:
    operands = (rows, *wide, slots, source, live, *leaves)
    encoded = descriptor.encode_layout(layout)
    return Kernel("store", operands, (rows, tuple(wide)), [encoded]) if slots.shape[0] and leaves else None


# --- rings and windows ------------------------------------------------------------------------------------------------


@stands_in_for(ring.choose_slots)
def _choose_slots(ring: Ring, ends: RingState, batch: int, mask: Array | None) -> Kernel | None:
    steps = batch // ring.lanes
    n = min(steps, ring.length) * ring.lanes
    chosen = (ABSENT, ABSENT) if mask is None else (ints(n), bools(n))
    results = (ints(n), *chosen, ints(ring.lanes), RingState(ints(ring.lanes), ints(ring.lanes)))
    records = descriptor.encode_ring(ring), descriptor.encode_number(steps)
    return Kernel("choose_slots", (*ends, mask), results, records) if batch else None


@stands_in_for(episode_windows.steps_in_episodes)
def _steps_in_episodes(
    next_in_episode: Array, written: Array, begins: Array | None = None, ends: Array | None = None
) -> Kernel:
    given: Any = begins if ends is None else ends
    results = ints(*given.shape), ints(*next_in_episode.shape)
    return Kernel("steps_in_episodes", (next_in_episode, written, begins, ends), results)


@stands_in_for(episode_windows.changed)
def _changed(rule: Rule, lanes: Lanes, in_episode: Array, n: int, by_trajectory: bool) -> Kernel:
    distances = descriptor.encode_distances(lanes.ring, rule, n, by_trajectory)
    count = descriptor.entries(lanes.ring, distances)
    records = descriptor.encode_windows(lanes.ring, rule, by_trajectory), distances
    return Kernel("changed", (*lanes.ends, in_episode), Entries(*(ints(count) for _ in Entries._fields)), records)


@stands_in_for(episode_windows.weights_at)
def _weights_at(rule: Rule, lanes: Lanes, in_episode: Array, slots: Array) -> Kernel | None:
    encoded = descriptor.encode_windows(lanes.ring, rule, False)
    operands = (*lanes.ends, in_episode, slots)
    return Kernel("weights_at", operands, ints(*slots.shape), [encoded]) if slots.shape[0] else None


@stands_in_for(episode_windows.expand)
def _expand(
    rule: Rule,
    lanes: Lanes,
    in_episode: Array,
    next_in_episode: Array,
    slots: Array,
    draws: Array,
    live: Array | None,
    by_trajectory: bool,
) -> Kernel | None:
    shape = slots.shape[0], rule.length
    results = Slices(ints(*shape), ints(*shape), *(bools(*shape) for _ in Slices._fields[2:]))
    operands = (*lanes.ends, in_episode, next_in_episode, slots, draws, live)
    encoded = descriptor.encode_windows(lanes.ring, rule, by_trajectory)
    return Kernel("expand", operands, results, [encoded]) if slots.shape[0] else None


@stands_in_for(episode_windows.following)
def _following(lanes: Lanes, in_episode: Array, slots: Array, n: int) -> Kernel | None:
    shape = slots.shape[0], n
    operands = (*lanes.ends, in_episode, slots)
    results = ints(*shape), bools(*shape)
    return Kernel("following", operands, results, [descriptor.encode_ring(lanes.ring)]) if slots.shape[0] else None


@stands_in_for(episode_windows.extent)
def _extent(lanes: Lanes, in_episode: Array, slots: Array) -> Kernel | None:
    operands = (*lanes.ends, in_episode, slots)
    results = ints(*slots.shape), ints(*slots.shape)
    return Kernel("extent", operands, results, [descriptor.encode_ring(lanes.ring)]) if slots.shape[0] else None


# --- frames -----------------------------------------------------------------------------------------------------------


@stands_in_for(frame_ring.places)
def _places(chain: Chain, at: Array, slots: Array, depth: int, following: bool) -> Kernel | None:
    encoded = descriptor.encode_stacks(chain, depth, following)
    return Kernel("places", (at, slots), ints(slots.shape[0] * depth), [encoded]) if slots.shape[0] else None


@stands_in_for(frame_store.plan_frames)
def _plan_frames(chain: Chain, cursor: Array, written: Array, shares: Array, moves: Array | None) -> Kernel | None:
    lanes, rows = cursor.shape[0], shares.shape[0]
    n = lanes * min(chain.most * (rows // lanes), chain.room)
    results = FramePlan(ints(n), ints(n), bools(n), after=ints(lanes), at=ints(lanes, rows // lanes))
    operands = cursor, written, shares, moves
    return Kernel("plan_frames", operands, results, [descriptor.encode_chain(chain)]) if rows else None


@stands_in_for(frame_store.overwritten)
def _overwritten(chain: Chain, at: Array, ends: RingState, after: Array, steps: int) -> Kernel | None:
    lanes = ends.cursors.shape[0]
    n = lanes * min(chain.most * steps, chain.items.length)
    results = Removal(ints(n), bools(n), RingState(ends.cursors, ints(lanes)))
    return Kernel("overwritten", (at, *ends, after), results, [descriptor.encode_chain(chain)]) if steps else None


# --- returns and the queue of steps -----------------------------------------------------------------------------------


@stands_in_for(returns.fold_floats)
def _fold_floats(rewards: Array, real: Array, gamma: float) -> Kernel | None:
    m, n, *shape = rewards.shape
    dtype = shown(rewards.dtype)
    results = Made((m, *shape), dtype), ints(m)
    discounts = descriptor.encode_discounts(gamma, n, dtype)
    return Kernel(f"fold_{dtype}", (rewards, real), results, [discounts]) if m else None


@stands_in_for(step_queue.plan_line)
def _plan_line(pending: Array, ended: Array, ids: Array | None, mask: Array | None, n: int) -> Kernel:
    lanes = pending.shape[0]
    rows = ended.shape[0] + lanes * (n - 1)
    results = Line(ints(rows, n), bools(rows, n), bools(rows), ints(lanes * (n - 1)), ints(lanes))
    return Kernel("plan_line", (pending, ended, ids, mask), results)


# --- sparse set -------------------------------------------------------------------------------------------------------


@stands_in_for(sparse_set.members)
def _members(sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Kernel | None:
    operands = (*sparse_set, count, slots, marked)
    return Kernel("members", operands, bools(slots.shape[0])) if slots.shape[0] else None


@stands_in_for(sparse_set.exchanges)
def _exchanges(sparse_set: SparseSet, boundary: Array, positions: Array, marked: Array) -> Kernel | None:
    batch = positions.shape[0]
    operands = (*sparse_set, boundary, positions, marked)
    results = ints(2 * batch), ints(2 * batch), ints(*boundary.shape)
    return Kernel("exchanges", operands, results, cut=2) if batch else None


@stands_in_for(sparse_set.appended)
def _appended(sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Kernel | None:
    batch = slots.shape[0]
    operands = (*sparse_set, count, slots, marked)
    return Kernel("appended", operands, (ints(batch), ints(batch), ints(*count.shape)), cut=2) if batch else None


@stands_in_for(sparse_set.distinct)
def _distinct(draws: Array, n: Array) -> Kernel | None:
    return Kernel("distinct", (draws, n), ints(draws.shape[0])) if draws.shape[0] else None


# --- hash map ---------------------------------------------------------------------------------------------------------


@stands_in_for(hash_map.lookup)
def _lookup(plan: MapPlan, map: HashMap, rows: Array) -> Kernel | None:
    encoded = descriptor.encode_map(plan)
    return Kernel("map_lookup", (*map, rows), ints(rows.shape[0]), [encoded]) if rows.shape[0] else None


@stands_in_for(hash_map.insert)
def _insert(plan: MapPlan, map: HashMap, rows: Array, mask: Array | None) -> Kernel | None:
    results = map, ints(rows.shape[0]), bools(rows.shape[0])
    encoded = descriptor.encode_map(plan)
    return Kernel("map_insert", (*map, rows, mask), results, [encoded]) if rows.shape[0] else None


# --- images -----------------------------------------------------------------------------------------------------------


@stands_in_for(crops.windows)
def _windows(images: Array, top: Array, left: Array, size: tuple[int, int]) -> Kernel | None:
    count, _, _, channels = images.shape
    results = Made((count, *size, channels), shown(images.dtype))
    pixel = descriptor.encode_number(channels * images.dtype.itemsize)
    return Kernel("windows", (images, top, left), results, [pixel]) if math.prod(results.shape) else None
