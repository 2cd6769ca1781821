"""The lowest keys against a sorted list."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch

from functional_rb.structures import min_tree
from functional_rb.structures.sum_tree import FANOUT
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops

CAPACITIES = [1, 2, 16, 17, 257, 300]
# Slots in one update, one shape for all, so that JAX compiles once for a capacity.
BATCH = 24
Ints = np.ndarray[Any, np.dtype[np.int32]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@functools.cache
def jax_setter(capacity: int) -> Callable[..., Any]:
    return jax.jit(lambda tree, slots, keys: min_tree.set_keys(jax_ops, tree, capacity, slots, keys))


@functools.cache
def jax_finder(capacity: int, *counts: int) -> Callable[..., Any]:
    return jax.jit(lambda tree: [min_tree.lowest(jax_ops, tree, capacity, k) for k in counts])


def find(ops: Any, tree: Any, capacity: int, *counts: int) -> list[tuple[Any, Any]]:
    """So many of the lowest; on JAX by one program for all of the counts."""
    if ops is torch_ops:
        return [min_tree.lowest(torch_ops, tree, capacity, k) for k in counts]
    return jax_finder(capacity, *counts)(tree)


@functools.cache
def empty_on_jax(capacity: int) -> Any:
    return jax.jit(lambda: min_tree.empty(jax_ops, capacity))()


def check_tree(tree: Ints, keys: list[int]) -> None:
    """Every level by Python's min, padding included."""
    expected: list[int] = []
    while True:
        groups = -(-len(keys) // FANOUT)
        keys = keys + [min_tree.PADDING] * (groups * FANOUT - len(keys))
        expected += keys
        if groups == 1:
            break
        keys = [min(keys[k : k + FANOUT]) for k in range(0, len(keys), FANOUT)]
    assert tree.reshape(-1).tolist() == expected


# Few different keys, so that many are equal, and the extremes.
some_keys = st.integers(-2, 2) | st.sampled_from([min_tree.EMPTY, min_tree.EMPTY + 1, min_tree.PADDING - 1])


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[dict[int, int]]]:
    capacity = draw(st.sampled_from(CAPACITIES))
    updates = st.dictionaries(st.integers(0, capacity - 1), some_keys, min_size=1, max_size=BATCH)
    # At first all slots get some key, of as few kinds; or they stay empty.
    filled = draw(st.none() | st.lists(some_keys, min_size=1, max_size=3))
    chosen = [] if filled is None else np.random.default_rng(draw(st.integers(0, 2**32))).choice(filled, capacity)
    fills = [{k: int(key) for k, key in enumerate(chosen)}]
    return capacity, fills + draw(st.lists(updates, max_size=3))


@hypothesis.settings(max_examples=effort(25, 50))
@hypothesis.given(history=histories())
def test_lowest(history: tuple[int, list[dict[int, int]]]) -> None:
    capacity, updates = history
    truth = [min_tree.EMPTY] * capacity
    by_torch = min_tree.empty(torch_ops, capacity)
    by_jax = np.asarray(empty_on_jax(capacity))
    for update in updates:
        # In pieces of one size, some slots named twice, with the same key.
        names = list(update)
        for start in range(0, len(names), BATCH):
            slots = np.resize(np.int32(names[start : start + BATCH]), BATCH)
            keys = np.int32([update[slot] for slot in slots])
            by_torch = min_tree.set_keys(torch_ops, by_torch, capacity, torch.from_numpy(slots), torch.from_numpy(keys))
            by_jax = np.asarray(jax_setter(capacity)(by_jax, slots, keys))
        for slot, key in update.items():
            truth[slot] = key
    for tree in (by_torch.numpy(), by_jax):
        assert tree.shape == min_tree.shape(capacity)
        check_tree(tree, truth)
    got = min_tree.get_keys(torch_ops, by_torch, torch.arange(capacity, dtype=torch.int32))
    assert got.tolist() == truth
    ranking = sorted((key, slot) for slot, key in enumerate(truth))
    counts = (1, 5, 40)
    for ops, tree in ((torch_ops, by_torch), (jax_ops, by_jax)):
        for k, (slots, keys) in zip(counts, find(ops, tree, capacity, *counts), strict=True):
            assert [*zip(keys.tolist(), slots.tolist(), strict=True)] == ranking[:k]
            assert str(slots.dtype).endswith("int32")
            assert str(keys.dtype).endswith("int32")


