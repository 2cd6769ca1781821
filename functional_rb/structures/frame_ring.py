"""Frames: the observations of successive steps, stored once each in a ring beside the items.

A *frame* is what there is of one observation: of each compacted leaf its value, or the newest part of a stack. Each
lane has a ring of its own for them, longer than that of its items; a frame's sequence number is its number modulo
`Chain.limit`. Beside every item stands at which sequence number the newest frame of its observation lies (`AT`). The k
frames of a stack end there; the newest frame of its next observation is the following one, or, where that shares
nothing with the observation itself, lies `Chain.depth` further on. `core.frame_store` says how they come to be shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from functional_rb.base.nest import Path
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring
from functional_rb.structures import row_layout as layout
from functional_rb.structures.ring import INT32_MAX, Ring
from functional_rb.structures.row_layout import Layout

if TYPE_CHECKING:
    from functional_rb.specs import ArraySpec, NonTensor

# int32 [capacity], twice the sequence number of the newest frame of each item's observation; 1 more after a jump.
AT = "frame_at"
# The frames, laid out as items are: int32 [lanes * room, words], and an array for each wide leaf.
ROWS, WIDE = "frames", "frames_{}"
# Counter int32 [lanes]: the sequence number of each lane's next frame.
CURSOR = "frame_cursor"
# Twice a sequence number is an int32.
SEQUENCE_NUMBERS = 2**30


def most_frames(lanes: int) -> int:
    """How many frames a lane may have room for: sequence numbers go around the ring several times."""
    return min(SEQUENCE_NUMBERS // 4, INT32_MAX // lanes)


@dataclasses.dataclass(frozen=True)
class Stack:
    """A leaf whose frames are stored instead of it."""

    path: Path  # in the item
    leaf: int  # its position among the item's leaves
    following: int | None  # the position of the leaf that has its next value; None if none has
    depth: int  # how many frames it is a stack of; 1 if it is a frame itself
    axis: int  # of the stack, not negative
    shape: tuple[int, ...]  # of a frame
    dtype: str  # its name

    @classmethod
    def of(
        cls, path: Path, spec: ArraySpec | NonTensor, leaf: int, following: int | None, depth: int, axis: int
    ) -> Stack:
        """The stack for a leaf of a spec."""
        axis = axis % len(spec.shape) if depth > 1 else 0
        shape = spec.shape[:axis] + spec.shape[axis + 1 :] if depth > 1 else spec.shape
        return cls(path, leaf, following, depth, axis, shape, spec.dtype)

    def split(self, ops: Ops, leaf: Array) -> Array:
        """Stacks [n, *leaf's shape] as frames [n, depth, *shape]."""
        if self.depth == 1:
            return leaf[:, None]
        return ops.moveaxis(leaf, self.axis + 1, 1) if self.axis else leaf

    def joined(self, ops: Ops, frames: Array) -> Array:
        """Frames [n * depth, *shape] as stacks [n, *leaf's shape]: the inverse of `split`."""
        if self.depth == 1:
            return frames
        stacks = frames.reshape(frames.shape[0] // self.depth, self.depth, *self.shape)
        return ops.moveaxis(stacks, 1, self.axis + 1) if self.axis else stacks


@dataclasses.dataclass(frozen=True)
class Chain:
    """Which leaves are stored as frames, and the lanes' rings of these."""

    stacks: tuple[Stack, ...]  # the leaves; either all of them have next values or none has
    items: Ring  # the rings of the items
    room: int  # frames of a lane
    # Derived: of the stacks, in ascending order.
    depths: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    # Derived: frames of the deepest stack; so many are written where nothing can be shared.
    depth: int = dataclasses.field(init=False, repr=False, compare=False)
    layout: Layout = dataclasses.field(init=False, repr=False, compare=False)  # derived: how a frame is stored

    def __post_init__(self) -> None:
        object.__setattr__(self, "depths", tuple(sorted({stack.depth for stack in self.stacks})))
        object.__setattr__(self, "depth", self.depths[-1])
        plan = layout.plan(tuple((stack.path, stack.shape, stack.dtype) for stack in self.stacks))
        object.__setattr__(self, "layout", plan)

    @property
    def paired(self) -> bool:
        """Whether leaves have next values beside their own."""
        return self.stacks[0].following is not None

    @property
    def limit(self) -> int:
        """Coordinates lie below this number, a multiple of the room."""
        return SEQUENCE_NUMBERS // self.room * self.room

    @property
    def most(self) -> int:
        """The largest number of frames that a step takes."""
        return 2 * self.depth if self.paired else self.depth

    @property
    def leaves(self) -> frozenset[int]:
        """The positions of all leaves that are rebuilt."""
        return frozenset(k for stack in self.stacks for k in (stack.leaf, stack.following) if k is not None)

    def slots(self, lane: Array, sequence_number: Array) -> Array:
        """The places where frames lie, by their sequence numbers."""
        place = sequence_number % self.room
        return place if self.items.lanes == 1 else lane * self.room + place


def read(
    ops: Ops, chain: Chain, auxiliary: Mapping[str, Array], slots: Array, wanted: Sequence[int]
) -> dict[int, Array]:
    """The rebuilt leaves at some positions, [n, *shape], of the items in slots int32 [n], from the auxiliary arrays."""
    rebuilt: dict[int, Array] = {}
    for depth in chain.depths:
        stacks = [(k, stack) for k, stack in enumerate(chain.stacks) if stack.depth == depth]
        current = {k: stack.leaf for k, stack in stacks if stack.leaf in wanted}
        nexts = [(k, stack.following) for k, stack in stacks]
        following = {k: leaf for k, leaf in nexts if leaf is not None and leaf in wanted}
        asked = [(which, positions) for which, positions in ((False, current), (True, following)) if positions]
        # Mostly both of the same stacks.
        for group in [asked] if len(asked) == 2 and current.keys() == following.keys() else [[one] for one in asked]:
            at = [places(ops, chain, auxiliary[AT], slots, depth, which) for which, _ in group]
            batches = gathered(ops, chain, auxiliary, tuple(group[0][1]), at)
            for (_, positions), leaves in zip(group, batches, strict=True):
                rebuilt |= {positions[k]: leaf for k, leaf in leaves.items()}
    return rebuilt


@replaceable
def places(ops: Ops, chain: Chain, at: Array, slots: Array, depth: int, following: bool) -> Array:
    """Where the frames of stacks lie.

    Args:
        chain: of the buffer.
        at: int32 [capacity], the array `AT`.
        slots: int32 [n], of items.
        depth: of the stacks.
        following: whether of next values.

    Returns:
        int32 [n * depth], among the frames, each stack's oldest one first.
    """
    lane, code = slots // chain.items.length, ops.take(at, slots)
    newest = code >> 1
    if following:
        # Next values are one frame further on, or, where they share none with the item's own, a whole stack.
        newest = ring.advance(ops, newest, 1 + (code & 1) * (chain.depth - 1), chain.limit)
    return places_before(ops, chain, lane, newest, depth)


def places_before(ops: Ops, chain: Chain, lane: Array, newest: Array, depth: int) -> Array:
    """The places [n * depth] of frames up to the newest ones, at sequence numbers int32 [n] of lanes int32 [n]."""
    if depth == 1:
        return chain.slots(lane, newest)
    sequence_number = ring.retreat(ops, newest[:, None], depth - 1 - ops.arange(depth, like=newest), chain.limit)
    return chain.slots(lane[:, None], sequence_number).reshape(-1)


@replaceable
def gathered(
    ops: Ops, chain: Chain, auxiliary: Mapping[str, Array], chosen: tuple[int, ...], batches: Sequence[Array]
) -> list[dict[int, Array]]:
    """Some stacks [n, *leaf's shape] of one depth, by their place in the chain, for batches of their frames' places."""
    read = layout.read_batches(ops, chain.layout, auxiliary[ROWS], wides(auxiliary, chain), batches, chosen)
    return [{k: chain.stacks[k].joined(ops, leaf) for k, leaf in zip(chosen, x, strict=True)} for x in read]


def wides(auxiliary: Mapping[str, Array], chain: Chain) -> list[Array]:
    """The arrays that hold wide frames."""
    return [auxiliary[WIDE.format(k)] for k in range(len(chain.layout.wide))]
