"""How a buffer is dealt to shards, by its lanes or by its slots: what each shard holds, and what all of them know.

A sharded buffer consists of two ordinary buffers. The *index* has all lanes, and of the items only the leaves that the
sampler reads, such as those that tell where episodes end: every shard has the same one, and carries out the same draws
with the same key, so that what is drawn is what a buffer that is not sharded draws. The *part* of a shard has the items
of its own lanes, whole: lane `e` lies on shard `e // lanes_each`, so that slices, n-step returns and goals of the
future find all their steps there. Slots of the index are `lane * length + place`, so those of a shard lie side by side,
and a slot of its part is one of the index less the shard's first one. (Handles begin again at other numbers.)

A writer that chooses slots (`WriterBase.in_order` is false) puts an item of any lane into any slot, so that such a
buffer is dealt by its slots: slot `s` lies on shard `s // slots_each`. All shards are told all rows of a batch, the
index's writer chooses where they go, and each part takes those that go to its slots; see `place`.

Where what is written, or what stays, follows from whole items, only the part knows it: how many items n-step returns of
added steps make, and which items lose their frames in compact storage. Then the part is written first, and tells how
many items each lane got and has; see `follow`.
"""

from __future__ import annotations

import dataclasses
import functools

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import Uniform
from functional_rb.structures.ring import INT32_MAX, RingState
from functional_rb.writers import Immutable, RoundRobin


@dataclasses.dataclass(frozen=True)
class Dealing:
    """How a buffer is dealt."""

    spec: BufferSpec  # of the whole buffer
    shards: int  # how many there are, D
    # Lanes of which each shard is given the steps, ceil(lanes / D). Those of the last ones that the buffer does not
    # have, as 5 lanes on 3 shards leave one, are never written.
    lanes_each: int
    index: BufferSpec  # the spec of what all shards know: all lanes, and of the items what sampler and writer read
    part: BufferSpec  # the spec of what a shard holds: its own lanes or slots, whole items, drawn from by slots alone
    asked: BufferSpec  # the spec by which a shard checks what it is given of its own lanes
    index_leaves: tuple[int, ...]  # which leaves of stored items the index has, by position, in its own order

    @property
    def lanes(self) -> int:
        """How many lanes the buffer has."""
        assert self.spec.lanes is not None
        return self.spec.lanes

    @property
    def by_slots(self) -> bool:
        """Whether slots are dealt, wherever the lanes' items lie, and not the lanes with their items."""
        return not self.spec.writer.in_order

    @property
    def units(self) -> int:
        """How many lanes, or slots, are dealt."""
        return self.spec.capacity if self.by_slots else self.lanes

    @property
    def units_each(self) -> int:
        """How many of these a shard has."""
        return self.slots_each if self.by_slots else self.lanes_each

    @property
    def is_even(self) -> bool:
        """Whether all shards have the same number of lanes."""
        return self.lanes == self.lanes_each * self.shards

    @property
    def delays(self) -> bool:
        """Whether a part writes other items than are added, and says itself how many."""
        return any(transform.delays for transform in self.spec.inner)

    @property
    def part_tells(self) -> bool:
        """Whether only a part knows how many items its lanes get, or have afterwards."""
        return self.delays or self.spec.plan.frames is not None

    @property
    def slots_each(self) -> int:
        """The slots of a part."""
        return self.part.capacity

    def first_slots(self) -> tuple[int, ...]:
        """The first slot of each shard in the index, and behind the last one the end: [D + 1]; an empty one has none.

        Example:
            >>> from functional_rb import BufferSpec, Unbounded
            >>> deal(BufferSpec((Unbounded(()),), 15, lanes=5), 4).first_slots()
            (0, 6, 12, 15, 15)
        """
        return tuple(min(shard * self.slots_each, self.spec.capacity) for shard in range(self.shards + 1))


