"""A buffer's spec as one vector int32, which is all that the kernels know of it.

Kernels of parts of the core know less: the levels of a tree, or how items lie in storage. Their vectors are of the
same form, without the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.episodes import NEXT_STEP_IN_EPISODE
from functional_rb.ops import fixed_point
from functional_rb.samplers import PrioritizedSlices, Slices, WithoutReplacement, epochs
from functional_rb.samplers.importance import Priorities
from functional_rb.structures import episode_windows, ring, sum_tree
from functional_rb.structures.episode_windows import Rule
from functional_rb.structures.ring import Ring
from functional_rb.structures.row_layout import Layout

LEAVES: Final = 0
WIDE: Final = 1
LEVELS: Final = 2
CAPACITY: Final = 3
MODULUS: Final = 4
ALPHA_WHOLE: Final = 5
ALPHA_FRACTION: Final = 6
BIAS_WHOLE: Final = 7
BIAS_FRACTION: Final = 8
ALPHA_IS_ONE: Final = 9
EVER: Final = 10
FIRST_STORAGE: Final = 11
"""From here: the bytes of an item in the rows and in each wide array, then the levels, then the leaves."""

LEVEL_FIELDS: Final = 5
LEVEL_NODES: Final = 0
LEVEL_GROUPS: Final = 1
LEVEL_SUMS: Final = 2
LEVEL_SMALLEST: Final = 3
LEVEL_LARGEST: Final = 4

LEAF_FIELDS: Final = 3
LEAF_STORAGE: Final = 0
LEAF_OFFSET: Final = 1
LEAF_BYTES: Final = 2


RING_CAPACITY: Final = 0
RING_LENGTH: Final = 1
RING_LANES: Final = 2
RING_TURNS: Final = 3
"""How often a lane may be filled before its sequence numbers begin again."""
WINDOW_LENGTH: Final = 4
PERIOD: Final = 5
STRICT: Final = 6
LEFT: Final = 7
RIGHT: Final = 8
BY_TRAJECTORY: Final = 9
"""The vectors of rings and windows are of a form of their own; that of rings ends before WINDOW_LENGTH."""

SLICES_COUNTERS: Final = 10
"""How many counters there are, in the vectors of draws of slices and of updates, which begin with that of windows."""
SLICES_CURSORS: Final = 11
SLICES_SIZES: Final = 12
SLICES_NEXT: Final = 13

EPOCH_COUNTERS: Final = 0
"""How many counters there are; the next three are places among them."""
EPOCH_CURSORS: Final = 1
EPOCH_REMAINING: Final = 2
EPOCH_EPOCHS_DONE: Final = 3
EPOCH_LANES: Final = 4
EPOCH_DROP_LAST: Final = 5
"""The vector of epochs is of a form of its own too."""

Vector = np.ndarray[Any, np.dtype[np.int32]]
NO_BUFFER = [0] * (FIRST_STORAGE - CAPACITY)
NO_LEAVES = Layout((), 0)


@functools.cache
def encode(spec: BufferSpec, layout: Layout | None = None) -> Vector:
    """The vector for a spec, read-only; the layout of its items if that is not the spec's own."""
    sampler = spec.sampler
    prioritized = isinstance(sampler, Priorities)
    alpha = sampler.alpha if isinstance(sampler, Priorities) else 0.0
    buffer = [
        spec.capacity,
        ring.modulus(spec.capacity),
        *fixed_point.fixed_constant(alpha),
        *fixed_point.fixed_constant(alpha, fixed_point.BIAS),
        int(alpha == 1.0),
        int(isinstance(sampler, Priorities) and sampler.new_priority == "ever"),
    ]
    return _vector(buffer, sum_tree.geometry(spec.capacity).levels if prioritized else (), layout or spec.plan.layout)


@functools.cache
def encode_epoch(spec: BufferSpec) -> Vector:
    """The vector for the epochs of a buffer whose draws the fused kernel of epochs knows, read-only."""
    plan, sampler = spec.plan, spec.sampler
    assert isinstance(sampler, WithoutReplacement)
    cursors = counters.CURSOR if plan.ring.lanes == 1 else counters.BASE
    remaining, done = counters.place(plan, epochs.REMAINING), counters.place(plan, epochs.EPOCHS_DONE)
    assert remaining is not None
    assert done is not None
    settings = [cursors, remaining, done, plan.ring.lanes, int(sampler.drop_last)]
    return _read_only([counters.length(plan), *settings])


