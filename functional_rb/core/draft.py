"""A state in the making: what samplers and writers read, and what they put their new arrays into."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from functional_rb.base.arrays import BackendArray
from functional_rb.core import counters, handles
from functional_rb.core.counters import Counters
from functional_rb.core.plan import Plan
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import frame_ring, row_layout, stored_arrays
from functional_rb.structures.stored_arrays import ROWS, auxiliary_name


class Arrays(NamedTuple):
    """The arrays of a state; see `State`."""

    rows: BackendArray
    wide: tuple[BackendArray, ...]
    tree: BackendArray | None
    counters: BackendArray
    auxiliary: dict[str, BackendArray]

    def each(self, change: Callable[[BackendArray], BackendArray]) -> Arrays:
        """The arrays after a function has changed each of them."""
        tree = None if self.tree is None else change(self.tree)
        auxiliary = {name: change(array) for name, array in self.auxiliary.items()}
        return Arrays(change(self.rows), tuple(map(change, self.wide)), tree, change(self.counters), auxiliary)

    @classmethod
    def of_names(cls, plan: Plan, named: Mapping[str, BackendArray]) -> Arrays:
        """The inverse of `by_name`."""
        wide = stored_arrays.wide_of(plan.layout, named)
        auxiliary = {name: named[auxiliary_name(name)] for name in plan.auxiliary}
        return cls(named[ROWS], wide, named.get("tree"), named["counters"], auxiliary)

    @classmethod
    def of_leaves(cls, plan: Plan, leaves: Iterable[BackendArray]) -> Arrays:
        """The arrays in the order in which `by_name` has them."""
        rows, *rest = leaves
        wide = len(plan.layout.wide)
        *kept, counters = rest[wide:]
        tree = kept.pop(0) if plan.tree_shape else None
        return cls(rows, tuple(rest[:wide]), tree, counters, dict(zip(plan.auxiliary, kept, strict=True)))


class HasArrays(Protocol):
    """What has the arrays of a state as its attributes: a `State`, or `Arrays`."""

    @property
    def rows(self) -> BackendArray: ...

    @property
    def wide(self) -> tuple[BackendArray, ...]: ...

    @property
    def tree(self) -> BackendArray | None: ...

    @property
    def counters(self) -> BackendArray: ...

    @property
    def auxiliary(self) -> dict[str, BackendArray]: ...


def by_name(state: HasArrays, plan: Plan) -> dict[str, BackendArray]:
    """The arrays of a state by their names (see `stored_arrays`), in the order of the leaves of a state as a pytree."""
    auxiliary = {name: state.auxiliary[name] for name in plan.auxiliary}
    return {**stored_arrays.named(state.rows, state.wide, state.tree, auxiliary), "counters": state.counters}


@dataclasses.dataclass
class Draft:
    """The arrays of a state by name, its counters read. Functions exchange the fields, never what is in an array.

    (On torch an array's content does change as it is written, so what is needed of the old one is read before.)

    Attributes:
        plan: of the buffer.
        rows, wide, tree, auxiliary: the arrays, as in `State`.
        counters: by name.
        origin: the counters that the draft began with, by name and as their vector.
        wanted: int32 scalar, how many rows of a draw count, from the first on; None for all.
    """

    plan: Plan
    rows: Array
    wide: tuple[Array, ...]
    tree: Array | None
    auxiliary: dict[str, Array]
    counters: Counters
    origin: tuple[Counters, Array]
    wanted: Array | None = None

    @classmethod
    def of(cls, state: HasArrays, plan: Plan) -> Draft:
        """A draft that begins as a state is."""
        numbers = counters.read(plan, state.counters)
        origin = numbers, state.counters
        return cls(plan, state.rows, state.wide, state.tree, dict(state.auxiliary), numbers, origin)

    def finish(self, ops: Ops) -> Arrays:
        """The arrays of the new state."""
        numbers, vector = self.origin
        # Where nothing was counted the vector is handed on as it is, and a compiled program has nothing to write.
        if self.counters is not numbers:
            vector = counters.write(ops, self.plan, self.counters)
        return Arrays(self.rows, self.wide, self.tree, vector, self.auxiliary)

    @property
    def as_begun(self) -> Arrays:
        """The arrays as they are now, with the counters that the draft began with."""
        return Arrays(self.rows, self.wide, self.tree, self.origin[1], self.auxiliary)

    @property
    def known_tree(self) -> Array:
        """The tree, of a sampler that has one."""
        assert self.tree is not None
        return self.tree

    def count(self, **numbers: Array) -> None:
        """Exchange some of the sampler's or the writer's numbers."""
        self.counters = self.counters.with_more(**numbers)

    def size(self, ops: Ops) -> Array:
        """How many items are stored, an int32 scalar."""
        return counters.total(ops, self.counters.ends.sizes)

    def locate(self, ops: Ops, wanted: Array) -> tuple[BackendArray, BackendArray]:
        """The slot of each handle int32 [B], in bounds whatever it is, and whether its item is still there."""
        return handles.locate(ops, self.plan, self.counters.ends, self.auxiliary, wanted)

    def handles_of(self, ops: Ops, slots: Array) -> BackendArray:
        """The handles of the items that lie in given slots now."""
        return handles.of_slots(ops, self.plan, self.counters.ends, self.auxiliary, slots)

    def stored(self, ops: Ops) -> Array:
        """In which slots an item lies, bool [capacity]."""
        return handles.stored(ops, self.plan, self.counters.ends, self.auxiliary)

    def read(self, ops: Ops, slots: Array, wanted: Sequence[int]) -> dict[int, BackendArray]:
        """The leaves at some positions, [n, *shape], of the items in slots int32 [n]: stored rows or shared frames."""
        plan = self.plan
        frames: dict[int, Array] = {}
        if plan.frames is not None and not plan.frames.leaves.isdisjoint(wanted):
            frames = frame_ring.read(ops, plan.frames, self.auxiliary, slots, wanted)
        stored = tuple(k for k, position in enumerate(plan.stored) if position in set(wanted))
        if not stored:
            return frames
        leaves = row_layout.read_part(ops, plan.layout, self.rows, self.wide, slots, stored)
        return frames | {plan.stored[k]: leaf for k, leaf in zip(stored, leaves, strict=True)}

    def store(self, ops: Ops, slots: Array, source: Array | None, live: Array | None, leaves: Sequence[Array]) -> None:
        """Write rows of a batch, leaves [B, *shape] by position, to slots, those that are not stored as frames."""
        plan = self.plan
        chosen = leaves if len(plan.stored) == len(leaves) else [leaves[position] for position in plan.stored]
        self.rows, self.wide = row_layout.store(ops, plan.layout, self.rows, self.wide, slots, source, live, chosen)
