"""Parts of the core on JAX: on CPUs as compiled kernels, else as XLA operations; see `Native`.

What writes does so in its operand's memory; JAX copies first where the old value is still needed. numba must be
installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.core import frame_store
from functional_rb.core.frame_store import FramePlan
from functional_rb.cpu_kernels import descriptor
from functional_rb.ops import random_bits
from functional_rb.samplers import weights
from functional_rb.structures import episode_windows, frame_ring, sum_tree
from functional_rb.structures import ring as core_ring
from functional_rb.structures import row_layout as layouts
from functional_rb.structures import sparse_set as sparse_sets
from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.ring import Ends, Removal, Ring, Write
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms import returns
from functional_rb.transforms import step_queue as lines
from functional_rb.transforms.step_queue import Line
from jax_backend import ops
from jax_backend.choose import ABSENT, Kernel, choose
from jax_backend.choose import settle as settle

Storage = tuple[jax.Array, tuple[jax.Array, ...]]


def descend(tree: jax.Array, capacity: int, draws: jax.Array) -> jax.Array:
    """`sum_tree.descend`: leaves int32 [B] by draws int32 [B, levels]."""

    def core(tree: jax.Array, draws: jax.Array) -> jax.Array:
        return sum_tree.descend(ops, tree, capacity, draws)

    kernel = Kernel("descend", _ints(*draws.shape[:1]), [descriptor.encode_tree(capacity)])
    leaves: jax.Array = choose(kernel if draws.shape[0] else None, core, tree, draws)
    return leaves


def set_leaves(tree: jax.Array, capacity: int, leaves: jax.Array, values: jax.Array) -> jax.Array:
    """`sum_tree.set_leaves`: leaves int32 [n], values float32 [n]."""

    def core(tree: jax.Array, leaves: jax.Array, values: jax.Array) -> jax.Array:
        return sum_tree.set_leaves(ops, tree, capacity, leaves, values)

    kernel = Kernel("set_leaves", like(tree), [descriptor.encode_tree(capacity)], in_place={0: 0})
    new: jax.Array = choose(kernel if leaves.shape[0] else None, core, tree, leaves, values)
    return new


def read(layout: Layout, rows: jax.Array, wide: Sequence[jax.Array], slots: jax.Array) -> list[jax.Array]:
    """`layout.read`: the leaves [B, *shape] in slots int32 [B]."""
    batch = slots.shape[0]

    def core(rows: jax.Array, wide: tuple[jax.Array, ...], slots: jax.Array) -> list[jax.Array]:
        return layouts.read(ops, layout, rows, wide, slots)

    results = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    kernel = Kernel("read", results, [descriptor.encode_layout(layout)])
    leaves: list[jax.Array] = choose(kernel if batch and results else None, core, rows, tuple(wide), slots)
    return leaves


def read_batches(
    layout: Layout, rows: jax.Array, wide: Sequence[jax.Array], batches: Sequence[jax.Array]
) -> list[list[jax.Array]]:
    """`layout.read_batches`: one by one, as XLA would copy the parts out of a whole."""
    return [read(layout, rows, wide, slots) for slots in batches]


def store(
    layout: Layout,
    rows: jax.Array,
    wide: Sequence[jax.Array],
    slots: jax.Array,
    source: jax.Array | None,
    live: jax.Array | None,
    leaves: Sequence[jax.Array],
) -> Storage:
    """`layout.store`: rows of leaves [B, *shape], those of source int32 [n], to slots int32 [n] where live bool [n]."""

    def core(rows: jax.Array, wide: tuple[jax.Array, ...], slots: jax.Array, *batch: Any) -> Storage:
        return layouts.store(ops, layout, rows, wide, slots, *batch)

    if not slots.shape[0] or not leaves:
        return rows, tuple(wide)
    in_place = {k: k for k in range(1 + len(wide))}
    kernel = Kernel("store", (like(rows), tuple(map(like, wide))), [descriptor.encode_layout(layout)], in_place)
    new: Storage = choose(kernel, core, rows, tuple(wide), slots, source, live, list(leaves))
    return new


def stored_value(priorities: jax.Array, alpha: float) -> tuple[jax.Array, jax.Array]:
    """`weights.stored_value`: values float32 [B], and which are good, bool [B]."""

    def core(priorities: jax.Array) -> tuple[jax.Array, jax.Array]:
        return weights.stored_value(ops, priorities, alpha)

    results = like(priorities), _marks(*priorities.shape)
    kernel = Kernel("stored_values", results, [descriptor.encode_alpha(alpha)])
    found: tuple[jax.Array, jax.Array] = choose(kernel if priorities.shape[0] else None, core, priorities)
    return found


def importance_weights(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> jax.Array:
    """`weights.importance_weights`: float32 [B], for scalars smallest and beta."""

    def core(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> jax.Array:
        return weights.importance_weights(ops, values, smallest, beta)

    kernel = Kernel("importance_weights", like(values))
    found: jax.Array = choose(kernel if values.shape[0] else None, core, values, smallest, beta)
    return found


def below(draws: jax.Array, n: jax.Array) -> jax.Array:
    """`integers.below`: XLA makes one loop of it."""
    return random_bits.below(ops, draws, n)


def plan_write(ring: Ring, ends: Ends, batch: int, mask: jax.Array | None) -> Write:
    """`ring.plan_write`: mask bool [batch]."""

    def core(ends: Ends, mask: jax.Array | None) -> tuple[Any, ...]:
        return tuple(core_ring.plan_write(ops, ring, ends, batch, mask))[:-1]

    steps = batch // ring.lanes
    n = min(steps, ring.length) * ring.lanes
    chosen = (ABSENT, ABSENT) if mask is None else (_ints(n), _marks(n))
    results = (_ints(n), *chosen, _ints(ring.lanes), Ends(_ints(ring.lanes), _ints(ring.lanes)))
    kernel = Kernel("plan_write", results, [descriptor.encode_ring(ring), np.full(1, steps, np.int32)])
    slots, source, live, written, after = choose(kernel if batch else None, core, ends, mask)
    return Write(slots, source, live, written, after, mask)


def step_ages(
    next_age: jax.Array, written: jax.Array, begins: jax.Array | None, ends: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """`windows.step_ages`: begins and ends bool [E, T], next_age and written int32 [E]."""

    def core(next_age: jax.Array, written: jax.Array, begins: Any, ends: Any) -> tuple[jax.Array, jax.Array]:
        return episode_windows.step_ages(ops, next_age, written, begins=begins, ends=ends)

    marks = begins if ends is None else ends
    assert marks is not None
    kernel = Kernel("step_ages", (_ints(*marks.shape), _ints(*next_age.shape)))
    found: tuple[jax.Array, jax.Array] = choose(kernel, core, next_age, written, begins, ends)
    return found


def changed(rule: Rule, lanes: Lanes, age: jax.Array, n: int, by_trajectory: bool) -> Entries:
    """`windows.changed`."""
    ring = lanes.ring

    def core(ends: Ends, age: jax.Array) -> Entries:
        return episode_windows.changed(ops, rule, Lanes(ring, ends), age, n, by_trajectory)

    distances = descriptor.encode_distances(ring, rule, n, by_trajectory)
    results = Entries(*(_ints(descriptor.entries(ring, distances)) for _ in Entries._fields))
    kernel = Kernel("changed", results, [descriptor.encode_windows(ring, rule, by_trajectory), distances])
    entries: Entries = choose(kernel, core, lanes.ends, age)
    return entries


def weights_at(rule: Rule, lanes: Lanes, age: jax.Array, slots: jax.Array) -> jax.Array:
    """`windows.weights_at`: slots int32 [n]."""
    ring = lanes.ring

    def core(ends: Ends, age: jax.Array, slots: jax.Array) -> jax.Array:
        return episode_windows.weights_at(ops, rule, Lanes(ring, ends), age, slots)

    kernel = Kernel("weights_at", _ints(*slots.shape), [descriptor.encode_windows(ring, rule, False)])
    numbers: jax.Array = choose(kernel if slots.shape[0] else None, core, lanes.ends, age, slots)
    return numbers


def members(sparse_set: SparseSet, count: jax.Array, slots: jax.Array, marked: jax.Array) -> jax.Array:
    """`sparse_set.members`, as XLA's operations."""
    return sparse_sets.members(ops, sparse_set, count, slots, marked)


