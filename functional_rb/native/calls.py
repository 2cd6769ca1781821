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


@compiled
def descend(plan: Any, tree: Any, tree_size: Any, draws: Any, batch: Any, words: Any, slots: Any) -> None:
    """`kernels.descend` with draws int32 [B, words]."""
    numbers = numba.carray(pointer_to(draws, INT32), (batch, words))
    kernels.descend(plan, floats(tree, tree_size), numbers, ints(slots, batch))


@compiled
def set_leaves(plan: Any, tree: Any, tree_size: Any, leaves: Any, values: Any, count: Any) -> None:
    """`kernels.set_leaves`."""
    kernels.set_leaves(plan, floats(tree, tree_size), ints(leaves, count), floats(values, count))


@compiled
def read(plan: Any, storage: Any, slots: Any, count: Any, leaves: Any) -> None:
    """`kernels.load_items`."""
    kernels.load_items(plan, storage, ints(slots, count), leaves)


@compiled
def store(plan: Any, storage: Any, slots: Any, count: Any, source: Any, live: Any, leaves: Any, batch: Any) -> None:
    """`kernels.store_items`; source and live are 0 if there are none."""
    kernels.store_items(
        plan,
        storage,
        ints(slots, count),
        ints(source, count if source else 0),
        numba.carray(pointer_to(live, UINT8), (count if live else 0,)),
        leaves,
        batch,
    )
