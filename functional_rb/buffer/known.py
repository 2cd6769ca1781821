"""Which buffers the native code knows: by the very classes of their strategies, as a subclass may do otherwise."""

from __future__ import annotations

from typing import Any, NamedTuple

from functional_rb.core.plan import Plan
from functional_rb.samplers import Prioritized, PrioritizedSlices, Slices, Uniform, WithoutReplacement
from functional_rb.writers import Immutable, RoundRobin


class Known(NamedTuple):
    """What of a buffer the native code does whole.

    Attributes:
        draws: draws of single items, by position or priority; frames and transforms are read afterwards.
        buffer: all of it: `add`, `sample` and `update`.
        epochs: draws without replacement.
        slices: the choice of the steps of slices.
        updates: updates of priorities, where items lie in rings.
    """

    draws: bool
    buffer: bool
    epochs: bool
    slices: bool
    updates: bool


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
    draws = plan.ring.lanes == 1 and draws_items(sampler) and is_ring(writer)
    has_epochs = type(sampler) is WithoutReplacement and sampler.shuffle
    has_updates = type(sampler) is PrioritizedSlices or (
        type(sampler) is Prioritized and sampler.max_times_sampled is None
    )
    return Known(
        draws,
        draws and plain,
        epochs=plain and has_epochs and writer.in_order,
        slices=type(sampler) is Slices,
        updates=has_updates and writer.in_order,
    )
