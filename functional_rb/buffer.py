"""The pure functions, written once over a backend's `ops`. Leaves come flat and checked; see `checks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from functional_rb import layout, ring, sum_tree
from functional_rb.buffer_spec import BufferSpec
from functional_rb.ops import Array, Ops
from functional_rb.ring import Counters
from functional_rb.samplers import Drawn, Prioritized
from functional_rb.state import State


class Arrays(NamedTuple):
    """The arrays of a state."""

    rows: Array
    wide: tuple[Array, ...]
    tree: Array | None
    counters: Array


def init(ops: Ops, spec: BufferSpec, device: Any = None) -> Arrays:
    """An empty buffer."""
    rows, wide = layout.allocate(ops, spec.layout, spec.capacity, device)
    tree = None if spec.tree_shape is None else ops.zeros(spec.tree_shape, "float32", device)
    return Arrays(rows, wide, tree, ops.zeros((len(Counters._fields),), "int32", device))


def add(
    ops: Ops,
    state: State | Arrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
) -> Arrays:
    """Write leaves [batch, *shape], the marked rows only if there is a mask bool [batch]."""
    if batch == 0:
        return Arrays(state.rows, state.wide, state.tree, state.counters)
    capacity = spec.capacity
    counters = ring.read(state.counters)
    write = ring.plan_write(ops, counters, batch, capacity, mask)
    stored = layout.store(ops, spec.layout, state.rows, state.wide, write.slots, write.source, write.live, leaves)
    tree, rejected, peak = state.tree, ops.full_like(counters.size, 0), counters.peak
    if isinstance(spec.sampler, Prioritized):
        values, rejected = _initial_values(ops, spec.sampler, state.tree, counters, write, priorities)
        tree = _write_values(ops, state.tree, capacity, write.slots, values, write.live, consecutive=True)
        # Read back from the new tree: XLA would fuse what the values came from, a read of the old one, into
        # this, and to serve that it would copy the tree.
        peak = _highest(ops, peak, sum_tree.get_leaves(ops, tree, write.slots), write.live)
    size = counters.size + ops.minimum(write.written, capacity - counters.size)
    cursor = ring.advance(ops, counters.cursor, write.written, capacity)
    rejected = ring.saturating_add(ops, counters.rejected, rejected)
    return Arrays(*stored, tree, ops.stack([cursor, size, rejected, counters.stale, peak]))


def _initial_values(
    ops: Ops,
    sampler: Prioritized,
    tree: Array | None,
    counters: Counters,
    write: ring.Write,
    priorities: Array | None,
) -> tuple[Array, Array]:
    """The tree's values for new items, and how many of the given priorities were bad (those get the default)."""
    default = sampler.new_value(ops, tree, counters)
    default = default + ops.cast(ops.full_like(write.slots, 0), "float32")
    if priorities is None:
        return default, ops.full_like(counters.size, 0)
    chosen = layout.pick(ops, priorities, write.source, write.slots.shape[0])
    values, good = sampler.stored_value(ops, chosen)
    bad = ~good if write.live is None else ~good & write.live
    return ops.where(good, values, default), ops.count(bad)


def draw(ops: Ops, state: State | Arrays, spec: BufferSpec, draws: Array, beta: Array) -> tuple[list[Array], Drawn]:
    """Choose items by draws int32 [B, words] in [0, 2^31), and read them."""
    counters = ring.read(state.counters)
    slots, drawn = spec.sampler.draw(ops, state.tree, counters, spec.capacity, draws, beta)
    return read(ops, state, spec, slots), drawn


