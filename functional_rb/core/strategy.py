"""What the buffer and its strategies hand to one another, and the hooks of a transform.

Those of a sampler are in `samplers.base`, those of a writer in `writers.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from functional_rb.base.arrays import BackendArray
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.draft import Draft
from functional_rb.core.plan import AuxiliaryArray, Plan
from functional_rb.core.soundness import Found
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec
from functional_rb.structures.row_layout import Layout

# The extras of a sample without transforms.
NO_EXTRAS: dict[str, BackendArray] = {}
Reader = Callable[[BackendArray, Sequence[int]], dict[int, BackendArray]]
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

    handles: BackendArray
    weights: BackendArray
    probabilities: BackendArray
    mask: BackendArray | None = None
    is_first: BackendArray | None = None
    is_last: BackendArray | None = None
    truncated: BackendArray | None = None
    extras: Mapping[str, BackendArray] = NO_EXTRAS


class Carried(NamedTuple):
    """What a sampler knows of items that go over to a buffer of another spec.

    Attributes:
        values: float32 [n], their priorities to the power alpha; None if they have none.
        known: bool [n], of which a priority is known; None if it is of all.
        times: int32 [n], how often each was drawn; None where that was not counted.
        given: bool [n], which lie at or before the end of a fresh window that was given, or lost; None where windows
            are not given for being fresh.
    """

    values: Array | None = None
    known: Array | None = None
    times: Array | None = None
    given: Array | None = None


class Transform:
    """Something between what is added and what is sampled: a frozen dataclass whose methods are pure over `ops`.

    Positions are those of the item's leaves, and after them the columns that transforms store beside.
    """

    # Transforms are carried out in this order, whatever the order given.
    order: ClassVar[int] = 0

    # Random 31-bit words that each item of a sample takes.
    words: ClassVar[int] = 0
    # Whether items are written later than they are added.
    delays: ClassVar[bool] = False

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """The leaves that tell where trajectories end, if the place of stored steps in these is needed."""
        return None

    def __iter__(self) -> Iterator[Transform]:
        """Yield itself: a transform that stands alone goes where several go."""
        yield self

    # A value is its own copy. Else copying would pickle the functions that some transforms hold, which may be lambdas.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

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

    def interrupted(self, ops: Ops, draft: Draft) -> tuple[Sequence[Array], Array | None]:
        """What waits, as rows to be written now that every lane's trajectory stops, and which rows are real.

        It is asked of transforms that carry items from one add to the next, which have to define it. There are as many
        rows as `rows` says of one step of each lane.
        """
        raise TypeError(
            f"{type(self).__name__}: it carries {sorted(self.carried())} from one add to the next, but does not say "
            f"what becomes of that where a trajectory is cut off, as shards on Ray do; define `interrupted`"
        )

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Forget what waits to be written, in new arrays."""

    def problem(self, contents: Found) -> str | None:
        """Why what it keeps, read from a file, cannot be of such a buffer; or None."""
        return None

    def reading(
        self, ops: Ops, draft: Draft, slots: Array, real: Array, draws: Array | None, read: Reader
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
