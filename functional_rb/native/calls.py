"""The kernels as torch calls them: every array by its address, which costs less than a view of it."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from functional_rb.native import draws, kernels
from functional_rb.native.cache import compiled
from functional_rb.native.memory import pointer_to

INT32, UINT8, FLOAT32 = np.int32(0), np.uint8(0), np.float32(0)


@compiled
def ints(address: Any, size: Any) -> Any:
    """int32 [size] at an address."""
    return numba.carray(pointer_to(address, INT32), (size,))


@compiled
def floats(address: Any, size: Any) -> Any:
    """float32 [size] at an address."""
    return numba.carray(pointer_to(address, FLOAT32), (size,))


@compiled
def add(
    plan: Any,
    storage: Any,
    tree: Any,
    tree_size: Any,
    counters: Any,
    new_counters: Any,
    leaves: Any,
    batch: Any,
    mask: Any,
    priorities: Any,
    room: Any,
    saved_slots: Any,
    saved_rows: Any,
    saved_values: Any,
    saved_count: Any,
) -> None:
    """`kernels.add`; mask and priorities are 0 if there are none. Sets how many slots were saved (of `room`)."""
    saved_count[0] = kernels.add(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 5),
        ints(new_counters, 5),
        leaves,
        batch,
        numba.carray(pointer_to(mask, UINT8), (batch if mask else 0,)),
        ints(priorities, batch if priorities else 0),
        ints(saved_slots, room),
        saved_rows,
        floats(saved_values, room if saved_values else 0),
    )


@compiled
def update(
    plan: Any,
    storage: Any,
    tree: Any,
    tree_size: Any,
    counters: Any,
    new_counters: Any,
    handles: Any,
    batch: Any,
    priorities: Any,
    leaves: Any,
    room: Any,
    saved_slots: Any,
    saved_rows: Any,
    saved_values: Any,
    saved_count: Any,
) -> None:
    """`kernels.update`; priorities are 0 if there are none, leaves empty. Sets how many slots were saved."""
    saved_count[0] = kernels.update(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 5),
        ints(new_counters, 5),
        ints(handles, batch),
        ints(priorities, batch if priorities else 0),
        leaves,
        ints(saved_slots, room),
        saved_rows,
        floats(saved_values, room if saved_values else 0),
    )


@compiled
def sample(
    plan: Any,
    storage: Any,
    tree: Any,
    tree_size: Any,
    counters: Any,
    key: Any,
    words: Any,
    beta: Any,
    leaves: Any,
    batch: Any,
    handles: Any,
    weights: Any,
    chances: Any,
) -> Any:
    """Make draws from a key, and draw; whether anything could be drawn."""
    numbers = np.empty((batch, words), np.int32)
    draws.fill(key, numbers)
    return kernels.draw(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 5),
        numbers,
        np.float32(beta),
        leaves,
        ints(handles, batch),
        floats(weights, batch),
        floats(chances, batch),
    )
