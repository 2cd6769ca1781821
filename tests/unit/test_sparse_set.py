"""A sparse set against Python sets and lists, and its draws against a shuffle written out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from functional_rb.ops import random_bits
from functional_rb.structures import sparse_set
from functional_rb.structures.sparse_set import SparseSet
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from tests.support.part_kernels import Torch
from tests.support.xla_options import AS_USERS
from torch_backend.arrays import ops as torch_ops

# Capacities and batches; JAX compiles each function for each.
SHAPES = effort([(1, 3), (7, 4), (12, 16)], [(1, 1), (1, 3), (2, 3), (7, 1), (7, 4), (12, 6), (12, 16)])
WORD = 2**31
Ints = np.ndarray[Any, np.dtype[np.int32]]


@functools.cache
def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(functools.partial(function, jax_ops))


def on_both(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function over ops, as NumPy arrays; that both backends have the same is checked."""
    result = jax.tree.map(np.asarray, jitted(function)(*args))
    tensors = jax.tree.map(lambda x: torch.from_numpy(np.array(x)), args)
    by_torch = jax.tree.map(lambda x: x.numpy(), function(torch_ops, *tensors))
    jax.tree.map(np.testing.assert_array_equal, result, by_torch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), result) == jax.tree.map(lambda x: (x.shape, x.dtype), by_torch)
    return result


