"""What the buffer asks of a sampler, and what a sampler tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from functional_rb.core.auxiliary import AuxiliaryArray
from functional_rb.ops.protocol import Array, Ops

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.episodes import EpisodeBoundaries
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write
    from functional_rb.writers import Writer

DRAW_LIMIT = 2**31
"""Draws are uniform int32 in [0, 2^31)."""
LEAST_CHANCE = 2.0**-126
"""Probabilities are told as normal floats: XLA makes zeros of smaller ones, and what was drawn had some chance."""
NOTHING_MORE: dict[str, Array] = {}
"""The extras without transforms."""


class Selection(NamedTuple):
    """What a sampler chose: see `Sample`, whose fields these become.

    Attributes:
        handles: int32 [B] or [B, length]; -1 where nothing could be drawn.
        weights: float32 [B], 0 where nothing could be drawn.
        probabilities: float32 [B], likewise.
        mask: bool, in the shape of the handles; None if all of them are always real.
        is_first: likewise, of slices only.
        is_last: likewise.
        truncated: likewise.
        extras: what transforms tell, by name, in the shape of the handles.
    """

    handles: Array
    weights: Array
    probabilities: Array
    mask: Array | None = None
    is_first: Array | None = None
    is_last: Array | None = None
    truncated: Array | None = None
    extras: Mapping[str, Array] = NOTHING_MORE


class Carried(NamedTuple):
    """What a sampler knows of items that go over to a buffer of another spec.

    Attributes:
        values: float32 [n], their priorities to the power alpha; None if they have none.
        known: bool [n], of which a priority is known; None if it is of all.
        times: int32 [n], how often each was drawn; None where that was not counted.
    """

    values: Array | None = None
    known: Array | None = None
    times: Array | None = None


class Sampler(Protocol):
    """A way of choosing items: a frozen dataclass whose methods are pure functions over a backend's `ops`.

    Its memory are the tree, arrays of `Draft.kept` and numbers of `Draft.counters.more`. Users construct samplers and
    leave the methods to the buffer. `SamplerBase` has those that many samplers share.
    """

    @property
    def fused(self) -> bool:
        """Whether the kernels that carry whole functions out know this sampler."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether drawing changes the state."""
        ...

    @property
    def has_priorities(self) -> bool:
        """Whether items have priorities."""
        ...

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """The leaves that tell where trajectories end, if the ages of stored steps are needed."""
        ...

    @property
    def why_nothing(self) -> str:
        """What to tell who draws though none of what is stored can be drawn: "has ...; do ..."."""
        ...

    def default_writer(self) -> Writer:
        """The writer of a buffer that names none."""
        ...

    def check(self, plan: Plan) -> None:
        """Refuse a spec that does not fit."""
        ...

    def check_batch(self, plan: Plan, batch: int) -> None:
        """Refuse a batch size that does not fit."""
        ...

    def resolve(self, plan: Plan) -> Sampler:
        """The sampler with what it finds in the spec filled in."""
        ...

    def tree_rows(self, capacity: int) -> int:
        """Rows of the sum tree float32 [rows, FANOUT]; 0 for none."""
        ...

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """The arrays that it keeps, by name."""
        ...

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """The numbers that it keeps: names, and how many int32 each."""
        ...

    def begin(self, ops: Ops, draft: Draft) -> None:
        """Prepare what an empty buffer holds, beyond zeros."""
        ...

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Forget all items, in new arrays: `draft.counters.ends` are still the old."""
        ...

    def problem(self, found: Found) -> str | None:
        """Why what it keeps, read from a file, cannot be of such a buffer; or None."""
        ...

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        """What is known of stored items in slots int32 [n]."""
        ...

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        """Take note of items that come from a buffer of another spec, as `added` does, with what was known of them.

        Of the leaves there are only those that tell where trajectories end, if those were asked.
        """
        ...

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        """How many draws a batch takes, as (rows, words)."""
        ...

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        """The leading axes of the items of a sample."""
        ...

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        """Take note of a batch about to be written: the storage and `draft.counters.ends` are still the old."""
        ...

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        """Forget items that go before they are overwritten: `draft.counters.ends` are still the old."""
        ...

    def updated(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> None:
        """Set priorities float32 [B]."""
        ...

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        """Choose items by draws: the slots where they lie, int32 [n], and what is told of them."""
        ...

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        """Whether n can be drawn now, a bool scalar."""
        ...

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """With which probability the next draw begins with stored items, float32 [n] for slots int32 [n].

        Nothing in the draft's arrays is written to.
        """
        ...

    def priorities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """The priorities before alpha of stored items, float32 [n] for slots int32 [n], where there are priorities."""
        ...


class SamplerBase:
    """What most samplers share: nothing remembered, rings written round and round, items one by one."""

    @property
    def fused(self) -> bool:
        """No."""
        return False

    @property
    def remembers(self) -> bool:
        """No."""
        return False

    @property
    def has_priorities(self) -> bool:
        """No."""
        return False

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """Trajectories do not matter."""
        return None

    @property
    def why_nothing(self) -> str:
        """For samplers that draw anything."""
        return "can be drawn; add items first"

    def default_writer(self) -> Writer:
        """A ring."""
        from functional_rb.writers import RoundRobin

        return RoundRobin()

    def check(self, plan: Plan) -> None:
        """Anything goes."""

    def check_batch(self, plan: Plan, batch: int) -> None:
        """Any will do."""

    def resolve(self, plan: Plan) -> Sampler:
        """Nothing to fill in."""
        resolved: Sampler = self  # type: ignore[assignment]  # those that inherit have the rest of the protocol
        return resolved

    def tree_rows(self, capacity: int) -> int:
        """No tree."""
        return 0

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """No arrays."""
        return {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """No numbers."""
        return ()

    def begin(self, ops: Ops, draft: Draft) -> None:
        """Zeros are right."""

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Nothing is in the tree. What is kept of single items means nothing until they come."""
        if draft.tree is not None:
            draft.tree = ops.full_like(draft.tree, 0)

    def problem(self, found: Found) -> str | None:
        """Anything goes."""
        return None

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        """Nothing."""
        return Carried()

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        """They are new ones."""
        self.added(ops, draft, write, leaves, None)

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        """Items one by one."""
        return (batch,)

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        """Nothing is remembered."""

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        """Nothing is remembered."""

    def updated(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> None:
        """There are no priorities."""

    def priorities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """There are none: who asks has been refused before."""
        raise TypeError(f"{type(self).__name__} has no priorities")

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        """What is stored can be drawn."""
        return draft.size(ops) >= n


def need_order(plan: Plan, who: str) -> None:
    """Refuse a writer that does not keep items in the order of their adding."""
    if not plan.in_order:
        raise ValueError(
            f"{who}: needs items in the order of their adding, and {plan.writer} chooses slots; leave the writer out"
        )


def check_bools(sampler: object, *names: str) -> None:
    """Refuse fields that are no bools: a batch size in the wrong place, say, would count as true."""
    for name in names:
        value = getattr(sampler, name)
        if not isinstance(value, bool):
            raise ValueError(f"{type(sampler).__name__}: expected {name} as a bool, got {value!r}")


def need_one_lane(plan: Plan, who: str, remedy: str) -> None:
    """Refuse lanes."""
    if plan.ring.lanes > 1:
        raise ValueError(f"{who}: items of several lanes have no single order, got lanes={plan.lanes}; {remedy}")


class Batch(NamedTuple):
    """Items that an update names.

    Attributes:
        slots: int32 [B], in bounds.
        live: bool [B], whether the item is still there.
        order: which of equal slots wins.
    """

    slots: Array
    live: Array
    order: Duplicates


class Duplicates(NamedTuple):
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
    def of(cls, ops: Ops, slots: Array) -> Duplicates:
        """Sort slots int32 [B]."""
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


def single(ops: Ops, slots: Array) -> Array:
    """Whether an entry is the first of those with its slot, bool [n]."""
    order = Duplicates.of(ops, slots)
    return ops.take(order.order, order.first) == ops.arange(slots.shape[0], like=slots)
