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
from functional_rb.samplers.base import SamplerBase
from functional_rb.transforms.n_step_added import NStepOfAdded
from functional_rb.writers import Immutable, RoundRobin, StopWhenFull
from functional_rb.writers.base import WriterBase


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
        appends: additions to rings, of any number of lanes, with what the sampler keeps, and with steps that wait for
            others, or frames that items share.
        rewrites: leaves of its items.
        plain: whether there are no frames, and no transforms but functions of items.
    """

    draws: Draws
    buffer: bool
    updates: bool
    appends: bool
    rewrites: bool
    plain: bool


def draws_items(sampler: Any) -> bool:
    """Whether a sampler draws single items, with replacement and without a limit, by position or priority."""
    # Types are compared exactly here and below: a subclass of a user's may draw in another way.
    if type(sampler) is Prioritized and not sampler.replacement:
        return False
    return type(sampler) in (Uniform, Prioritized) and sampler.max_times_sampled is None


def is_ring(writer: object) -> bool:
    """Whether a writer writes around a ring, or once."""
    return type(writer) in (RoundRobin, Immutable)


def keeps_of_new_items(plan: Plan, sampler: object) -> bool:
    """Whether kernels know what a sampler keeps of new items, and how leaves mark the ends of their episodes."""
    slices = Slices, PrioritizedSlices, SlicesWithoutReplacement
    if type(sampler) not in (Uniform, Prioritized, WithoutReplacement, *slices):
        return False
    if getattr(sampler, "max_times_sampled", None) is not None or not getattr(sampler, "shuffle", True):
        return False
    if plan.boundaries is None:
        return True
    ends, trajectory = episodes.leaves_of(plan)
    return are_stored_marks(plan, [*ends], [*trajectory])


def are_stored_marks(plan: Plan, ends: Sequence[int], trajectory: Sequence[int]) -> bool:
    """Whether kernels can read at which leaves, by position, episodes end, and which one tells them apart."""
    one_each = all(math.prod(plan.leaves[k].shape) == 1 for k in ends)
    in_words = all(ITEMSIZE[plan.leaves[k].dtype] >= 4 for k in trajectory)
    return one_each and in_words and (plan.frames is None or {*ends, *trajectory} <= {*plan.stored})


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
    in_turn = is_ring(writer) or type(writer) is StopWhenFull
    draws = Draws.NOTHING
    if draws_items(sampler) and in_turn:
        draws = Draws.ITEMS
    elif type(sampler) in (Slices, PrioritizedSlices):
        draws = Draws.SLICES
    elif type(sampler) is WithoutReplacement and sampler.shuffle and writer.in_order:
        draws = Draws.EPOCH
    elif type(sampler) is SlicesWithoutReplacement:
        draws = Draws.EPOCH_OF_SLICES
    has_updates = type(sampler) is PrioritizedSlices or (
        type(sampler) is Prioritized and sampler.max_times_sampled is None
    )
    made = [transform for transform in transforms if not stores_as_given(transform)]
    appends = len(made) <= 1 and all(lines_up(plan, transform) for transform in made)
    appends = appends and in_turn and keeps_of_new_items(plan, sampler)
    whole = draws is Draws.ITEMS and plain and plan.ring.lanes == 1 and is_ring(writer)
    rewrites = type(writer) in (RoundRobin, StopWhenFull) and plan.frames is None
    return Known(draws, whole, has_updates and writer.in_order, appends, rewrites, plain)
