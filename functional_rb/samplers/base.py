"""What the buffer asks of a sampler, and what most samplers answer."""

from __future__ import annotations

import abc
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.base.nest import Key
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.draft import Draft
from functional_rb.core.plan import AuxiliaryArray, Plan
from functional_rb.core.sample import AnySample, Items
from functional_rb.core.soundness import Found
from functional_rb.core.strategy import Carried, Selection
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.duplicates import Batch
from functional_rb.structures.ring import Removal, Write

DRAW_LIMIT = 2**31
"""Draws are uniform int32 in [0, 2^31)."""
LEAST_CHANCE = 2.0**-126
"""The least probability of a sample: XLA makes zeros of subnormal floats, and a drawn item's is positive."""


class SamplerBase(abc.ABC):
    """A way of choosing items: a frozen dataclass whose methods are pure functions over a backend's `ops`.

    What it remembers lies in the sum tree, in the draft's auxiliary arrays and in its counters (`Draft.counters.more`).
    Users construct samplers and leave the methods to the buffer. A sampler has `draw_shape`, `draw` and `probabilities`
    of its own; the other methods do by default what fits one that remembers nothing and gives items one by one.
    """

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> AnySample[Items]:
            """The sample of items, for type checkers: each sampler says which of the classes it is."""

    @property
    def remembers(self) -> bool:
        """Whether drawing changes the state."""
        return False

    @property
    def takes_out(self) -> bool:
        """Whether drawing takes items out of the buffer, so that its writer must overwrite none before that."""
        return False

    def most_left(self, size: int, draws: int) -> int:
        """How many items a lane of so many, or fewer, has at most after so many draws of it."""
        return size

    @property
    def has_priorities(self) -> bool:
        """Whether items have priorities."""
        return False

    @property
    def single_law(self) -> bool:
        """Whether the probability of a draw is that of each by itself, so that the weights of a mixture follow from it.

        Otherwise these count all stored items as equally likely.
        """
        return False

    @property
    def heeds_wanted(self) -> bool:
        """Whether a draw of which only the first `draft.wanted` rows count remembers no more than those."""
        return not self.remembers

    @property
    def compares_versions(self) -> bool:
        """Whether it compares what items tell with the version of the policy that learns, see `advanced`."""
        return False

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """The leaves that tell where trajectories end, if the place of stored steps in these is needed."""
        return None

    @property
    def reads(self) -> tuple[Key, ...]:
        """The leaves that it looks at, beside those that tell where trajectories end: a name each, or the names to it.

        Of a sharded buffer a sampler is shown these alone, and has to find them by name.
        """
        return ()

    @property
    def why_nothing(self) -> str:
        """How the error goes on where none of the stored items can be drawn: "has ...; do ..."."""
        return "can be drawn; add items first"

    def check(self, plan: Plan) -> None:
        """Refuse a plan that does not fit the sampler."""

    def check_batch(self, plan: Plan, batch: int) -> None:
        """Refuse a batch size that does not fit the sampler."""

    def resolve(self, plan: Plan) -> SamplerBase:
        """The sampler with what it finds in the plan filled in."""
        return self

    def known_leaves(self, plan: Plan) -> tuple[int, ...]:
        """Leaves by position whose values it keeps account of: `rebuilt` is given them, and `update` rewrites none."""
        return ()

    def tree_rows(self, capacity: int) -> int:
        """Rows of the sum tree float32 [rows, FANOUT]; 0 for none."""
        return 0

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """The arrays that it keeps, by name."""
        return {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """The numbers that it keeps: names, and how many int32 each."""
        return ()

    def begin(self, ops: Ops, draft: Draft) -> None:
        """Prepare what an empty buffer holds, beyond zeros."""

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Forget all items, in new arrays: `draft.counters.ends` are still the old.

        By default the tree becomes empty. What is kept of single items means nothing until they come.
        """
        if draft.tree is not None:
            draft.tree = ops.full_like(draft.tree, 0)

    def problem(self, contents: Found) -> str | None:
        """Why what it keeps, read from a file, cannot be of such a buffer; or None."""
        return None

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        """What is known of stored items in slots int32 [n]."""
        return Carried()

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        """Take note of items that come from a buffer of another spec, as `added` does, with what was known of them.

        Of the leaves there are only `known_leaves`, and those that tell where trajectories end, if those were asked.
        """
        self.added(ops, draft, write, leaves, None)

    @abc.abstractmethod
    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        """How many draws a batch takes, as (rows, words)."""

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        """The leading axes of the items of a sample."""
        return (batch,)

    @property
    def steps_in_a_row(self) -> int | None:
        """How many steps each window has, where all steps come in one row, with a single leading axis; else None."""
        return None

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        """Take note of a batch about to be written: the storage and `draft.counters.ends` are still the old."""

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        """Forget items that go before they are overwritten: `draft.counters.ends` are still the old."""

    def updated(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> None:
        """Set priorities float32 [B]."""

    def advanced(self, ops: Ops, draft: Draft, version: Array) -> None:
        """Take note of the version of the policy that learns, an int32 scalar."""
        raise TypeError(f"{type(self).__name__} compares no versions")

    @abc.abstractmethod
    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        """Choose items by draws: the slots where they lie, int32 [n], and their selection."""

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        """Whether n can be drawn now, a bool scalar; by default, whether n are stored."""
        return draft.size(ops) >= n

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        """The least probability of an item that a draw may give, float32 scalar; by default all are equally likely."""
        return even_chance(ops, draft.size(ops))

    @abc.abstractmethod
    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """The probabilities with which the next draw begins with stored items, float32 [n] for slots int32 [n].

        Nothing in the draft's arrays is written to.
        """

    def priorities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """The priorities before alpha of stored items, float32 [n] for slots int32 [n], where there are priorities."""
        raise TypeError(f"{type(self).__name__} has no priorities")


def even_chance(ops: Ops, count: Array) -> Array:
    """The chance of each of a number of candidates, int32 scalar: as floats a reciprocal, the same bits everywhere."""
    return scalars.reciprocal(ops, ops.cast(ops.maximum(count, ops.full_like(count, 1)), "float32"))


def check_count(sampler: object, name: str, expected: str, most: int = 2**63) -> None:
    """Make a field a Python int, from 1 to `most`, or refuse it as no such thing as is expected."""
    value = getattr(sampler, name)
    try:
        good = not isinstance(value, bool) and 1 <= operator.index(value) <= most
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"{type(sampler).__name__}: expected {name} as {expected}, got {value!r}")
    object.__setattr__(sampler, name, operator.index(value))


def check_bools(sampler: object, *names: str) -> None:
    """Refuse fields that are no bools: a batch size in the wrong place, say, would count as true."""
    for name in names:
        value = getattr(sampler, name)
        if not isinstance(value, bool):
            raise ValueError(f"{type(sampler).__name__}: expected {name} as a bool, got {value!r}")


def need_one_lane(plan: Plan, who: str, remedy: str) -> None:
    """Refuse buffers of several lanes."""
    if plan.ring.lanes > 1:
        raise ValueError(f"{who}: items of several lanes have no single order, got lanes={plan.lanes}; {remedy}")