@functools.lru_cache(maxsize=256)
def deal(spec: BufferSpec, shards: int) -> Dealing:
    """Deal the lanes of a buffer to shards, or its slots.

    Example:
        >>> from functional_rb import Binary, BufferSpec, Slices, Unbounded
        >>> item = {"obs": Unbounded((3,)), "done": Binary(())}
        >>> dealing = deal(BufferSpec(item, 80, sampler=Slices(4), lanes=8), 3)
        >>> dealing.lanes_each, dealing.part.capacity, dealing.index.plan.names
        (3, 30, ('done',))
    """
    check(spec)
    plan = spec.plan
    assert spec.lanes is not None
    lanes_each = -(-spec.lanes // shards)
    # The leaves that sampler and writer read: those that tell where episodes end, and those they name.
    names = set() if spec.sampler.boundaries is None else set(spec.sampler.boundaries.names)
    keys = *spec.sampler.reads, *spec.writer.reads
    names |= {key if isinstance(key, str) else "/".join(map(str, key)) for key in keys}
    paths = zip(plan.names, plan.structure.paths, plan.leaves, strict=True)
    read = nest.nested({tuple(map(str, path)): leaf for name, path, leaf in paths if name in names})
    index = BufferSpec(read, spec.capacity, spec.sampler, spec.writer, lanes=spec.lanes)
    if spec.writer.in_order:
        length = plan.ring.length
        if lanes_each * length * shards > INT32_MAX:
            raise ValueError(
                f"init: sharding: {spec.lanes} lanes of {length} items on {shards} shards leave "
                f"{lanes_each * shards - spec.lanes} lanes empty, and with them there are more than 2^31 slots; give a "
                f"number of lanes that the shards divide"
            )
        room, compact = lanes_each * length, spec.compact
        if plan.frames is not None:  # each lane has as much room for observations as in the whole buffer
            assert compact is not None
            spare = (plan.frames.room - plan.frames.items.length) * lanes_each
            compact = dataclasses.replace(compact, spare=spare)
        part = BufferSpec(
            spec.stored, room, Uniform(), spec.writer, lanes=lanes_each, transforms=spec.inner, compact=compact
        )
        asked = dataclasses.replace(writable(spec), capacity=room, lanes=lanes_each, compact=compact)
    else:
        part = BufferSpec(spec.stored, -(-spec.capacity // shards), Uniform(), RoundRobin(), transforms=spec.inner)
        asked = dataclasses.replace(spec, lanes=lanes_each)
    order = tuple(plan.names.index(name) for name in index.plan.names)
    return Dealing(spec, shards, lanes_each, index, part, asked, order)


def writable(spec: BufferSpec) -> BufferSpec:
    """The spec by which items are checked: also those that an `Immutable` buffer is made of."""
    return dataclasses.replace(spec, writer=RoundRobin()) if isinstance(spec.writer, Immutable) else spec


def check(spec: BufferSpec) -> None:
    """Refuse a buffer that cannot be dealt."""
    expected = "init: sharding: expected a buffer"
    if spec.lanes is None:
        raise ValueError(
            f"{expected} with lanes, of which each shard is given its own, got lanes=None; give BufferSpec(lanes=E), "
            f"one for each environment"
        )
    late = [transform for transform in spec.inner if transform.delays]
    if late and not spec.writer.in_order:
        raise ValueError(
            f"{expected} whose steps are stored as they come, as {spec.writer} chooses slots for them, got {late[0]}, "
            f"which makes other items of them; give at='sample', leave the writer out, or leave the sharding out"
        )
    if spec.plan.objects:
        raise ValueError(
            f"{expected} of arrays, which shards send to each other, got Python objects in leaf "
            f"{spec.plan.first_object!r}, which lie in the memory of the process that added them; store arrays in "
            f"their place, such as the tokens of a text, or keep an ordinary buffer in each process"
        )
    if spec.storage.on_host:
        raise ValueError(
            f"{expected} on devices, got storage={spec.storage}; leave the storage out, or leave the sharding out"
        )


# --- over a backend's `ops` -----------------------------------------------------------------------------------------


def own_slots(ops: Ops, dealing: Dealing, slots: Array, shard: Array) -> tuple[BackendArray, BackendArray]:
    """Slots of the index int32 [n] as a shard's own, 0 for those of others, and which are its own, bool [n]."""
    local = slots - shard * dealing.slots_each
    is_own = (local >= 0) & (local < dealing.slots_each)
    return ops.where(is_own, local, ops.full_like(local, 0)), is_own


def real_rows(ops: Ops, dealing: Dealing, shard: Array, steps: int, like: Array) -> BackendArray:
    """Which rows of steps of a part's lanes are of lanes that the buffer has, bool [steps * lanes_each]."""
    lane = ops.arange(steps * dealing.lanes_each, like=like) % dealing.lanes_each
    return lane < dealing.lanes - shard * dealing.lanes_each


def of_all_lanes(ops: Ops, dealing: Dealing, of_shards: Array) -> BackendArray:
    """Rows [D, steps * lanes_each, *shape] of the lanes of each shard as those of all, [steps * lanes, *shape]."""
    shape, steps = of_shards.shape[2:], of_shards.shape[1] // dealing.lanes_each
    by_step = ops.moveaxis(of_shards.reshape(dealing.shards, steps, dealing.lanes_each, *shape), 0, 1)
    padded = by_step.reshape(steps, dealing.shards * dealing.lanes_each, *shape)
    return padded[:, : dealing.lanes].reshape(steps * dealing.lanes, *shape)


def ends_of_shard(ops: Ops, dealing: Dealing, ends: RingState, shard: Array) -> RingState:
    """Where the rings of the index are, as if the lanes of other shards were empty."""
    lane = ops.arange(dealing.lanes, like=ends.sizes)
    is_own = lane // dealing.lanes_each == shard
    return RingState(ends.cursors, ops.where(is_own, ends.sizes, ops.full_like(ends.sizes, 0)))


def ends_of_slots(ops: Ops, dealing: Dealing, ends: RingState, shard: Array) -> RingState:
    """Where the ring of a part is that has some of the slots: as if each of its items had been added once, in order."""
    size = ops.take(sizes_of_shards(ops, dealing, ends), shard.reshape(1))
    return RingState(size % dealing.part.plan.ring.limit, size)


def by_shard(ops: Ops, dealing: Dealing, of_lanes: Array) -> Array:
    """Numbers int32 [lanes] as those of each shard's lanes, [D, lanes_each]; 0 of lanes that there are not."""
    padding = ops.full_like(ops.arange(dealing.shards * dealing.lanes_each - dealing.lanes, like=of_lanes), 0)
    return ops.concat([of_lanes, padding], 0).reshape(dealing.shards, dealing.lanes_each)


def sizes_of_shards(ops: Ops, dealing: Dealing, ends: RingState) -> Array:
    """How many items each shard holds, int32 [D]."""
    if dealing.by_slots:  # which are filled from the first on
        first = ops.arange(dealing.shards, like=ends.sizes) * dealing.slots_each
        left = ops.maximum(ends.sizes - first, ops.full_like(first, 0))
        return ops.minimum(left, ops.full_like(first, dealing.slots_each))
    return ops.cumsum(by_shard(ops, dealing, ends.sizes))[:, -1]


def check_batch(rows: int, shards: int, what: str = "batch_size") -> None:
    """Refuse a batch that cannot be given out in equal parts."""
    if rows % shards:
        near = rows - rows % shards
        would = f"{near} or {near + shards}" if near else f"{shards}"
        raise ValueError(
            f"sample: expected {what} as a multiple of the {shards} shards, each of which gets as many rows, got "
            f"{rows}; {would} would do"
        )
