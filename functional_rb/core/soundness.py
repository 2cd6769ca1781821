"""Checks that strategies share of what they keep, where it comes from a file or a dict of anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import Array, NumpyArray
from functional_rb.core import handles
from functional_rb.core.counters import Counters
from functional_rb.core.plan import Plan
from functional_rb.structures.ring import modulus


class Found(NamedTuple):
    """The numbers of a state, of NumPy.

    Attributes:
        plan: of the buffer that it is to be of.
        numbers: its counters.
        auxiliary: the arrays that samplers and the like keep, by name.
        leaves: of the sum tree, float32 [capacity]; None if there is none.
    """

    plan: Plan
    numbers: Counters
    auxiliary: Mapping[str, NumpyArray]
    leaves: NumpyArray | None


def problem_of_range(what: str, numbers: Array, low: int, high: int) -> str | None:
    """Why numbers are not all in [low, high], or None."""
    wrong = np.flatnonzero((numbers < low) | (numbers > high))
    return f"{what}: expected {low} to {high}, found {numbers[wrong[0]]}" if wrong.size else None


def is_stored(contents: Found, slots: NumpyArray) -> NumpyArray:
    """In which of slots an item is stored, bool [n]."""
    if not contents.plan.in_order:
        held: NumpyArray = contents.auxiliary[handles.CURRENT][slots] >= 0
        return held
    length, lane = contents.plan.ring.length, slots // contents.plan.ring.length
    # In 64 bits: numbers from a file may be anything, and their difference must not wrap.
    cursors, sizes = (np.asarray(ends, np.int64)[lane] for ends in contents.numbers.ends)
    stored: NumpyArray = (slots - (cursors - sizes)) % length < sizes
    return stored


def problem_of_weights(contents: Found) -> str | None:
    """Why the leaves of the sum tree are not those of stored items alone, or None."""
    if contents.leaves is None:
        return None
    slots = np.flatnonzero(contents.leaves)
    stored = is_stored(contents, slots)
    if stored.all():
        return None
    return f"slot {slots[~stored][0]} has a weight, and no item is stored there"


def problem_of_handles(contents: Found) -> str | None:
    """Why the handles that a writer keeps, which chooses slots, are not those of the stored items; or None."""
    # In 64 bits, as -2 - h of a damaged number would wrap.
    current = contents.auxiliary[handles.CURRENT].astype(np.int64)
    last = np.where(current < -1, -2 - current, current)
    wrong = np.flatnonzero((last >= 0) & (last % len(last) != np.arange(len(last))) | (last >= modulus(len(last))))
    if wrong.size:
        return f"the handle of slot {wrong[0]} is {current[wrong[0]]}"
    held, size = int((current >= 0).sum()), int(contents.numbers.ends.sizes[0])
    return None if held == size else f"{held} slots have items, and its size is {size}"