def update(
    ops: Ops,
    state: State | Arrays,
    spec: BufferSpec,
    handles: Array,
    priorities: Array | None,
    replacements: Mapping[int, Array],
) -> Arrays:
    """Set priorities [B] and rewrite leaves (by position) of what handles [B] name; the last duplicate wins."""
    if handles.shape[0] == 0:
        return Arrays(state.rows, state.wide, state.tree, state.counters)
    counters = ring.read(state.counters)
    slots, live = ring.locate(ops, counters, handles, spec.capacity)
    rows, wide, tree = state.rows, state.wide, state.tree
    rejected, peak = ops.full_like(counters.size, 0), counters.peak
    order = _Duplicates.of(ops, slots)
    if replacements:
        winner, replaced = order.winners(ops, live)
        old = read(ops, state, spec, slots)
        new = [ops.take(replacements[i], winner) if i in replacements else leaf for i, leaf in enumerate(old)]
        rows, wide = layout.store(ops, spec.layout, rows, wide, slots, None, replaced, new)
    if priorities is not None and isinstance(spec.sampler, Prioritized):
        values, good = spec.sampler.stored_value(ops, priorities)
        rejected = ops.count(live & ~good)
        winner, replaced = order.winners(ops, live & good)
        tree = _write_values(ops, tree, spec.capacity, slots, ops.take(values, winner), replaced)
        peak = _highest(ops, peak, values, live & good)
    rejected = ring.saturating_add(ops, counters.rejected, rejected)
    stale = ring.saturating_add(ops, counters.stale, ops.count(~live))
    return Arrays(rows, wide, tree, ops.stack([counters.cursor, counters.size, rejected, stale, peak]))


class _Duplicates(NamedTuple):
    """A batch of slots sorted, so that equal ones stand together.

    Attributes:
        order: int32 [B], the positions in sorted order; equal slots keep theirs.
        first: int32 [B], for each position of the batch, where its slot's run begins in sorted order.
        last: int32 [B], and where it ends.
    """

    order: Array
    first: Array
    last: Array

    @classmethod
    def of(cls, ops: Ops, slots: Array) -> _Duplicates:
        order = ops.argsort(slots)
        ascending = ops.take(slots, order)
        last = ops.searchsorted(ascending, slots, "right") - 1
        return cls(order, ops.searchsorted(ascending, slots, "left"), last)

    def winners(self, ops: Ops, applies: Array) -> tuple[Array, Array]:
        """For each position, the last one with the same slot that applies, and whether there is one.

        All positions of a slot get the same answer and so write the same value: no order of writes is assumed.
        """
        step = ops.arange(self.order.shape[0], like=self.order)
        marked = ops.where(ops.take(applies, self.order), step, ops.full_like(step, -1))
        winner = ops.take(ops.cummax(marked), self.last)
        found = winner >= self.first
        return ops.take(self.order, ops.where(found, winner, self.last)), found


def read(ops: Ops, state: State | Arrays, spec: BufferSpec, slots: Array) -> list[Array]:
    """The leaves [B, *shape] that lie in given slots."""
    return layout.read(ops, spec.layout, state.rows, state.wide, slots)


def get(ops: Ops, state: State | Arrays, spec: BufferSpec, handles: Array) -> list[Array]:
    """The leaves of the items that handles name; zeros for those that are gone."""
    slots, live = ring.locate(ops, ring.read(state.counters), handles, spec.capacity)
    rows = _blank(ops, ops.take(state.rows, slots), live)
    return layout.unpack(ops, spec.layout, rows, [_blank(ops, ops.take(a, slots), live) for a in state.wide])


def is_live(ops: Ops, state: State | Arrays, spec: BufferSpec, handles: Array) -> Array:
    """Whether the item that each handle names is still stored."""
    return ring.locate(ops, ring.read(state.counters), handles, spec.capacity)[1]


def _blank(ops: Ops, values: Array, live: Array) -> Array:
    return ops.where(layout.along(live, values), values, ops.full_like(values, 0))


def _write_values(
    ops: Ops,
    tree: Array | None,
    capacity: int,
    slots: Array,
    values: Array,
    live: Array | None,
    consecutive: bool = False,
) -> Array:
    assert tree is not None
    if live is not None:
        values = ops.where(live, values, sum_tree.get_leaves(ops, tree, slots))
    return sum_tree.set_leaves(ops, tree, capacity, slots, values, consecutive)


def _highest(ops: Ops, peak: Array, values: Array, live: Array | None) -> Array:
    """The largest value ever stored, kept as its bits: positive floats are ordered as their bits are."""
    bits = ops.bitcast(values[:, None], "int32")[:, 0]
    if live is not None:
        bits = ops.where(live, bits, ops.full_like(bits, 0))
    return ops.maximum(peak, ops.cummax(bits)[-1])
