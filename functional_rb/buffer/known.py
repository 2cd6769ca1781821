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
    Prioritized,
    PrioritizedSlices,
    Slices,
    SlicesWithoutReplacement,
    Uniform,
    WithoutReplacement,
)
from functional_rb.writers import Immutable, RoundRobin


class Draws(enum.IntEnum):
    """What the native code draws, as it numbers it (`src/lineage.h`)."""

    NOTHING = 0
    ITEMS = 1
    SLICES = 2
    EPOCH = 3
    EPOCH_OF_SLICES = 4


class Known(NamedTuple):
    """What of a buffer the native code does whole.

    Attributes:
        draws: single items by position or priority, slices, or either without replacement.
        buffer: all of it, with a single lane: `add`, `sample` and `update`.
        updates: updates of priorities, where items lie in rings.
        appends: additions to rings, of any number of lanes, with what the sampler keeps.
        plain: whether there are no frames, and no transforms but functions of items.
    """

    draws: Draws
    buffer: bool
    updates: bool
    appends: bool
    plain: bool


def draws_items(sampler: Any) -> bool:
    """Whether a sampler draws single items, with replacement and without a limit, by position or priority."""
    if type(sampler) is Prioritized and not sampler.replacement:
        return False
    return type(sampler) in (Uniform, Prioritized) and sampler.max_times_sampled is None


def is_ring(writer: Any) -> bool:
    """Whether a writer writes around a ring, or once."""
    return type(writer) in (RoundRobin, Immutable)


def keeps_of_new_items(plan: Plan, sampler: Any) -> bool:
    """Whether kernels know what a sampler keeps of new items, and how leaves mark the ends of their episodes."""
    slices = Slices, PrioritizedSlices, SlicesWithoutReplacement
    if type(sampler) not in (Uniform, Prioritized, WithoutReplacement, *slices):
        return False
    if getattr(sampler, "max_times_sampled", None) is not None or not getattr(sampler, "shuffle", True):
        return False
    if plan.boundaries is None:
        return True
    ends, trajectory = episodes.leaves_of(plan)
    one_each = all(math.prod(leaf.shape) == 1 for leaf in ends.values())
    return one_each and all(ITEMSIZE[leaf.dtype] >= 4 for leaf in trajectory.values())


def stores_as_given(transform: Transform) -> bool:
    """Whether a transform lets items be stored as they are added."""
    kind = type(transform)
    return kind.incoming is Transform.incoming and kind.columns is Transform.columns


def known(plan: Plan, sampler: Any, writer: Any, transforms: Sequence[Transform]) -> Known:
    """What the native code does whole of a buffer, with the transforms that the core carries out."""
    plain = plan.frames is None and not transforms
    draws = Draws.NOTHING
    if draws_items(sampler) and is_ring(writer):
        draws = Draws.ITEMS
    elif type(sampler) in (Slices, PrioritizedSlices):
        draws = Draws.SLICES
    elif type(sampler) is WithoutReplacement and sampler.shuffle and writer.in_order and plain:
        draws = Draws.EPOCH
    elif type(sampler) is SlicesWithoutReplacement and plain:
        draws = Draws.EPOCH_OF_SLICES
    has_updates = type(sampler) is PrioritizedSlices or (
        type(sampler) is Prioritized and sampler.max_times_sampled is None
    )
    appends = plan.frames is None and all(map(stores_as_given, transforms)) and is_ring(writer)
    appends = appends and keeps_of_new_items(plan, sampler)
    whole = draws is Draws.ITEMS and plain and plan.ring.lanes == 1
    return Known(draws, whole, has_updates and writer.in_order, appends, plain)