def test_equal_keys_come_in_the_order_of_their_slots() -> None:
    rng, capacity = np.random.default_rng(0), 300
    slots = torch.arange(capacity, dtype=torch.int32)
    for _ in range(200):
        keys = rng.choice([0, 1, 2], capacity, p=rng.dirichlet([0.3] * 3)).astype(np.int32)
        tree = min_tree.set_keys(
            torch_ops, min_tree.empty(torch_ops, capacity), capacity, slots, torch.from_numpy(keys)
        )
        ((found, _),) = find(torch_ops, tree, capacity, 40)
        assert found.tolist() == np.argsort(keys, kind="stable")[:40].tolist()


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
@pytest.mark.parametrize("capacity", [1, 300])
def test_empty_slots_are_the_lowest_in_their_order(ops: Any, capacity: int) -> None:
    tree = min_tree.empty(ops, capacity) if ops is torch_ops else empty_on_jax(capacity)
    check_tree(np.asarray(tree), [min_tree.EMPTY] * capacity)
    ((slots, keys),) = find(ops, tree, capacity, 20)
    assert slots.tolist() == list(range(min(20, capacity)))
    assert set(keys.tolist()) == {min_tree.EMPTY}


def test_memory() -> None:
    for capacity in (10_000, 1_000_003):
        assert math.prod(min_tree.shape(capacity)) * 4 < 4.3 * capacity


jax_keys = jax.jit(functools.partial(min_tree.key_of, jax_ops))


def keys_of(ops: Any, ranks: Floats) -> tuple[list[int], list[bool]]:
    keys, good = min_tree.key_of(ops, torch.from_numpy(ranks)) if ops is torch_ops else jax_keys(ranks)
    return keys.tolist(), good.tolist()


TINY, NORMAL, HUGE = 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127
EXTREMES = [-math.inf, math.inf, 0.0, -0.0, TINY, -TINY, NORMAL - TINY, NORMAL, HUGE]
some_floats = st.sampled_from(EXTREMES) | st.floats(width=32, allow_nan=False)


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
@hypothesis.given(ranks=st.lists(some_floats, min_size=16, max_size=16))
def test_keys_keep_the_order_of_floats(ops: Any, ranks: list[float]) -> None:
    keys, good = keys_of(ops, np.float32(ranks))
    assert all(good)
    assert all(min_tree.EMPTY < key < min_tree.PADDING for key in keys)
    for a, key_a in zip(ranks, keys, strict=True):
        assert [a < b for b in ranks] == [key_a < key for key in keys]
        assert [a == b for b in ranks] == [key_a == key for key in keys]


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
def test_a_nan_is_no_rank(ops: Any) -> None:
    bits = np.uint32([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF, 0x7F800000, 0xFF800000])
    keys, good = keys_of(ops, np.resize(bits.view(np.float32), 16))
    assert good == [False] * 6 + [True] * 2 + [False] * 6 + [True] * 2
    assert keys[:6] == [0] * 6


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
def test_integers_are_their_own_keys_but_for_the_ends(ops: Any) -> None:
    ranks = [-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 2, 2**31 - 1]
    array = torch.tensor(ranks, dtype=torch.int32) if ops is torch_ops else jax.numpy.int32(ranks)
    assert min_tree.key_of_integers(ops, array).tolist() == [ranks[1], *ranks[1:-1], ranks[-2]]