def exchanges(
    sparse_set: SparseSet, boundary: jax.Array, positions: jax.Array, marked: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`sparse_set.exchanges`, as XLA's operations."""
    return sparse_sets.exchanges(ops, sparse_set, boundary, positions, marked)


def appended(
    sparse_set: SparseSet, count: jax.Array, slots: jax.Array, marked: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`sparse_set.appended`, as XLA's operations."""
    return sparse_sets.appended(ops, sparse_set, count, slots, marked)


def distinct(draws: jax.Array, n: jax.Array) -> jax.Array:
    """`sparse_set.distinct`, as XLA's operations."""
    return sparse_sets.distinct(ops, draws, n)


def plan_frames(
    chain: Chain, cursor: jax.Array, written: jax.Array, shares: jax.Array, moves: jax.Array | None
) -> FramePlan:
    """`frame_writes.plan_frames`, as XLA's operations: it fuses them."""
    return frame_store.plan_frames(ops, chain, cursor, written, shares, moves)


def overwritten(chain: Chain, at: jax.Array, ends: Ends, after: jax.Array, steps: int) -> Removal:
    """`frame_writes.overwritten`, likewise."""
    return frame_store.overwritten(ops, chain, at, ends, after, steps)


def places(chain: Chain, at: jax.Array, slots: jax.Array, depth: int, following: bool) -> jax.Array:
    """`frames.places`: slots int32 [n]."""
    from functional_rb.cpu_kernels.frame_ring import encode

    def core(at: jax.Array, slots: jax.Array) -> jax.Array:
        return frame_ring.places(ops, chain, at, slots, depth, following)

    kernel = Kernel("places", _ints(slots.shape[0] * depth), [encode(chain, depth, following)])
    found: jax.Array = choose(kernel if slots.shape[0] else None, core, at, slots)
    return found


def expand(
    rule: Rule,
    lanes: Lanes,
    age: jax.Array,
    next_age: jax.Array,
    slots: jax.Array,
    draws: jax.Array,
    live: jax.Array | None,
    by_trajectory: bool,
) -> Slices:
    """`windows.expand`: slots int32 [S], draws int32 [S, 2], live bool [S] or None."""
    ring = lanes.ring

    def core(ends: Ends, age: Any, next_age: Any, slots: Any, draws: Any, live: Any) -> Slices:
        return episode_windows.expand(ops, rule, Lanes(ring, ends), age, next_age, slots, draws, live, by_trajectory)

    shape = (slots.shape[0], rule.length)
    results = Slices(_ints(*shape), _ints(*shape), *(_marks(*shape) for _ in Slices._fields[2:]))
    kernel = Kernel("expand", results, [descriptor.encode_windows(ring, rule, by_trajectory)])
    args = (lanes.ends, age, next_age, slots, draws, live)
    slices: Slices = choose(kernel if slots.shape[0] else None, core, *args)
    return slices


def following(lanes: Lanes, age: jax.Array, slots: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """`windows.following`: slots int32 [m]."""
    ring = lanes.ring

    def core(ends: Ends, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        return episode_windows.following(ops, Lanes(ring, ends), age, slots, n)

    shape = (slots.shape[0], n)
    kernel = Kernel("following", (_ints(*shape), _marks(*shape)), [descriptor.encode_ring(ring)])
    found: tuple[jax.Array, jax.Array] = choose(kernel if slots.shape[0] else None, core, lanes.ends, age, slots)
    return found


def extent(lanes: Lanes, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`windows.extent`: slots int32 [m]."""
    ring = lanes.ring

    def core(ends: Ends, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        return episode_windows.extent(ops, Lanes(ring, ends), age, slots)

    kernel = Kernel("extent", (_ints(*slots.shape), _ints(*slots.shape)), [descriptor.encode_ring(ring)])
    found: tuple[jax.Array, jax.Array] = choose(kernel if slots.shape[0] else None, core, lanes.ends, age, slots)
    return found


def fold(rewards: jax.Array, real: jax.Array, gamma: float) -> tuple[jax.Array, jax.Array]:
    """`returns.fold`: rewards float32 or float64 [m, n, *shape], real bool [m, n]; the core adds up float64."""
    m, n, *shape = rewards.shape

    def core(rewards: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        return returns.fold(ops, rewards, real, gamma)

    results = jax.ShapeDtypeStruct((m, *shape), jnp.float32), _ints(m)
    kernel = Kernel("fold", results, [descriptor.encode_discounts(gamma, n, "float32")])
    worth_it = m and rewards.dtype == jnp.float32
    folded: tuple[jax.Array, jax.Array] = choose(kernel if worth_it else None, core, rewards, real)
    return folded


def plan_line(pending: jax.Array, ended: jax.Array, ids: jax.Array | None, mask: jax.Array | None, n: int) -> Line:
    """`line.plan_line`: ended and mask bool [batch], ids int32 [rows, words]."""
    lanes = pending.shape[0]
    rows = ended.shape[0] + lanes * (n - 1)

    def core(pending: jax.Array, ended: jax.Array, ids: Any, mask: Any) -> Line:
        return lines.plan_line(ops, pending, ended, ids, mask, n)

    results = Line(_ints(rows, n), _marks(rows, n), _marks(rows), _ints(lanes * (n - 1)), _ints(lanes))
    line: Line = choose(Kernel("plan_line", results), core, pending, ended, ids, mask)
    return line


def like(x: jax.Array) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _marks(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bool_)