def words_for(chosen: Iterable[int], remaining: int, low: int = 0) -> Ints:
    """Draws [B, 2] by which step i takes position chosen[i] of the `remaining - i` that are left."""
    rows = [(-(-j * WORD // max(remaining - i, 1)), low) for i, j in enumerate(chosen)]
    return np.array(rows, np.int32).reshape(-1, 2)


def shuffled(order: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Fisher-Yates from the back on a list: what comes out, in order."""
    left = list(order)
    out = []
    for j in chosen[: len(order)]:
        out.append(left[j])
        left[j] = left[-1]
        left.pop()
    return out


class Held:
    """A sparse set, and beside it what it should hold: two sets."""

    def __init__(self, capacity: int) -> None:
        self.sparse_set = SparseSet(np.zeros(capacity, np.int32), np.zeros(capacity, np.int32))
        self.remaining = self.count = np.array(0, np.int32)
        self.fresh: set[int] = set()
        self.seen: set[int] = set()

    @property
    def members(self) -> set[int]:
        return self.fresh | self.seen

    def insert(self, slots: list[int], marks: list[bool]) -> None:
        marks = distinct(slots, [m and s not in self.members for s, m in zip(slots, marks, strict=True)])
        self.sparse_set, self.count = on_both(
            sparse_set.insert, self.sparse_set, self.count, np.int32(slots), np.array(marks)
        )
        self.seen |= set(itertools.compress(slots, marks))

    def remove(self, slots: list[int], marks: list[bool]) -> None:
        marks = distinct(slots, marks)
        self.sparse_set, self.remaining, self.count = on_both(
            sparse_set.remove, self.sparse_set, self.remaining, self.count, np.int32(slots), np.array(marks)
        )
        self.fresh -= set(itertools.compress(slots, marks))
        self.seen -= set(itertools.compress(slots, marks))

    def rename(self, old: list[int], new: list[int], marks: list[bool]) -> None:
        marks = distinct(old, [m and s in self.members for s, m in zip(old, marks, strict=True)])
        marks = distinct(new, marks)
        for _ in old:  # a name is free if nobody has it, or who has it gives it up; who may not, might have been that
            given_up = set(itertools.compress(old, marks))
            marks = [m and (s in given_up or s not in self.members) for s, m in zip(new, marks, strict=True)]
        names = dict(itertools.compress(zip(old, new, strict=True), marks))
        before = self.sparse_set.order[: self.count].copy()
        self.sparse_set = on_both(sparse_set.rename, self.sparse_set, np.int32(old), np.int32(new), np.array(marks))
        assert self.sparse_set.order[: self.count].tolist() == [names.get(s, s) for s in before.tolist()]
        self.fresh = {names.get(s, s) for s in self.fresh}
        self.seen = {names.get(s, s) for s in self.seen}

    def draw(self, chosen: list[int], low: int = 0) -> list[int]:
        """Draw by the positions that each step takes, each taken modulo how many are left."""
        remaining = int(self.remaining)
        chosen = [j % max(remaining - i, 1) for i, j in enumerate(chosen)]
        expected = shuffled(self.sparse_set.order[:remaining].tolist(), chosen)
        slots, live, self.sparse_set, self.remaining = on_both(
            sparse_set.draw, self.sparse_set, self.remaining, words_for(chosen, remaining, low)
        )
        assert live.tolist() == [i < remaining for i in range(len(chosen))]
        drawn: list[int] = slots[live].tolist()
        assert drawn == expected
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= self.fresh
        assert ((slots >= 0) & (slots < self.sparse_set.order.size)).all()
        self.fresh -= set(drawn)
        self.seen |= set(drawn)
        return drawn

    def new_pass(self) -> None:
        self.remaining = self.count
        self.fresh, self.seen = self.members, set()

    def check(self, batch: int) -> None:
        order, place = self.sparse_set
        assert set(order[: self.remaining].tolist()) == self.fresh
        assert set(order[self.remaining : self.count].tolist()) == self.seen
        assert (self.remaining, self.count) == (len(self.fresh), len(self.members))
        np.testing.assert_array_equal(place[order[: self.count]], np.arange(self.count))
        for start in range(0, order.size, batch):
            slots = (start + np.arange(batch, dtype=np.int32)) % order.size
            found = on_both(sparse_set.contains, self.sparse_set, self.count, slots.astype(np.int32))
            assert found.tolist() == [s in self.members for s in slots.tolist()]


def distinct(slots: list[int], marks: list[bool]) -> list[bool]:
    """Marks without those whose slot was marked before."""
    seen: set[int] = set()
    auxiliary = []
    for slot, mark in zip(slots, marks, strict=True):
        auxiliary.append(mark and slot not in seen)
        seen |= {slot} if mark else set()
    return auxiliary


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[tuple[Any, ...]]]:
    """A capacity, a batch, and operations; what their marks must not mark is left to the model."""
    capacity, batch = draw(st.sampled_from(SHAPES))
    slots = st.lists(st.integers(0, capacity - 1), min_size=batch, max_size=batch)
    marks = st.lists(st.booleans(), min_size=batch, max_size=batch) | st.just([True] * batch)
    operation = st.one_of(
        st.tuples(st.just("insert"), slots, marks),
        st.tuples(st.just("remove"), slots, marks),
        st.tuples(st.just("rename"), slots, slots, marks),
        st.tuples(st.just("draw"), slots, st.sampled_from([0, WORD - 1])),
        st.tuples(st.just("new_pass")),
    )
    filling = [("insert", [(start + k) % capacity for k in range(batch)], [True] * batch) for start in range(capacity)]
    begin = filling[: draw(st.integers(0, capacity))] + [("new_pass",)] * draw(st.integers(0, 1))
    return capacity, batch, begin + draw(st.lists(operation, max_size=12))


@hypothesis.settings(max_examples=effort(20, 80))
@hypothesis.given(history=histories())
def test_histories(history: tuple[int, int, list[tuple[Any, ...]]]) -> None:
    capacity, batch, operations = history
    held = Held(capacity)
    for name, *args in operations:
        getattr(held, name)(*args)
        held.check(batch)


def holding(slots: list[int], capacity: int, drawn: int) -> Held:
    """A sparse set in which `drawn` more slots than the given ones lie, which were drawn."""
    held = Held(capacity)
    others = [s for s in range(capacity) if s not in slots][:drawn]
    for s in others + slots:
        held.insert([s], [True])
    held.new_pass()
    while held.fresh != set(slots):
        order = held.sparse_set.order[: held.remaining].tolist()
        held.draw([next(k for k, s in enumerate(order) if s in others)])
    return held


@pytest.mark.parametrize("batch", effort([1, 4, 7], [1, 2, 3, 4, 5, 7]))
@pytest.mark.parametrize("remaining", [0, 1, 2, 3, 4])
def test_every_ordered_choice_comes_once(remaining: int, batch: int) -> None:
    # The draws of step i fall evenly into `remaining - i` ranges; one of each, at either end of the range.
    slots = [5, 2, 6, 0][:remaining]
    start = holding(slots, 7, 2)
    ranges = [range(max(remaining - i, 1)) for i in range(batch)]
    for low in (0, WORD - 1):
        outcomes = []
        for chosen in itertools.product(*ranges):
            held = Held(7)
            held.__dict__.update(start.__dict__, fresh=set(start.fresh), seen=set(start.seen))
            outcomes.append(tuple(held.draw(list(chosen), low)))
            held.check(batch)
        assert sorted(outcomes) == sorted(itertools.permutations(slots, min(batch, remaining)))


@hypothesis.settings(max_examples=effort(20, 80))
@hypothesis.given(
    remaining=st.sampled_from([1, 2, 15, 16, 17, 20, 40]),
    chosen=st.lists(st.integers(-20, 3), min_size=16, max_size=16),
)
@hypothesis.example(remaining=20, chosen=[-2] * 15 + [-1])  # the last item, moved by every step
def test_long_chains(remaining: int, chosen: list[int]) -> None:
    # Steps that take what lies at the back, where later steps fetch what they move.
    order = np.arange(40, dtype=np.int32)
    held = Held(40)
    held.sparse_set, held.count, held.remaining = (
        SparseSet(order, order),
        np.array(40, np.int32),
        np.array(remaining, np.int32),
    )
    held.fresh, held.seen = set(range(remaining)), set(range(remaining, 40))
    held.draw(chosen)
    held.check(16)


@pytest.mark.parametrize("capacity", [1, 7])
@pytest.mark.parametrize("full", [False, True])
def test_without_marks_nothing_happens(capacity: int, full: bool) -> None:
    held = Held(capacity)
    for slot in reversed(range(capacity)) if full else ():
        held.insert([slot] * 4, [True] * 4)
    held.new_pass()
    before = held.sparse_set
    slots, marks = [capacity - 1, 0, 0, capacity // 2], [False] * 4
    held.insert(slots, marks)
    held.rename(slots, slots[::-1], marks)
    held.remove(slots, marks)
    held.check(4)
    if full:
        np.testing.assert_array_equal(held.sparse_set, before)


def test_a_mark_moves_as_its_trajectory_grows() -> None:
    held = Held(7)
    held.insert([3, 4, 0, 0], [True, True, False, False])
    held.rename([3, 4, 0, 0], [4, 5, 0, 0], [True, True, False, False])
    assert held.members == {4, 5}
    held.rename([5, 4, 4, 5], [4, 5, 4, 5], [True, True, False, False])  # round in a circle
    assert held.sparse_set.order[:2].tolist() == [5, 4]
    held.check(4)


def test_a_pass_gives_each_slot_once() -> None:
    rng = np.random.default_rng(0)
    held = Held(1000)
    held.insert(list(range(1000)), [True] * 1000)
    for _ in range(2):
        held.new_pass()
        drawn = []
        while held.fresh:
            drawn += held.draw(rng.integers(0, 1000, 64).tolist())
        assert sorted(drawn) == list(range(1000))
    held.check(64)


def test_below_is_exact() -> None:
    n = np.array([0, 1, 2, 3, 1000, 2**30 + 1, WORD - 1])
    words = np.array([0, 1, 2, WORD // 3, WORD // 3 + 1, WORD // 2 - 1, WORD // 2, WORD - 2, WORD - 1])
    rng = np.random.default_rng(0)
    high, low, n = (x.reshape(-1) for x in np.meshgrid(words, np.append(words, rng.integers(0, WORD, 9)), n))
    # High words just below a multiple of 2^31 / n: there the low word decides.
    n = np.append(n, rng.integers(1, 1000, 500))
    wanted = rng.integers(1, n[-500:] + 1)
    high = np.append(high, -(-wanted * WORD // n[-500:]) - 1)
    low = np.append(low, rng.integers(0, WORD, 500))
    result = on_both(random_bits.below, np.stack([high, low], 1).astype(np.int32), n.astype(np.int32))
    exact = [c * (a * WORD + b) // WORD**2 for a, b, c in zip(high.tolist(), low.tolist(), n.tolist(), strict=True)]
    assert result.tolist() == exact
    without_low_word = high * n // WORD
    assert (result > without_low_word).sum() > 100


def everything(held: tuple[SparseSet, Any, Any], slots: Any, marks: Any, draws: Any) -> Any:
    """One step of a buffer: its state, and what was drawn."""
    cards, remaining, count = held
    cards, remaining, count = sparse_set.remove(jax_ops, cards, remaining, count, slots, marks)
    cards, count = sparse_set.insert(jax_ops, cards, count, slots, marks)
    cards = sparse_set.rename(jax_ops, cards, slots, slots + 1, marks)
    drawn, live, cards, remaining = sparse_set.draw(jax_ops, cards, remaining, draws)
    return (cards, remaining, count), (drawn, live)


def test_nothing_of_the_capacity_is_copied_in_a_scan() -> None:
    capacity, batch, steps = 1_000_000, 8, 5
    array = jax.ShapeDtypeStruct((capacity,), jnp.int32)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    inputs = [((batch,), jnp.int32), ((batch,), jnp.bool_), ((batch, 2), jnp.int32)]
    xs = [jax.ShapeDtypeStruct((steps, *shape), dtype) for shape, dtype in inputs]
    program = jax.jit(lambda held, xs: jax.lax.scan(lambda held, x: everything(held, *x), held, xs), donate_argnums=0)
    memory = program.lower((SparseSet(array, array), number, number), xs).compile(AS_USERS).memory_analysis()
    assert memory.temp_size_in_bytes < 5_000
    assert memory.alias_size_in_bytes >= 8 * capacity


# -- kernels


def as_tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(x)) for x in arrays]


@hypothesis.settings(max_examples=effort(30, 120))
@hypothesis.given(
    st.sampled_from([1, 2, 7, 40]), st.integers(0, 12), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0])
)
def test_kernels_leave_the_same_set_as_the_core(capacity: int, batch: int, seed: int, chance: float) -> None:
    """Whole histories of adding, removing and drawing, of sets that are empty, part of an epoch on, and full."""
    chosen = np.random.default_rng(seed)
    both = [SparseSet(*as_tensors(np.zeros(capacity, np.int32), np.zeros(capacity, np.int32))) for _ in range(2)]
    numbers = [as_tensors(np.int32(0), np.int32(0)) for _ in range(2)]  # remaining, count
    members: set[int] = set()
    for _ in range(6):
        width = min(batch, capacity)
        slots = chosen.permutation(capacity)[:width].astype(np.int32)
        marked = chosen.random(width) < chance
        fresh = marked & ~np.isin(slots, list(members))
        words = chosen.integers(0, WORD, (batch, 2)).astype(np.int32)
        for k, form in enumerate((Torch.plain, Torch.kernels)):
            remaining, count = numbers[k]
            leaving, arriving, draws = as_tensors(marked, fresh | marked, words)
            table, (at,) = both[k], as_tensors(slots)
            found = form(sparse_set.members)(table, count, at, leaving)
            table, remaining, count = form(sparse_set.remove)(table, remaining, count, at, leaving)
            table, count = form(sparse_set.insert)(table, count, at, arriving)
            remaining = torch.where(remaining == 0, count, remaining)
            drawn, live, table, remaining = form(sparse_set.draw)(table, remaining, draws)
            both[k], numbers[k] = table, [remaining, count]
            seen = (found, torch.where(live, drawn, -1), live, *table, remaining, count)
            if not k:
                expected = seen
        members |= set(slots[marked].tolist())
        for one, other in zip(expected, seen, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other)


def test_a_kernel_shuffles_as_a_list_is_shuffled() -> None:
    """Every choice of what is drawn, of up to four of four."""
    for n, batch in itertools.product(range(5), range(6)):
        ranges = [range(max(n - i, 1)) for i in range(min(batch, 4))]
        for chosen in itertools.product(*ranges):
            padded = [*chosen, *[0] * (batch - len(chosen))]
            draws, count = as_tensors(words_for(padded, n), np.int32(n))
            found = Torch.kernels(sparse_set.distinct)(draws, count).tolist()
            live = min(n, batch)
            assert found[:live] == shuffled(range(n), padded)[:live]
