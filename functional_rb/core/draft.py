"""A state in the making: what samplers and writers read, and what they put their new arrays into."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from functional_rb.core import counters, handles
from functional_rb.core.counters import Counters
from functional_rb.core.plan import Plan
from functional_rb.ops.protocol import Array, Ops

if TYPE_CHECKING:
    from functional_rb.buffer.state import State


class Arrays(NamedTuple):
    """The arrays of a state; see `State`."""

    rows: Array
    wide: tuple[Array, ...]
    tree: Array | None
    counters: Array
    auxiliary: dict[str, Array]


@dataclasses.dataclass
class Draft:
    """The arrays of a state by name, its counters read. Functions exchange the fields, never what is in an array.

    (On torch an array's content does change as it is written, so what is needed of the old one is read before.)

    Attributes:
        plan: of the buffer.
        rows: as in `State`.
        wide: likewise.
        tree: likewise.
        kept: likewise.
        counters: by name.
        origin: the counters that the draft began with, by name and as their vector.
    """

    plan: Plan
    rows: Array
    wide: tuple[Array, ...]
    tree: Array | None
    auxiliary: dict[str, Array]
    counters: Counters
    origin: tuple[Counters, Array]

    @classmethod
    def of(cls, state: State | Arrays, plan: Plan) -> Draft:
        """Begin with a state."""
        numbers = counters.read(plan, state.counters)
        origin = numbers, state.counters
        return cls(plan, state.rows, state.wide, state.tree, dict(state.auxiliary), numbers, origin)

    def finish(self, ops: Ops, after: Sequence[Array] = ()) -> Arrays:
        """The arrays of the new state. Who goes on with it comes after all of this, and after `after`."""
        numbers, vector = self.origin
        if self.counters is not numbers:
            vector = counters.write(ops, self.plan, self.counters)
        if ops.native is not None:
            trees = [] if self.tree is None else [self.tree]
            (vector,) = ops.native.settle([vector], [self.rows, *self.wide, *trees, *self.auxiliary.values(), *after])
        return Arrays(self.rows, self.wide, self.tree, vector, self.auxiliary)

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

    def locate(self, ops: Ops, wanted: Array) -> tuple[Array, Array]:
        """The slot of each handle int32 [B], in bounds whatever it is, and whether its item is still there."""
        return handles.locate(ops, self.plan, self.counters.ends, self.auxiliary, wanted)

    def handles_of(self, ops: Ops, slots: Array) -> Array:
        """The handles of the items that lie in given slots now."""
        return handles.of_slots(ops, self.plan, self.counters.ends, self.auxiliary, slots)
