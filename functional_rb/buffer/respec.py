"""Another spec for the items of a buffer: which specs there may be, and what becomes of the arrays.

The new buffer is as if the items had been added to it, the oldest first, with their priorities. Where
every item can stay in its slot, the rows and frames are the old ones; else the items are moved. All that is small is
made anew: ends, tree, and what sampler and writer keep, from what the old ones know of the items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, DeviceLike
from functional_rb.buffer import functions
from functional_rb.buffer.functions import Stored
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core import episodes, frame_store, handles
from functional_rb.core.counters import REFUSED
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.episodes import NEWEST_ID, NEXT_STEP_IN_EPISODE, STEP_IN_EPISODE
from functional_rb.core.plan import Plan
from functional_rb.core.strategy import Carried, Transform
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.epochs import EPOCHS_DONE
from functional_rb.samplers.importance import raised
from functional_rb.samplers.staleness import VERSION
from functional_rb.structures import frame_ring, ring, row_layout
from functional_rb.structures.ring import RingState, Write
from functional_rb.writers import MaxValue, Reservoir

WHO = "with_spec"
# Is called before items, or frames, are written to slots int32 [n].
Prepare = Callable[[Array], None]


# ---------------------------------------------------------------- what may change


def check(old: BufferSpec, new: BufferSpec) -> None:
    """Refuse a spec under which the items would be others, or that asks what the old one does not know."""
    here, there = _kinds(old), _kinds(new)
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"{WHO}: BufferSpec.item: leaf {name!r}: the buffer's items have {_shown(here.get(name))}, and the new "
                f"spec {_shown(there.get(name))}; items never change: add them to a new buffer instead"
            )
    ours, theirs = (_lasting(spec) for spec in (old, new))
    if ours != theirs:
        raise ValueError(
            f"{WHO}: BufferSpec.transforms: what is stored was made by {ours}, and the new spec has {theirs}; these "
            f"cannot change, while transforms of what is sampled, as n_step(at='sample') and her, can"
        )
    stacks, others = (() if spec.plan.frames is None else spec.plan.frames.stacks for spec in (old, new))
    if stacks != others:
        why = "which leaves are stored as frames cannot change: add the items to a new buffer instead"
        raise _differs("BufferSpec.compact", old.compact, new.compact, why)
    if (old.lanes or 1) != (new.lanes or 1):
        why = "which environment a step is of cannot change: add the items to a new buffer instead"
        raise _differs("BufferSpec.lanes", old.lanes, new.lanes, why)
    if isinstance(new.writer, Reservoir) and (old.writer != new.writer or old.capacity != new.capacity):
        why = "what is stored would be no uniform sample of all that was ever added"
        if old.writer != new.writer:
            raise _differs("BufferSpec.writer", old.writer, new.writer, why)
        raise _differs("BufferSpec.capacity", old.capacity, new.capacity, why)
    if new.writer.in_order and not old.writer.in_order:
        raise ValueError(
            f"{WHO}: BufferSpec.writer: the buffer has {old.writer}, which chooses slots, got {new.writer}, which "
            f"needs items in the order of their adding, and nothing tells that; add rb.items(state) to a new buffer "
            f"instead"
        )
    if _alpha(old) == 0 and (_alpha(new) or 0) > 0:
        raise ValueError(
            f"{WHO}: alpha: the buffer has 0, which keeps no priorities but whether they are positive, got "
            f"{_alpha(new)}; go by a spec with sampler=frb.Uniform(), and all items get the priority of a new one"
        )


def _differs(field: str, has: object, got: object, why: str) -> ValueError:
    return ValueError(f"{WHO}: {field}: the buffer has {has}, got {got}; {why}")


def _kinds(spec: BufferSpec) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in zip(spec.plan.names, spec.plan.leaves, strict=True)}


def _shown(kind: tuple[tuple[int, ...], str] | None) -> str:
    return "none" if kind is None else f"{kind[1]} of shape {kind[0]}"


# The transforms that have a part in what is stored.
def _lasting(spec: BufferSpec) -> list[Transform]:
    return [x for x in spec.transforms if x.columns(spec.plan) or x.auxiliary(spec.plan)]


def _alpha(spec: BufferSpec) -> float | None:
    return getattr(spec.sampler, "alpha", None) if spec.sampler.has_priorities else None


def check_room(old: BufferSpec, new: BufferSpec, sizes: Array) -> None:
    """Refuse to lose items of a buffer that never overwrites any: sizes int [lanes], where they are known."""
    most, length = int(sizes.max()), new.plan.ring.length
    if not new.writer.overwrites and most > length:
        where = " of a lane" if new.plan.ring.lanes > 1 else ""
        raise ValueError(
            f"{WHO}: BufferSpec.capacity: the {most} items{where} do not fit into {length}, and {new.writer} loses "
            f"none; give a larger capacity, or writer=frb.RoundRobin(), which keeps the newest"
        )


def is_label(old: BufferSpec, new: BufferSpec) -> bool:
    """Whether all arrays mean the same under both: only what is asked at each call changes, as beta and batch size."""
    return (
        stays(old, new)
        and old.plan.auxiliary == new.plan.auxiliary
        and old.plan.counter_names == new.plan.counter_names
        and old.plan.tree_shape == new.plan.tree_shape
        and old.plan.boundaries == new.plan.boundaries
        and _without_beta(old.sampler) == _without_beta(new.sampler)
    )


def _without_beta(sampler: Any) -> object:
    return dataclasses.replace(sampler, beta=0.0) if sampler.has_priorities else sampler


def stays(old: BufferSpec, new: BufferSpec) -> bool:
    """Whether every item can stay in its slot, and its frames where they are."""
    same = old.capacity == new.capacity and old.plan.layout == new.plan.layout and old.plan.frames == new.plan.frames
    return same and old.plan.names == new.plan.names and (new.writer.in_order or old.writer == new.writer)


def same_place(old: BufferSpec, new: BufferSpec) -> bool:
    """Whether the rows lie in the same kind of place under both; mapped files, in the same ones."""
    ours, theirs = old.storage, new.storage
    if isinstance(ours, Memmap) and isinstance(theirs, Memmap):
        return (ours.path, ours.shared) == (theirs.path, theirs.shared)
    return ours == theirs


def check_path(spec: BufferSpec) -> None:
    """Refuse to move items to the files in which they lie."""
    path = getattr(spec.storage, "path", None)
    if path is not None:
        raise ValueError(
            f"{WHO}: the items have to be moved, and {path} has the files in which they lie; give storage=frb.Memmap() "
            f"another path"
        )


# ---------------------------------------------------------------- the arrays


class Items(NamedTuple):
    """The items that go over.

    Attributes:
        slots: int32 [n], where they lie; entry `k * lanes + e` is the k-th of lane e, the oldest first. In bounds.
        live: bool [n], which there are.
        sizes: int32 [lanes], how many of each lane.
    """

    slots: Array
    live: Array
    sizes: Array


# Bytes of items that are moved at a time.
CHUNK = 2**23


def step_of(spec: BufferSpec) -> int:
    """How many items are moved at a time: as many as `CHUNK` bytes hold, at least one."""
    return max(1, CHUNK // max(spec.item_bytes, 1))


def with_spec(
    ops: Ops,
    state: State | Arrays,
    old: BufferSpec,
    new: BufferSpec,
    device: DeviceLike = None,
    stored: Stored | None = None,
    step: int | None = None,
    prepare: Prepare | None = None,
    prepare_frames: Prepare | None = None,
) -> Arrays:
    """The arrays of a state under another spec, one that `check` has passed.

    Args:
        state: of the old spec; its arrays are not written to.
        old: the state's spec.
        new: the spec of the arrays that are returned.
        device: where the state's arrays lie.
        stored: arrays of zeros for the items, if they are to be moved there; frames by name among the auxiliary arrays.
        step: so many items are moved at a time; None for all at once, where the arrays' content is not known.
        prepare: called before items are written.
        prepare_frames: called before frames are written.

    Returns:
        The arrays: rows, wide arrays and frames are the old ones where items stay in their slots.
    """
    change = _Change(ops, state, old, new, device, stored)
    change.carry_counts()
    source = change.wanted_leaves()
    change.plan_write(source)
    change.carry_steps(source)
    new.sampler.rebuilt(ops, change.after, change.write, source, change.carried())
    change.after.counters = change.after.counters.replace(ends=change.write.after)
    if stored is not None or not change.same:
        change.move(step, prepare)
        change.move_frames(step, prepare_frames)
    return change.after.finish(ops)


class _Change:
    """A change of spec under way.

    Attributes:
        old, new: the specs.
        before, after: the drafts of the old state and of the new one.
        same: whether every item stays in its slot.
        items: the items that go over.
        write: where they go, once that is planned.
    """

    write: Write

    def __init__(
        self,
        ops: Ops,
        state: State | Arrays,
        old: BufferSpec,
        new: BufferSpec,
        device: DeviceLike,
        stored: Stored | None,
    ) -> None:
        self.ops, self.old, self.new, self.same = ops, old, new, stays(old, new)
        self.before = before = Draft.of(state, old.plan)
        self.items = _items_of(ops, before, new.plan)
        if stored is None and self.same:
            frames = {name: before.auxiliary[name] for name in frame_store.auxiliary(old.plan)}
            stored = before.rows, before.wide, frames
        self.after = Draft.of(functions.init(ops, new, device, stored), new.plan)

    def carry_counts(self) -> None:
        """Take over what has been counted, and what waits to be written."""
        ops, after = self.ops, self.after
        ours, theirs, alpha, power = self.before.counters, after.counters, _alpha(self.old), _alpha(self.new)
        after.counters = theirs.replace(rejected=ours.rejected, stale=ours.stale, invalid=ours.invalid)
        # Frames that are moved get another cursor then.
        kept = REFUSED, EPOCHS_DONE, VERSION, frame_ring.CURSOR
        named = {name: ours.more[name] for name in kept if name in ours.more and name in theirs.more}
        for transform in _lasting(self.new):
            named |= {name: ours.more[name] for name, _ in transform.counters(self.new.plan)}
            after.auxiliary |= {name: self.before.auxiliary[name] for name in transform.auxiliary(self.new.plan)}
        after.count(**named)
        if alpha is not None and power is not None:
            # What is stored was raised to the old alpha, and is to be raised to the new one.
            peak = raised(ops, ops.bitcast(ours.peak.reshape(1, 1), "float32")[0], alpha, power)
            after.counters = after.counters.replace(peak=ops.bitcast(peak.reshape(1, 1), "int32")[0, 0])

    def wanted_leaves(self) -> Sequence[BackendArray]:
        """The leaves that have to be looked at, [n, *shape] each, by their place in the new spec; None for others."""
        new = self.new.plan
        wanted = {*self.new.sampler.known_leaves(new)}
        if new.boundaries is not None and not self.keeps_steps:
            wanted |= {new.names.index(name) for name in new.boundaries.names}
        if isinstance(self.new.writer, MaxValue):
            wanted.add(nest.position(new.names, self.new.writer.rank_key, WHO))
        places = _places(self.old.plan, new)
        leaves = self.before.read(self.ops, self.items.slots, sorted({places[k] for k in wanted})) if wanted else {}
        return [leaves[places[k]] if k in wanted else None for k in range(len(new.leaves))]

    @property
    def keeps_steps(self) -> bool:
        """Whether the steps in their episodes are known, and go by the same boundaries."""
        return self.old.plan.boundaries is not None and self.new.plan.boundaries == self.old.plan.boundaries

    def plan_write(self, leaves: Sequence[Array]) -> None:
        """Plan where the items go, with handles that are either their own or nobody's."""
        ops, before, after, items, new = self.ops, self.before, self.after, self.items, self.new.plan
        writer, ends = self.new.writer, before.counters.ends
        if self.same and not new.in_order:  # in slots that were chosen all is as it was
            after.auxiliary |= {name: before.auxiliary[name] for name in writer.auxiliary(new)}
            after.count(**{name: before.counters.more[name] for name, _ in writer.counters(new)})
            self.write = Write(items.slots, None, items.live, items.sizes, ends, None)
            return
        nothing = ops.full_like(after.counters.ends.sizes, 0)
        first = nothing
        if new.in_order:
            first = self.first_sequence_numbers(ends)
        else:
            turn = self.unused_turn(ends)
            slots = ops.arange(new.capacity, like=items.slots)
            last = slots + (turn - 1) * new.capacity  # so that the next is of that turn
            after.auxiliary[handles.CURRENT] = ops.where(turn > 0, -2 - last, ops.full_like(slots, -1))
        after.counters = after.counters.replace(ends=RingState(first, nothing))
        self.write = writer.plan_write(ops, after, leaves, items.slots.shape[0], items.live, None)

    def first_sequence_numbers(self, ends: RingState) -> Array:
        """The sequence numbers of the lanes' oldest items, int32 [lanes]."""
        ops, ours, theirs, sizes = self.ops, self.old.plan.ring, self.new.plan.ring, self.items.sizes
        if ours == theirs:
            return ring.retreat(ops, ends.cursors, sizes, ours.limit)
        if theirs.lanes > 1:
            # Handles depend on the capacity: of other turns than any before, they are nobody's.
            return (self.unused_turn(ends) + ops.full_like(sizes, 0)) * theirs.length
        # One lane's handles do not, as long as they lie below both limits and the items' have no gap.
        whole = (ends.cursors >= sizes) & (ends.cursors <= theirs.limit)
        return ops.where(whole, ends.cursors - sizes, ends.cursors % theirs.limit)

    def unused_turn(self, ends: RingState) -> Array:
        """The first of the new turns, int32 scalar, whose handles are beyond all of the old ones.

        Where that is too far, numbers begin again: beyond those of the old ones that have begun again already.
        """
        ops, old, new = self.ops, self.old.plan, self.new.plan
        if old.in_order:
            turns = (ends.cursors - 1) // old.ring.length + 1
        else:
            current = self.before.auxiliary[handles.CURRENT]
            turns = ops.where(current < -1, -2 - current, current) // old.capacity + 1
        begun = ops.where(turns < ring.INT32_MAX // old.capacity // 2, turns, ops.full_like(turns, 0))
        turn, again = ((ops.cummax(x)[-1] * old.capacity - 1) // new.capacity + 1 for x in (turns, begun))
        return ops.where(turn <= ring.INT32_MAX // new.capacity - 2, turn, again)

    def carry_steps(self, leaves: Sequence[Array]) -> None:
        """Take over the steps in their episodes, or else find them by what marks the ends."""
        if self.new.plan.boundaries is None:
            return
        if not self.keeps_steps:
            episodes.note(self.ops, self.after, self.write, leaves, self.items.slots.shape[0])
            return
        steps = self.before.auxiliary[STEP_IN_EPISODE]
        if not self.same:
            of_items = self.ops.take(steps, self.items.slots)
            steps = self.set(self.after.auxiliary[STEP_IN_EPISODE], self.of_slots(of_items))
        self.after.auxiliary[STEP_IN_EPISODE] = steps
        numbers = self.before.counters.more
        self.after.count(**{name: numbers[name] for name in (NEXT_STEP_IN_EPISODE, NEWEST_ID) if name in numbers})

    def carried(self) -> Carried:
        """What the old sampler knows of the items, with values to the new power."""
        carried = self.old.sampler.carried(self.ops, self.before, self.items.slots)
        ours, theirs = _alpha(self.old), _alpha(self.new)
        if carried.values is None or ours is None or theirs is None:
            return carried._replace(values=None, known=None)
        return carried._replace(values=raised(self.ops, carried.values, ours, theirs))

    def of_slots(self, array: Array) -> Array:
        """An array [n, ...] of the items in the order of the slots that are written."""
        return row_layout.pick(self.ops, array, self.write.source, self.write.slots.shape[0])

    @property
    def live(self) -> Array:
        """Which slots get an item."""
        return self.items.live if self.write.live is None else self.write.live

    def set(self, array: Array, values: Array) -> Array:
        """An array with values [slots, ...] of the items in their new slots."""
        ops, slots = self.ops, self.write.slots
        old = ops.take(array, slots)
        return ops.set_at(array, slots, ops.where(row_layout.along(self.live, values), values, old))

    def move(self, step: int | None, prepare: Prepare | None) -> None:
        """Write the items to their new slots."""
        ops, before, after, old, new = self.ops, self.before, self.after, self.old.plan, self.new.plan
        places, origins, live = _places(old, new), self.of_slots(self.items.slots), self.live
        n = self.write.slots.shape[0]
        for start in range(0, n, step or max(n, 1)):
            chunk = slice(start, start + (step or n))
            came, slots = origins[chunk], self.write.slots[chunk]
            real: Array | None = live[chunk]
            if step is not None:  # what numbers there are is known, and nothing else is touched
                came, slots, real = came[real], slots[real], None
            if prepare is not None:
                prepare(slots)
            target = after.rows, after.wide, slots
            if old.layout == new.layout:
                after.rows, after.wide = row_layout.copy(ops, before.rows, before.wide, came, *target, real)
                continue
            old_leaves = before.read(ops, came, old.stored)  # the same leaves in another order
            leaves = [old_leaves[places[k]] for k in new.stored]
            after.rows, after.wide = row_layout.store(ops, new.layout, *target, None, real, leaves)

    def move_frames(self, step: int | None, prepare: Prepare | None) -> None:
        """Write what of the items is stored as frames."""
        ours, theirs = self.old.plan.frames, self.new.plan.frames
        if ours is not None and theirs is not None:
            slots = self.items.slots
            at = frame_store.move(self.ops, self.before, self.after, ours, theirs, slots, step, prepare)
            self.after.auxiliary[frame_ring.AT] = self.set(self.after.auxiliary[frame_ring.AT], self.of_slots(at))


# The items that there is room for: the newest of each lane; where slots are chosen, all.
def _items_of(ops: Ops, before: Draft, new: Plan) -> Items:
    old, ends = before.plan, before.counters.ends
    if not old.in_order:
        slots = ops.arange(old.capacity, like=ends.sizes)
        return Items(slots, before.auxiliary[handles.CURRENT] >= 0, ends.sizes)
    length = min(old.ring.length, new.ring.length) if new.in_order else old.ring.length
    sizes = ops.minimum(ends.sizes, ops.full_like(ends.sizes, length))
    if old.frames is not None and new.frames is not None and old.frames != new.frames:
        room = min(old.frames.room, new.frames.room)
        sizes = frame_store.held(ops, before, old.frames, room, sizes)
    place = ops.arange(length, like=sizes)
    live = place < sizes[:, None]
    position = ops.where(live, (ends.sizes - sizes)[:, None] + place, ops.full_like(place, 0))
    lane = ops.arange(old.ring.lanes, like=sizes)[:, None] + ops.full_like(position, 0)
    slots = ring.item_at(ops, old.ring, ends, ring.by_time(lane), ring.by_time(position))[0]
    return Items(slots, ring.by_time(live), sizes)


# Where among the old leaves, and columns, each of the new ones is.
def _places(old: Plan, new: Plan) -> list[int]:
    leaves = [old.names.index(name) for name in new.names]
    return [*leaves, *(len(old.leaves) + list(old.columns).index(name) for name in new.columns)]