@functools.cache
def encode_slices(spec: BufferSpec) -> Vector:
    """The vector for draws of slices from a buffer whose sampler is `Slices`, read-only."""
    plan, sampler = spec.plan, spec.sampler
    assert isinstance(sampler, Slices)
    following = counters.place(plan, NEXT_STEP_IN_EPISODE)
    assert following is not None
    windows = encode_windows(plan.ring, sampler.rule, sampler.by_trajectory)
    return _read_only([*windows, *_counters_of_rings(spec), following])


@functools.cache
def encode_rings(spec: BufferSpec) -> Vector:
    """The vector for updates of priorities of items that lie in rings, read-only: without windows their length is 0."""
    ring, sampler = spec.plan.ring, spec.sampler
    if isinstance(sampler, PrioritizedSlices):
        return _read_only([*encode_windows(ring, sampler.rule, False), *_counters_of_rings(spec)])
    return _read_only([*encode_ring(ring), *[0] * (SLICES_COUNTERS - WINDOW_LENGTH), *_counters_of_rings(spec)])


def _counters_of_rings(spec: BufferSpec) -> tuple[int, int, int]:
    """How many counters there are, and where among them the cursors and the sizes of the lanes begin."""
    plan = spec.plan
    if plan.ring.lanes == 1:
        return counters.length(plan), counters.CURSOR, counters.SIZE
    return counters.length(plan), counters.BASE, counters.BASE + plan.ring.lanes


@functools.cache
def encode_tree(capacity: int) -> Vector:
    """The vector for a sum tree alone, read-only."""
    return _vector(NO_BUFFER, sum_tree.geometry(capacity).levels, NO_LEAVES)


@functools.cache
def encode_layout(layout: Layout) -> Vector:
    """The vector for a storage alone, read-only."""
    return _vector(NO_BUFFER, (), layout)


@functools.cache
def encode_ring(ring: Ring) -> Vector:
    """The vector for rings of slots, read-only."""
    return _read_only([ring.capacity, ring.length, ring.lanes, ring.limit // ring.length])


@functools.cache
def encode_windows(ring: Ring, rule: Rule, by_trajectory: bool) -> Vector:
    """The vector for windows on rings, read-only."""
    settings = [rule.length, rule.period, rule.strict, rule.left, rule.right, by_trajectory]
    return _read_only([*encode_ring(ring), *map(int, settings)])


@functools.lru_cache(maxsize=1024)
def encode_distances(ring: Ring, rule: Rule, n: int, by_trajectory: bool) -> Vector:
    """`episode_windows.distances` as one vector, read-only."""
    return _read_only([end for pair in episode_windows.distances(rule, ring.length, n, by_trajectory) for end in pair])


def entries(ring: Ring, distances: Vector) -> int:
    """How many entries of the index there are at such distances, and where each lane's oldest step is."""
    return ring.lanes * (int((distances[1::2] - distances[::2]).sum()) + 1)


@functools.cache
def encode_alpha(alpha: float) -> Vector:
    """The vector for a power of priorities alone, read-only."""
    constants = [
        *fixed_point.fixed_constant(alpha),
        *fixed_point.fixed_constant(alpha, fixed_point.BIAS),
        int(alpha == 1.0),
    ]
    return _vector([0, 0, *constants, 0], (), NO_LEAVES)


@functools.lru_cache(maxsize=1024)
def encode_discounts(gamma: float, n: int, dtype: str) -> np.ndarray[Any, Any]:
    """gamma^k for k < n as floats of a dtype, read-only; not a vector like the others."""
    discounts = np.asarray([gamma**k for k in range(n)], dtype)
    discounts.flags.writeable = False
    return discounts


def _vector(buffer: list[int], levels: tuple[sum_tree.Level, ...], layout: Layout) -> Vector:
    """The numbers from CAPACITY to FIRST_STORAGE, levels and leaves put together."""
    values = [len(layout.leaves), len(layout.wide), len(levels), *buffer]
    values += [4 * layout.row_words, *(leaf.nbytes for leaf in layout.wide)]
    for level in levels:
        values += [level.nodes, level.groups, level.sums, level.smallest, level.largest]
    for leaf in layout.leaves:
        values += [0 if leaf.wide is None else 1 + leaf.wide, leaf.offset or 0, leaf.nbytes]
    return _read_only(values)


def _read_only(values: Sequence[int]) -> Vector:
    encoded = np.asarray(values, np.int32)
    encoded.flags.writeable = False
    return encoded
