"""Which buffers the native code knows: by the very classes of their strategies, as a subclass may do otherwise."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from functional_rb.core.plan import Plan
from functional_rb.samplers import Prioritized, PrioritizedSlices, Slices, Uniform, WithoutReplacement
from functional_rb.writers import Immutable, RoundRobin


class Draws(enum.IntEnum):
    """What the native code draws, as it numbers it (`src/lineage.h`)."""

    NOTHING = 0
    ITEMS = 1
    SLICES = 2
    EPOCH = 3


class Known(NamedTuple):
    """What of a buffer the native code does whole.

    Attributes:
        draws: single items by position or priority, slices, or items without replacement.
        buffer: all of it: `add`, `sample` and `update`.
        updates: updates of priorities, where items lie in rings.
        plain: whether there are no frames, and no transforms but functions of items.
    """

    draws: Draws
    buffer: bool
    updates: bool
    plain: bool


def draws_items(sampler: Any) -> bool:
    """Whether a sampler draws single items, with replacement and without a limit, by position or priority."""
    if type(sampler) is Prioritized and not sampler.replacement:
        return False
    return type(sampler) in (Uniform, Prioritized) and sampler.max_times_sampled is None


def is_ring(writer: Any) -> bool:
    """Whether a writer writes around a ring, or once."""
    return type(writer) in (RoundRobin, Immutable)


def known(plan: Plan, sampler: Any, writer: Any, plain: bool) -> Known:
    """What the native code does whole of a buffer, which is plain if there are no frames and no transforms."""
    draws = Draws.NOTHING
    if plan.ring.lanes == 1 and draws_items(sampler) and is_ring(writer):
        draws = Draws.ITEMS
    elif type(sampler) in (Slices, PrioritizedSlices):
        draws = Draws.SLICES
    elif type(sampler) is WithoutReplacement and sampler.shuffle and writer.in_order and plain:
        draws = Draws.EPOCH
    has_updates = type(sampler) is PrioritizedSlices or (
        type(sampler) is Prioritized and sampler.max_times_sampled is None
    )
    return Known(draws, draws is Draws.ITEMS and plain, has_updates and writer.in_order, plain)
