"""The pure functions, written once over a backend's `ops`. Leaves come flat and checked; see `checks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from functional_rb import counters, layout, ring
from functional_rb.buffer_spec import BufferSpec
from functional_rb.draft import Arrays, Draft
from functional_rb.ops import Array, Ops, settled
from functional_rb.samplers.base import Batch, Drawn, Duplicates
from functional_rb.state import State

NOTHING = -1
"""The handle of what could not be drawn."""


def init(ops: Ops, spec: BufferSpec, device: Any = None) -> Arrays:
    """An empty buffer."""
    rows, wide = layout.allocate(ops, spec.layout, spec.capacity, device)
    tree = None if spec.tree_shape is None else ops.zeros(spec.tree_shape, "float32", device)
    kept = {}
    for name, array in spec.kept.items():
        zeros = ops.zeros(array.shape, array.dtype, device)
        kept[name] = ops.full_like(zeros, array.fill) if array.fill else zeros
    vector = ops.zeros((counters.length(spec),), "int32", device)
    arrays = Arrays(rows, wide, tree, vector, kept)
    if spec.plain:
        return arrays
    draft = Draft.of(arrays, spec)
    spec.sampler.begin(ops, draft)
    spec.writer.begin(ops, draft)
    return draft.finish(ops)


def add(
    ops: Ops,
    state: State | Arrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None = None,
) -> Arrays:
    """Write leaves [batch, *shape], the marked rows only if there is a mask bool [batch].

    Row `t * lanes + e` is step t of lane e. Draws are int32 [batch, words], for a writer that takes any.
    """
    draft = Draft.of(state, spec)
    if batch:
        write = spec.writer.plan(ops, draft, leaves, batch, mask, draws)
        spec.sampler.added(ops, draft, write, leaves, priorities)
        draft.rows, draft.wide = layout.store(
            ops, spec.layout, draft.rows, draft.wide, write.slots, write.source, write.live, leaves
        )
        draft.counters = draft.counters.replace(ends=write.after)
    return draft.finish(ops)


def draw(
    ops: Ops, state: State | Arrays, spec: BufferSpec, draws: Array, beta: Array, batch: int
) -> tuple[Arrays, list[Array], Drawn]:
    """Choose items by draws int32 [rows, words] in [0, 2^31), and read them.

    Returns:
        The arrays afterwards, the leaves, and what is told of them.
    """
    draft = Draft.of(state, spec)
    slots, drawn = spec.sampler.draw(ops, draft, draws, beta, batch)
    told = [x for x in drawn if x is not None]
    slots, *told = settled(ops, slots, *told)
    drawn = Drawn(*(None if x is None else told.pop(0) for x in drawn))
    leaves = layout.read(ops, spec.layout, draft.rows, draft.wide, slots)
    lead = spec.sampler.leading_shape(batch)
    if lead != (batch,):
        leaves = [leaf.reshape(*lead, *leaf.shape[1:]) for leaf in leaves]
    return draft.finish(ops, leaves), leaves, drawn


def update(
    ops: Ops,
    state: State | Arrays,
    spec: BufferSpec,
    wanted: Array,
    priorities: Array | None,
    replacements: Mapping[int, Array],
) -> Arrays:
    """Set priorities [B] and rewrite leaves (by position) of what handles [B] name; the last duplicate wins."""
    draft = Draft.of(state, spec)
    if wanted.shape[0] == 0:
        return draft.finish(ops)
    slots, live = draft.locate(ops, wanted)
    batch = Batch(slots, live, Duplicates.of(ops, slots))
    if replacements:
        _rewrite(ops, draft, batch, replacements)
    if priorities is not None:
        spec.sampler.updated(ops, draft, batch, priorities)
    # -1 stands for what could not be drawn, so it names nothing that was there.
    stale = ring.saturating_add(ops, draft.counters.stale, ops.count(~live & (wanted != NOTHING)))
    draft.counters = draft.counters.replace(stale=stale)
    return draft.finish(ops)


def _rewrite(ops: Ops, draft: Draft, batch: Batch, replacements: Mapping[int, Array]) -> None:
    spec = draft.spec
    winner, replaced = batch.order.winners(ops, batch.live)
    old = layout.read(ops, spec.layout, draft.rows, draft.wide, batch.slots)
    new = [ops.take(replacements[i], winner) if i in replacements else leaf for i, leaf in enumerate(old)]
    spec.writer.rewritten(ops, draft, batch, new, replaced)
    draft.rows, draft.wide = layout.store(ops, spec.layout, draft.rows, draft.wide, batch.slots, None, replaced, new)


def get(ops: Ops, state: State | Arrays, spec: BufferSpec, wanted: Array) -> list[Array]:
    """The leaves of the items that handles name; zeros for those that are gone."""
    draft = Draft.of(state, spec)
    slots, live = draft.locate(ops, wanted)
    rows = _blank(ops, ops.take(state.rows, slots), live)
    return layout.unpack(ops, spec.layout, rows, [_blank(ops, ops.take(a, slots), live) for a in state.wide])


def is_live(ops: Ops, state: State | Arrays, spec: BufferSpec, wanted: Array) -> Array:
    """Whether the item that each handle names is still stored."""
    return Draft.of(state, spec).locate(ops, wanted)[1]


def drawable(ops: Ops, state: State | Arrays, spec: BufferSpec, n: int) -> Array:
    """Whether n can be drawn now, a bool scalar."""
    return spec.sampler.drawable(ops, Draft.of(state, spec), n)


def _blank(ops: Ops, values: Array, live: Array) -> Array:
    return ops.where(layout.along(live, values), values, ops.full_like(values, 0))
