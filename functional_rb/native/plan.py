"""A buffer's spec as one vector int32, which is all that the kernels know of it."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from functional_rb import power, ring, sum_tree
from functional_rb.buffer_spec import BufferSpec
from functional_rb.samplers import Prioritized

CAPACITY: Final = 0
LEAVES: Final = 1
WIDE: Final = 2
LEVELS: Final = 3
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


@functools.cache
def encode(spec: BufferSpec) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The vector for a spec, read-only."""
    sampler = spec.sampler
    prioritized = isinstance(sampler, Prioritized)
    alpha = sampler.alpha if isinstance(sampler, Prioritized) else 0.0
    levels = sum_tree.geometry(spec.capacity).levels if prioritized else ()
    layout = spec.layout
    values = [
        spec.capacity,
        len(layout.leaves),
        len(layout.wide),
        len(levels),
        ring.modulus(spec.capacity),
        *power.fixed_constant(alpha),
        *power.fixed_constant(alpha, power.BIAS),
        int(alpha == 1.0),
        int(isinstance(sampler, Prioritized) and sampler.new_priority == "ever"),
        4 * layout.row_words,
        *(leaf.nbytes for leaf in layout.wide),
    ]
    for level in levels:
        values += [level.nodes, level.groups, level.sums, level.smallest, level.largest]
    for leaf in layout.leaves:
        values += [0 if leaf.wide is None else 1 + leaf.wide, leaf.offset or 0, leaf.nbytes]
    encoded = np.asarray(values, np.int32)
    encoded.flags.writeable = False
    return encoded
