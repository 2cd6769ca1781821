"""The pure functions, written once over a backend's `ops`. Leaves come flat and checked; see `checks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from functional_rb.base.arrays import BackendArray, DeviceLike
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core import counters, episodes, frame_store
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Reader, Selection
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring, row_layout
from functional_rb.structures.duplicates import Batch, Duplicates
from functional_rb.structures.ring import RingState, Write

Stored = tuple[Array, tuple[Array, ...], Mapping[str, Array]]
"""Rows, wide arrays, and some of the auxiliary arrays by name."""
# The handle of what could not be drawn.
NOTHING = -1


def init(ops: Ops, spec: BufferSpec, device: DeviceLike = None, stored: Stored | None = None) -> Arrays:
    """An empty buffer, in arrays of zeros that are there already, if any."""
    rows, wide, there = stored or (*row_layout.allocate(ops, spec.plan.layout, spec.capacity, device), {})
    tree = None if spec.plan.tree_shape is None else ops.zeros(spec.plan.tree_shape, "float32", device)
    auxiliary = {}
    for name, array in spec.plan.auxiliary.items():
        zeros = there[name] if name in there else ops.zeros(array.shape, array.dtype, device)
        auxiliary[name] = ops.full_like(zeros, array.fill) if array.fill else zeros
    vector = ops.zeros((counters.length(spec.plan),), "int32", device)
    arrays = Arrays(rows, wide, tree, vector, auxiliary)
    draft = Draft.of(arrays, spec.plan)
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
    draft = Draft.of(state, spec.plan)
    if batch:
        for transform in spec.inner:
            leaves, mask = transform.incoming(ops, draft, leaves, batch, mask)
        write_rows(ops, draft, spec, leaves, spec.rows(batch), mask, priorities, draws)
    return draft.finish(ops)


def cut(ops: Ops, state: State | Arrays, spec: BufferSpec) -> Arrays:
    """Let the next step of each lane begin a trajectory; steps that wait for others are written with what they have."""
    draft = Draft.of(state, spec.plan)
    if spec.plan.boundaries is not None:
        episodes.clear(ops, draft)
    for transform in spec.inner:
        if transform.carried():
            leaves, mask = transform.interrupted(ops, draft)
            write_rows(ops, draft, spec, leaves, leaves[0].shape[0], mask, None, None)
    return draft.finish(ops)


def draw(
    ops: Ops,
    state: State | Arrays,
    spec: BufferSpec,
    draws: Array,
    beta: Array,
    batch: int,
    more: Array | None = None,
    wanted: Array | None = None,
) -> tuple[Arrays, list[BackendArray], Selection]:
    """Choose items by draws int32 [rows, words] in [0, 2^31), and read them.

    More draws, int32 [items, words], are for transforms. Wanted, an int32 scalar, is how many rows count, from the
    first on; None for all. Where the order of the two steps matters, as it does to XLA, a backend takes them one by
    one.

    Returns:
        The arrays afterwards, the leaves, and the selection.
    """
    draft = Draft.of(state, spec.plan)
    draft.wanted = wanted
    slots, selection = choose(ops, draft, spec, draws, beta, batch)
    leaves, selection = read_selection(ops, draft, spec, slots, selection, batch, more)
    return draft.finish(ops), leaves, selection


@replaceable
def choose(ops: Ops, draft: Draft, spec: BufferSpec, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
    """The slots int32 [m] that a sampler draws, and its selection; the draft remembers what the sampler does."""
    return spec.sampler.draw(ops, draft, draws, beta, batch)


def read_selection(
    ops: Ops,
    draft: Draft,
    spec: BufferSpec,
    slots: Array,
    selection: Selection,
    batch: int,
    draws: Array | None,
    known: Mapping[int, Array] | None = None,
) -> tuple[list[BackendArray], Selection]:
    """Read what a sampler has drawn, see `read_drawn`: with its leading axes, and the selection with the extras."""
    leaves, extras = read_drawn(ops, draft, spec, slots, selection.handles, draws, known)
    extras = dict(zip(extras, with_leading_axes(spec, batch, [*extras.values()]), strict=True))
    selection = selection._replace(extras={**selection.extras, **extras})
    return with_leading_axes(spec, batch, leaves), selection


def with_leading_axes(spec: BufferSpec, batch: int, arrays: Sequence[BackendArray]) -> list[BackendArray]:
    """Arrays [m, *shape] of all that a batch has, with the leading axes of a sample."""
    lead = spec.sampler.leading_shape(batch)
    return list(arrays) if lead == (batch,) else [x.reshape(*lead, *x.shape[1:]) for x in arrays]


@replaceable
def read_drawn(
    ops: Ops,
    draft: Draft,
    spec: BufferSpec,
    slots: Array,
    handles: Array,
    draws: Array | None,
    known: Mapping[int, Array] | None = None,
) -> tuple[list[BackendArray], dict[str, BackendArray]]:
    """The leaves [m, *shape] in slots int32 [m] that were drawn, as the transforms have them, and what these tell.

    Draws int32 [m, words] in [0, 2^31) are for transforms, None if none takes any; known is what has been read of these
    slots already, by position.
    """
    drawn = slots[:, None]
    extras: dict[str, Array] = {}

    def stored(slots: Array, wanted: Sequence[int]) -> dict[int, Array]:
        # Known is what was read of the drawn slots themselves; transforms read others too.
        at_hand = {k: known[k] for k in wanted if k in known} if known is not None and slots is drawn else {}
        return at_hand | draft.read(ops, slots.reshape(-1), [k for k in wanted if k not in at_hand])

    read: Reader = stored
    for transform in spec.inner:
        words, draws = (None, None) if draws is None else (draws[:, : transform.words], draws[:, transform.words :])
        read, info = transform.reading(ops, draft, drawn, handles.reshape(-1) != NOTHING, words, read)
        extras |= info
    leaves = read(drawn, range(len(draft.plan.leaves)))
    return [leaves[k] for k in range(len(leaves))], extras


def update(
    ops: Ops,
    state: State | Arrays,
    spec: BufferSpec,
    wanted: Array,
    priorities: Array | None,
    replacements: Mapping[int, Array],
) -> Arrays:
    """Set priorities [B] and rewrite leaves (by position) of what handles [B] name; the last duplicate wins."""
    draft = Draft.of(state, spec.plan)
    if wanted.shape[0] == 0:
        return draft.finish(ops)
    slots, live = draft.locate(ops, wanted)
    batch = Batch(slots, live)
    if replacements:
        winner, replaced = Duplicates.of(ops, batch.slots).winners(ops, batch.live)
        # Rows are written whole, so what is not exchanged has to be read.
        old = draft.read(ops, batch.slots, spec.plan.stored)
        new = [ops.take(replacements[k], winner) if k in replacements else old[k] for k in spec.plan.stored]
        spec.writer.rewritten(ops, draft, batch, new, replaced)
        draft.store(ops, batch.slots, None, replaced, new)
    if priorities is not None:
        spec.sampler.updated(ops, draft, batch, priorities)
    # -1 stands for what could not be drawn, so it names nothing that was there.
    stale = ring.saturating_add(ops, draft.counters.stale, ops.count(~live & (wanted != NOTHING)))
    draft.counters = draft.counters.replace(stale=stale)
    return draft.finish(ops)


def advance(ops: Ops, state: State | Arrays, spec: BufferSpec, version: Array) -> Arrays:
    """Tell the sampler the version of the policy that learns, an int32 scalar."""
    draft = Draft.of(state, spec.plan)
    spec.sampler.advanced(ops, draft, version)
    return draft.finish(ops)


def write_rows(
    ops: Ops,
    draft: Draft,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None,
) -> Write:
    """Write rows that have been through all transforms, one at least; see `add`. Returns where they went."""
    write = spec.writer.plan_write(ops, draft, leaves, batch, mask, draws)
    if spec.plan.boundaries is not None:
        # Before the sampler is told, as those of slices weigh steps by where they are in their episodes.
        episodes.note(ops, draft, write, leaves, batch)
    spec.sampler.added(ops, draft, write, leaves, priorities)
    draft.store(ops, write.slots, write.source, write.live, leaves)
    draft.counters = draft.counters.replace(ends=write.after)
    if spec.plan.frames is not None:
        removal = frame_store.added(ops, draft, spec.plan.frames, write, leaves)
        # Items that have lost frames to new ones cannot be read any more.
        spec.sampler.removed(ops, draft, removal)
        draft.counters = draft.counters.replace(ends=removal.after)
    return write


def clear(ops: Ops, state: State | Arrays, spec: BufferSpec) -> Arrays:
    """Take all items out. What changes comes in new arrays; rows and frames stay as they are, tokens of objects go."""
    draft = Draft.of(state, spec.plan)
    spec.sampler.cleared(ops, draft)
    spec.writer.cleared(ops, draft)
    if spec.plan.boundaries is not None:
        episodes.clear(ops, draft)
    for transform in spec.inner:
        transform.cleared(ops, draft)
        if spec.plan.objects:
            draft.auxiliary |= {name: ops.full_like(draft.auxiliary[name], 0) for name in transform.carried()}
    if spec.plan.objects:
        # Tokens that stayed there would keep their objects alive.
        draft.rows = ops.full_like(draft.rows, 0)
    ends, peak = draft.counters.ends, draft.counters.peak
    # Cursors go on, so that a handle of an item that is gone never names a newcomer.
    ends = RingState(ends.cursors, ops.full_like(ends.sizes, 0))
    draft.counters = draft.counters.replace(ends=ends, peak=ops.full_like(peak, 0))
    return draft.finish(ops)


def get(ops: Ops, state: State | Arrays, spec: BufferSpec, wanted: Array) -> list[BackendArray]:
    """The leaves of the items that handles name; zeros for those that are gone."""
    draft = Draft.of(state, spec.plan)
    slots, live = draft.locate(ops, wanted)
    leaves = draft.read(ops, slots, range(len(spec.plan.leaves)))
    return [_blank(ops, leaves[k], live) for k in range(len(spec.plan.leaves))]


def items(ops: Ops, state: State | Arrays, spec: BufferSpec) -> list[BackendArray]:
    """The leaves of all slots, zeros where no item is stored now."""
    draft = Draft.of(state, spec.plan)
    slots = ops.arange(spec.capacity, like=draft.counters.ends.sizes)
    return get(ops, state, spec, draft.handles_of(ops, slots))


def is_live(ops: Ops, state: State | Arrays, spec: BufferSpec, wanted: Array) -> BackendArray:
    """Whether the item that each handle names is still stored."""
    return Draft.of(state, spec.plan).locate(ops, wanted)[1]


def drawable(ops: Ops, state: State | Arrays, spec: BufferSpec, n: int) -> BackendArray:
    """Whether n can be drawn now, a bool scalar."""
    return spec.sampler.drawable(ops, Draft.of(state, spec.plan), n)


def priorities(ops: Ops, state: State | Arrays, spec: BufferSpec, wanted: Array) -> BackendArray:
    """The priorities before alpha of the items that handles name, 0 for those that are gone."""
    draft = Draft.of(state, spec.plan)
    slots, live = draft.locate(ops, wanted)
    return _blank(ops, spec.sampler.priorities(ops, draft, slots), live)


def probabilities(ops: Ops, state: State | Arrays, spec: BufferSpec, wanted: Array) -> BackendArray:
    """The probabilities with which the next draw begins with the items that handles name."""
    draft = Draft.of(state, spec.plan)
    slots, live = draft.locate(ops, wanted)
    return _blank(ops, spec.sampler.probabilities(ops, draft, slots) * ops.cast(live, "float32"), live)


def newest(ops: Ops, state: State | Arrays, spec: BufferSpec, n: int) -> BackendArray:
    """The handles of the n items of each lane that were added last, in their order, int32 [n, lanes]; -1 for none."""
    rings, ends = spec.plan.ring, Draft.of(state, spec.plan).counters.ends
    back = (n - ops.arange(n, like=ends.sizes))[:, None]
    live = back <= ends.sizes
    lane = ops.arange(rings.lanes, like=back)
    # Where a lane has no such item, any number within bounds will do.
    sequence_number = ring.retreat(ops, ends.cursors, ops.where(live, back, ops.full_like(back, 1)), rings.limit)
    return ops.where(live, ring.handle_of(rings, lane, sequence_number), ops.full_like(sequence_number, NOTHING))


def cursor(ops: Ops, state: State | Arrays, spec: BufferSpec) -> BackendArray:
    """The handle of each lane's next item, int32 [lanes]; of stacked states [*axes, lanes]."""
    cursors = counters.cursors(spec.plan, state.counters)
    return ring.handle_of(spec.plan.ring, ops.arange(spec.plan.ring.lanes, like=cursors), cursors)


def _blank(ops: Ops, values: Array, live: Array) -> Array:
    return ops.where(row_layout.along(live, values), values, ops.full_like(values, 0))
