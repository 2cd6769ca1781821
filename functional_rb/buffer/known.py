"""Which buffers the native code knows: by the very classes of their strategies, as a subclass may do otherwise."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.core import episodes
from functional_rb.core.plan import Plan
from functional_rb.core.strategy import Transform
from functional_rb.samplers import (
    InOrder,
    Prioritized,
    PrioritizedSlices,
    Queue,
    Recency,
    Slices,
    SlicesWithoutReplacement,
    Staleness,
    Uniform,
    WithoutReplacement,
)
from functional_rb.samplers.base import SamplerBase
from functional_rb.transforms.n_step_added import NStepOfAdded
from functional_rb.writers import Immutable, MaxValue, Reservoir, RoundRobin, StopWhenFull
from functional_rb.writers.base import WriterBase


class Draws(enum.IntEnum):
    """What the native code draws, as it numbers it (`src/records.h`)."""

    NOTHING = 0
    ITEMS = 1
    SLICES = 2
    EPOCH = 3
    EPOCH_OF_SLICES = 4
    ARRIVALS = 5
    LIMITED = 6
    IN_TURN = 7
    QUEUE = 8
    RECENT = 9
    FROM_AN_END = 10
    CHOSEN = 11
    FRESH_SLICES = 12


class Chooses(enum.IntEnum):
    """How a writer chooses slots, as the native code numbers it; NOTHING also of ways that it does not know."""

    NOTHING = 0
    RESERVOIR = 1
    BEST = 2


class Known(NamedTuple):
    """What the native code does whole of a buffer.

    Attributes:
        draws: single items by position or priority, with a limit to how often each is drawn or without, slices, items
            or slices without replacement, the oldest in turn, rather the newest, or those at one end; single items
            where a writer has chosen slots; and, on CPUs alone, slices of which new ones come first.
        buffer: all of it, with a single lane: `add`, `sample` and `update`.
        updates: updates of priorities, where items lie in rings or in slots that a writer has chosen.
        appends: additions to rings, of any number of lanes, with what the sampler keeps, and with steps that wait for
            others, or frames that items share; and to slots that a writer chooses.
        rewrites: leaves of its items, but for frames that they share.
        plain: whether there are no frames, and no transforms but functions of items.
        masked: whether what is drawn may be masked.
    """

    draws: Draws
    buffer: bool
    updates: bool
    appends: bool
    rewrites: bool
    plain: bool
    masked: bool


def draws_items(sampler: Any) -> bool:
    """Whether a sampler draws single items, with replacement and without a limit, by position or priority."""
    # Types are compared exactly here and below: a subclass of a user's may draw in another way.
    if type(sampler) is Prioritized and not sampler.replacement:
        return False
    return type(sampler) in (Uniform, Prioritized) and sampler.max_times_sampled is None


def what_is_drawn(sampler: Any, writer: WriterBase, chosen: bool) -> Draws:
    """What the native code draws of a sampler, also where a writer that it knows has chosen slots."""
    kind = type(sampler)
    if chosen and kind not in (Uniform, Prioritized):
        return Draws.NOTHING
    if kind is Slices and sampler.fresh_first:
        return Draws.FRESH_SLICES
    if kind in (Slices, PrioritizedSlices):
        return Draws.SLICES
    if kind is SlicesWithoutReplacement:
        return Draws.EPOCH_OF_SLICES
    if kind is WithoutReplacement and sampler.shuffle and writer.in_order:
        return Draws.EPOCH
    if not (chosen or writes_in_turn(writer)):
        return Draws.NOTHING
    if draws_items(sampler) or kind is Staleness:
        return Draws.CHOSEN if chosen else Draws.ITEMS
    if kind is Prioritized and not sampler.replacement:
        return Draws.ARRIVALS
    others: dict[type, Draws] = {Uniform: Draws.LIMITED, Prioritized: Draws.LIMITED, WithoutReplacement: Draws.IN_TURN}
    return (others | {Queue: Draws.QUEUE, Recency: Draws.RECENT, InOrder: Draws.FROM_AN_END}).get(kind, Draws.NOTHING)


def writes_in_turn(writer: object) -> bool:
    """Whether items come to lie around a ring one after the other, or the ring is left as it is."""
    return is_ring(writer) or type(writer) is StopWhenFull


def is_ring(writer: object) -> bool:
    """Whether a writer writes around a ring, or once."""
    return type(writer) in (RoundRobin, Immutable)


def how_slots_are_chosen(plan: Plan, writer: object) -> Chooses:
    """How a writer chooses slots, as far as kernels know it."""
    if type(writer) is not MaxValue:
        return Chooses.RESERVOIR if type(writer) is Reservoir else Chooses.NOTHING
    leaf = plan.leaves[writer.position(plan)]
    is_known = leaf.dtype == "float32" or (leaf.dtype == "int32" and math.prod(leaf.shape) == 1)
    return Chooses.BEST if is_known else Chooses.NOTHING


def keeps_of_new_items(plan: Plan, sampler: object) -> bool:
    """Whether kernels know what a sampler keeps of new items, and the leaves by which it knows them."""
    slices = Slices, PrioritizedSlices, SlicesWithoutReplacement
    if type(sampler) is Staleness:
        return _are_stored_words(plan, [sampler.position(plan)])
    if type(sampler) not in (Uniform, Prioritized, WithoutReplacement, Queue, Recency, InOrder, *slices):
        return False
    if plan.boundaries is None:
        return True
    ends, trajectory = episodes.leaves_of(plan)
    return are_stored_marks(plan, [*ends], [*trajectory])


def are_stored_marks(plan: Plan, ends: Sequence[int], trajectory: Sequence[int]) -> bool:
    """Whether kernels can read at which leaves, by position, episodes end, and which one tells them apart."""
    one_each = all(math.prod(plan.leaves[k].shape) == 1 for k in ends)
    return one_each and _are_stored_words(plan, trajectory) and (plan.frames is None or {*ends} <= {*plan.stored})


def _are_stored_words(plan: Plan, leaves: Sequence[int]) -> bool:
    """Whether kernels can read the words of leaves by their positions."""
    in_words = all(ITEMSIZE[plan.leaves[k].dtype] >= 4 for k in leaves)
    return in_words and (plan.frames is None or {*leaves} <= {*plan.stored})


def stores_as_given(transform: Transform) -> bool:
    """Whether a transform lets items be stored as they are added."""
    kind = type(transform)
    return kind.incoming is Transform.incoming and kind.columns is Transform.columns


def lines_up(plan: Plan, transform: Transform) -> bool:
    """Whether a transform has steps wait for those that follow, in a way that kernels know."""
    if type(transform) is not NStepOfAdded:
        return False
    positions, shapes = transform.positions, [leaf.shape for leaf in plan.leaves]
    ends, of_agents = transform.ends(plan), True
    if positions.agents:
        of_agents = all(shapes[k] == positions.agents for k in positions.truncations)
        ends = [k for k in ends if shapes[k] != positions.agents]
    trajectory = transform.trajectory(plan)
    return of_agents and are_stored_marks(plan, ends, [] if trajectory is None else [trajectory])


def known(plan: Plan, sampler: SamplerBase, writer: WriterBase, transforms: Sequence[Transform]) -> Known:
    """What the native code does whole of a buffer, with the transforms that the core carries out."""
    plain = plan.frames is None and not transforms
    chosen = bool(how_slots_are_chosen(plan, writer))
    draws = what_is_drawn(sampler, writer, chosen)
    has_updates = type(sampler) in (Prioritized, PrioritizedSlices)
    appends = all(stores_as_given(transform) or lines_up(plan, transform) for transform in transforms)
    appends = appends and writes_in_turn(writer) and keeps_of_new_items(plan, sampler)
    appends = appends or (chosen and plain and bool(draws))
    whole = draws_items(sampler) and draws is Draws.ITEMS and plain and plan.ring.lanes == 1 and is_ring(writer)
    rewrites = type(writer) in (RoundRobin, StopWhenFull, Reservoir) and (plan.frames is None or appends)
    rewrites = rewrites and (appends or not sampler.known_leaves(plan))
    masked = draws not in (Draws.ITEMS, Draws.RECENT, Draws.CHOSEN)
    updates = has_updates and (writer.in_order or chosen)
    return Known(draws, whole, updates, appends, rewrites, plain, masked)
