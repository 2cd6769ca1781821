"""What the buffer asks of a transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from functional_rb.core.auxiliary import AuxiliaryArray
from functional_rb.core.episodes import EpisodeBoundaries
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.row_layout import Layout

Reader = Callable[[Array, Sequence[int]], dict[int, Array]]
"""Reads the leaves at some positions: for slots int32 [m, c], of which row i is for draw i, leaves [m * c, *shape]."""


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
        """The leaves that tell where trajectories end, if the ages of stored steps are needed."""
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
        """How items in their own slots int32 [m, 1] are read, and what is told beside them, [m].

        Real, bool [m], are those that were drawn, the others are there for the shape; draws are int32 [m, words].
        """
        return read, {}


def check_transforms(given: Any) -> tuple[Transform, ...]:
    """Transforms as a tuple in their order.

    Raises:
        TypeError: if one is none.
        ValueError: if there are two of a kind.
    """
    transforms = given if isinstance(given, tuple | list) else (given,)
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise TypeError(f"BufferSpec.transforms: expected some such as frb.n_step(3, 0.99), got {transform!r}")
    ordered = tuple(sorted(transforms, key=lambda transform: transform.order))
    if len({transform.order for transform in ordered}) < len(ordered):
        raise ValueError(f"BufferSpec.transforms: expected at most one of a kind, got {given!r}; leave one out")
    return ordered
