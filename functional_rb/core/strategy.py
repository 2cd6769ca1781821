"""The protocols of strategies: what the buffer asks of samplers, writers and transforms, and what these answer with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.draft import Draft
from functional_rb.core.plan import AuxiliaryArray, Plan
from functional_rb.core.soundness import Found
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec
from functional_rb.structures.duplicates import Batch
from functional_rb.structures.ring import Removal, Write
from functional_rb.structures.row_layout import Layout

NO_EXTRAS: dict[str, Array] = {}
"""The extras of a sample without transforms."""
Reader = Callable[[Array, Sequence[int]], dict[int, Array]]
"""Reads the leaves at some positions: for slots int32 [m, c], of which row i is for draw i, leaves [m * c, *shape]."""


class Selection(NamedTuple):
    """What a sampler has drawn: see `Sample`, whose fields these become.

    Attributes:
        handles: int32 [B] or [B, length]; -1 where nothing could be drawn.
        weights: float32 [B], 0 where nothing could be drawn.
        probabilities: float32 [B], 0 where nothing could be drawn.
        mask: bool, in the shape of the handles; None if all of them are always real.
        is_first, is_last, truncated: bool, in the shape of the handles, of slices only; None of other samplers.
        extras: what transforms add to a sample, by name, in the shape of the handles.
    """

    handles: Array
    weights: Array
    probabilities: Array
    mask: Array | None = None
    is_first: Array | None = None
    is_last: Array | None = None
    truncated: Array | None = None
    extras: Mapping[str, Array] = NO_EXTRAS


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

    What it remembers lies in the sum tree, in the draft's auxiliary arrays and in its counters (`Draft.counters.more`).
    Users construct samplers and leave the methods to the buffer. `SamplerBase` has those that many samplers share.
    """

    @property
    def fused(self) -> bool:
        """Whether the fused kernels know this sampler."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether drawing changes the state."""
        ...

    @property
    def takes_out(self) -> bool:
        """Whether drawing takes items out of the buffer, so that its writer must overwrite none before that."""
        ...

    @property
    def has_priorities(self) -> bool:
        """Whether items have priorities."""
        ...

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """The leaves that tell where trajectories end, if the place of stored steps in these is needed."""
        ...

    @property
    def why_nothing(self) -> str:
        """For the error where none of the stored items can be drawn, how it goes on: "has ...; do ..."."""
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
        """Choose items by draws: the slots where they lie, int32 [n], and their selection."""
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


class Writer(Protocol):
    """A way of choosing slots for new items: a frozen dataclass whose methods are pure functions over `ops`.

    Users construct writers and leave the methods to the buffer. `WriterBase` has those that many writers share.
    """

    @property
    def fused(self) -> bool:
        """Whether the fused kernels know this writer."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether items lie in the order of their adding, around a ring for each lane."""
        ...

    @property
    def overwrites(self) -> bool:
        """Whether a new item may take the place of an old one."""
        ...

    @property
    def words(self) -> int:
        """Random 31-bit words that each row of a batch takes; 0 for a writer that needs no key."""
        ...

    def check(self, plan: Plan) -> None:
        """Refuse a spec that does not fit."""
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

    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        """Choose where the rows of a batch go, and take note of it."""
        ...

    def rewritten(self, ops: Ops, draft: Draft, batch: Batch, leaves: Sequence[Array], replaced: Array) -> None:
        """Take note of stored items, named by a batch, of which leaves [B, *shape] have been exchanged."""
        ...

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Forget all items, in new arrays, but not which handles there were."""
        ...

    def problem(self, found: Found) -> str | None:
        """Why what it keeps, read from a file, cannot be of such a buffer; or None."""
        ...


class Transform:
    """Something between what is added and what is sampled: a frozen dataclass whose methods are pure over `ops`.

    Positions are those of the item's leaves, and after them the columns that transforms store beside.
    """

    order: ClassVar[int] = 0
    """Transforms are carried out in this order, whatever the order given."""

    words: ClassVar[int] = 0
    """Random 31-bit words that each item of a sample takes."""
    delays: ClassVar[bool] = False
    """Whether items are written later than they are added."""

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """The leaves that tell where trajectories end, if the place of stored steps in these is needed."""
        return None

    def __iter__(self) -> Iterator[Transform]:
        """One that stands alone goes where several go."""
        yield self

    def resolve(self, plan: Plan) -> Transform:
        """The transform with what it finds in the spec filled in, checked."""
        return self

    def columns(self, plan: Plan) -> dict[str, ArraySpec]:
        """What is stored beside each item, by name."""
        return {}

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """The arrays that it keeps, by name."""
        return {}

    def carried(self) -> dict[str, Layout]:
        """Which of those hold items, and how they lie there."""
        return {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """The numbers that it keeps: names, and how many int32 each."""
        return ()

    def rows(self, plan: Plan, batch: int) -> int:
        """How many rows a batch has once it went through `incoming`."""
        return batch

    def incoming(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None
    ) -> tuple[Sequence[Array], Array | None]:
        """The rows that are written for a batch of added ones, and which are real."""
        return leaves, mask

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Forget what waits to be written, in new arrays."""

    def problem(self, found: Found) -> str | None:
        """Why what it keeps, read from a file, cannot be of such a buffer; or None."""
        return None

    def reading(
        self, ops: Ops, draft: Draft, own: Array, real: Array, draws: Array | None, read: Reader
    ) -> tuple[Reader, dict[str, Array]]:
        """A reader of items in their own slots int32 [m, 1], and a sample's entries beside them, [m].

        Real, bool [m], are those that were drawn, the others are there for the shape; draws are int32 [m, words].
        """
        return read, {}


def need_order(plan: Plan, who: str) -> None:
    """Refuse a writer that does not keep items in the order of their adding."""
    if not plan.in_order:
        raise ValueError(
            f"{who}: needs items in the order of their adding, and {plan.writer} chooses slots; leave the writer out"
        )
