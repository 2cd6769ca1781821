"""Arbitrary histories of a buffer against a plain Python list, on both backends and across the bridge.

The model is a list of what has been added, each with its number and priority, and the obvious loops over it.
A history keeps every state that was ever returned: old ones are used again (branching), taken over to the
other backend (bridging), and in the end each must still read as it did when it was new.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import functional_rb as frb
from functional_rb.structures.ring import modulus
from tests.support import backends
from tests.support.backends import Backend
from tests.support.spec_pool import ONE_ALPHA, POOL, Point, random_leaf

Leaves = tuple[bytes, ...]
"""An item: the bytes of each of its leaves, so that NaNs and negative zeros count."""
SMALLEST, LARGEST = 2.0**-100, 2.0**95
NOTHING = np.empty(0, np.float32)


@dataclasses.dataclass
class Entry:
    """One item that was added.

    Attributes:
        serial: its number.
        leaves: what it holds.
        value: its priority to the power alpha.
    """

    serial: int
    leaves: Leaves
    value: float


@dataclasses.dataclass
class Model:
    """The buffer as one would write it down in a minute."""

    capacity: int
    sampler: Any
    serial: int
    entries: list[Entry] = dataclasses.field(default_factory=list)
    rejected: int = 0
    stale: int = 0
    peak: float = 0.0

    def value_of(self, priority: float) -> float | None:
        """What a priority counts, None if it is bad."""
        if not math.isfinite(priority) or priority < 0:
            return None
        if priority == 0:
            return 0.0
        smallest_normal = 2.0**-126
        return min(max(max(priority, smallest_normal) ** self.sampler.alpha, SMALLEST), LARGEST)

    def add(self, items: Sequence[Leaves], mask: Sequence[bool], priorities: Sequence[float] | None) -> None:
        marked = [k for k in range(len(items)) if mask[k]]
        kept = marked[-self.capacity :]
        self.serial += len(marked) - len(kept)
        default = 0.0
        if isinstance(self.sampler, frb.Prioritized):
            live = max((entry.value for entry in self.entries), default=0.0)
            default = (self.peak if self.sampler.new_priority == "ever" else live) or 1.0
        for k in kept:
            value = default
            if priorities is not None:
                given = self.value_of(priorities[k])
                self.rejected += given is None
                value = default if given is None else given
            self.entries.append(Entry(self.serial, items[k], value))
            self.peak = max(self.peak, value)
            self.serial += 1
        self.entries = self.entries[-self.capacity :]

    def update(
        self,
        handles: Sequence[int],
        serials: Sequence[int | None],
        priorities: Sequence[float] | None,
        rewrite: Sequence[dict[int, bytes]],
    ) -> None:
        for k, serial in enumerate(serials):
            entry = self.find(serial)
            if entry is None:
                self.stale += handles[k] != -1
                continue
            entry.leaves = tuple(rewrite[k].get(i, old) for i, old in enumerate(entry.leaves))
            if priorities is not None:
                value = self.value_of(priorities[k])
                self.rejected += value is None
                if value is not None:
                    entry.value = value
                    self.peak = max(self.peak, value)

    def find(self, serial: int | None) -> Entry | None:
        return next((entry for entry in self.entries if entry.serial == serial), None)

    @property
    def drawable(self) -> list[Entry]:
        if isinstance(self.sampler, frb.Uniform):
            return self.entries
        return [entry for entry in self.entries if entry.value > 0]


DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
]
leaf_specs = st.builds(
    frb.Unbounded,
    st.lists(st.integers(0, 3), max_size=3).map(tuple) | st.just((1030,)),
    st.sampled_from(DTYPES),
)
item_specs = st.recursive(
    leaf_specs,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abcXYZ_", min_size=1, max_size=3), inner, max_size=4),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.lists(inner, min_size=1, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=6,
)
samplers = st.just(frb.Uniform()) | st.builds(
    frb.Prioritized,
    alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0, 2.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    new_priority=st.sampled_from(["live", "ever"]),
)
capacities = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 257])
free_specs = st.builds(frb.BufferSpec, item_specs, capacities, samplers)
good_priorities = st.sampled_from([0.0, -0.0, 1.0, 0.5, 3.0, 1e-3, 1e-45, 1e-40, 1.2e-38, 1e-30, 1e30, 3.4e38])
bad_priorities = st.sampled_from([-1.0, -1e-45, math.inf, -math.inf, math.nan])
priorities = good_priorities | good_priorities | bad_priorities
ROUNDING = 3e-7
"""Of fixed-point powers and float32 sums of a few hundred values; see test_power."""


def build(spec: Any, leaves: Iterator[Any]) -> Any:
    """A nest like a spec, its leaves in order."""
    if isinstance(spec, frb.ArraySpec):
        return next(leaves)
    if isinstance(spec, tuple) and hasattr(spec, "_fields"):
        return type(spec)(*(build(part, leaves) for part in spec))
    if isinstance(spec, (tuple, list)):
        return type(spec)([build(part, leaves) for part in spec])
    return {name: build(spec[name], leaves) for name in spec}


def specs_in(spec: Any) -> list[frb.ArraySpec]:
    found: list[frb.ArraySpec] = []
    if isinstance(spec, frb.ArraySpec):
        return [spec]
    for part in spec if isinstance(spec, (tuple, list)) else spec.values():
        found += specs_in(part)
    return found


def arrays_in(spec: Any, nest: Any) -> list[Any]:
    """The leaves of a nest that has the types and the keys of a spec."""
    if isinstance(spec, frb.ArraySpec):
        return [nest]
    if isinstance(spec, (tuple, list)):
        assert type(nest) is type(spec)
        assert len(nest) == len(spec)
        pairs = list(zip(spec, nest, strict=True))
    else:
        assert type(nest) is dict
        assert list(nest) == list(spec) or sorted(nest) == sorted(spec)  # JAX sorts keys
        pairs = [(spec[name], nest[name]) for name in spec]
    return [leaf for part, value in pairs for leaf in arrays_in(part, value)]


def rows_of(arrays: Sequence[np.ndarray], n: int) -> list[Leaves]:
    """The items of a batch."""
    return [tuple(np.ascontiguousarray(array[k]).tobytes() for array in arrays) for k in range(n)]


class Kept(NamedTuple):
    """A state that was returned, who returned it, and what it must read as for ever."""

    state: Any
    backend: Backend
    model: Model


class Histories(RuleBasedStateMachine):
    """What all of the machines do; the class attributes say on what."""

    variants: ClassVar[tuple[str, ...]] = ("torch",)
    specs: ClassVar[Any] = free_specs
    sizes: ClassVar[tuple[int, ...] | None] = None
    """Batch sizes; None for any."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.backends = [self.stack.enter_context(backends.make(name)) for name in self.variants]
        self.kept: list[Kept] = []
        self.steps = 0

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.spec = data.draw(self.specs, "spec")
        self.leaves = specs_in(self.spec.item)
        backend = data.draw(st.sampled_from(self.backends), "backend")
        state = backend.init(self.spec)
        limit = modulus(self.spec.capacity)
        serial = data.draw(st.sampled_from([0, 0, limit - 1, limit - 2 - self.spec.capacity]), "first serial")
        if serial:
            state = self.beginning_at(backend, state, serial)
        self.kept.append(Kept(state, backend, Model(self.spec.capacity, self.spec.sampler, serial)))
        if data.draw(st.integers(0, 3), "start empty"):
            self.add(data)

    def beginning_at(self, backend: Backend, state: Any, serial: int) -> Any:
        """As after so many items, because numbers start again from 0 below 2^31."""
        counters = backend.array(np.array([serial, 0, 0, 0, 0, 0], np.int32))
        if backend.library == "jax":
            return dataclasses.replace(state, counters=counters)
        # A clone, as NumPy's memory is not aligned as JAX wants it to be.
        return type(state)(state._version, counters.clone(), state.spec)

    def choose(self, data: st.DataObject) -> Kept:
        """Mostly the newest state, now and then any older one."""
        back = data.draw(st.just(0) | st.integers(0, len(self.kept) - 1), "steps back")
        return self.kept[-1 if self.backends[0].consumes else len(self.kept) - 1 - back]

    def keep(self, state: Any, backend: Backend, model: Model) -> None:
        if self.backends[0].consumes:
            self.kept.clear()
        self.kept.append(Kept(state, backend, model))
        assert int(backend.rb.size(state)) == len(model.entries)

    def random_items(self, data: st.DataObject, n: int) -> list[np.ndarray]:
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
        return [random_leaf(leaf, n, rng) for leaf in self.leaves]

    def give(self, data: st.DataObject, backend: Backend, array: np.ndarray) -> Any:
        """As NumPy's or the backend's."""
        own = data.draw(st.booleans(), "as the backend's array")
        return backend.array(array) if own or array.dtype.name == "bfloat16" else array.copy()

    @staticmethod
    def overwrite(arrays: Sequence[Any]) -> None:
        """The caller's arrays are his: what he writes to them afterwards is not seen in the buffer."""
        for array in arrays:
            if isinstance(array, np.ndarray):
                array[...] = np.zeros((), array.dtype)
            elif isinstance(array, torch.Tensor):
                array.zero_()

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        state, backend, model = self.choose(data)
        capacity = self.spec.capacity
        sizes = self.sizes or (0, 1, 2, 3, capacity, capacity + 1, 2 * capacity + 1)
        n = data.draw(st.sampled_from(sizes), "batch")
        arrays = self.random_items(data, n)
        single = n == 1 and data.draw(st.booleans(), "one item")
        mask = new = None
        if data.draw(st.integers(0, 2), "masked") == 0 or not self.leaves:
            mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n), "mask"), bool)
        if isinstance(self.spec.sampler, frb.Prioritized) and data.draw(st.booleans(), "with priorities"):
            new = np.array(data.draw(st.lists(priorities, min_size=n, max_size=n), "priorities"), np.float32)
        given = [self.give(data, backend, array[0] if single else array) for array in arrays]
        companions = [None if x is None else self.give(data, backend, x) for x in (mask, new)]
        after = backend.add(state, build(self.spec.item, iter(given)), *companions)
        self.overwrite([*given, *(x for x in companions if x is not None)])
        model = copy.deepcopy(model)
        model.add(
            rows_of(arrays, n),
            [True] * n if mask is None else mask.tolist(),
            None if new is None else new.tolist(),
        )
        self.keep(after, backend, model)

    def draw_handles(self, data: st.DataObject, model: Model, n: int) -> np.ndarray:
        limit = modulus(self.spec.capacity)
        live = st.sampled_from([entry.serial % limit for entry in model.entries] or [0])
        near = st.integers(model.serial - 2 * self.spec.capacity - 2, model.serial + 2).map(lambda s: s % limit)
        any_handle = live | live | near | st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-1, limit, limit - 1])
        return np.array(data.draw(st.lists(any_handle, min_size=n, max_size=n), "handles"), np.int32)

    def serials(self, model: Model, handles: np.ndarray) -> list[int | None]:
        """Which item each handle names, None if none that is stored."""
        limit = modulus(self.spec.capacity)
        names = {entry.serial % limit: entry.serial for entry in model.entries}
        return [names.get(handle) for handle in handles.tolist()]

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        state, backend, model = self.choose(data)
        n = data.draw(st.sampled_from((5,) if self.sizes else (0, 1, 2, 5, 9)), "batch")
        handles = self.draw_handles(data, model, n)
        new, some, arrays = None, [], []
        if isinstance(self.spec.sampler, frb.Prioritized) and data.draw(st.booleans(), "with priorities"):
            new = np.array(data.draw(st.lists(priorities, min_size=n, max_size=n), "priorities"), np.float32)
        if isinstance(self.spec.item, frb.Composite) and self.leaves and data.draw(st.booleans(), "rewriting leaves"):
            names = list(self.spec.item)
            # On JAX two choices of what to rewrite, as each is compiled.
            chosen = data.draw(st.sampled_from([names[:1], names]) if self.sizes else st.sets(st.sampled_from(names)))
            some = [name for name in names if name in chosen] if names else []
        items, rewrite = None, [dict[int, bytes]() for _ in range(n)]
        given: list[Any] = []
        if some:
            arrays = self.random_items(data, n)
            position, items = 0, {}
            for name in self.spec.item:
                count = len(specs_in(self.spec.item[name]))
                if name in some:
                    part = [self.give(data, backend, x) for x in arrays[position : position + count]]
                    given += part
                    items[name] = build(self.spec.item[name], iter(part))
                    for k in range(n):
                        rewrite[k] |= {
                            i: np.ascontiguousarray(arrays[i][k]).tobytes() for i in range(position, position + count)
                        }
                position += count
        companions = [None if x is None else self.give(data, backend, x) for x in (handles, new)]
        after = backend.update(state, *companions, items)
        self.overwrite([*given, *(x for x in companions if x is not None)])
        model = copy.deepcopy(model)
        model.update(handles.tolist(), self.serials(model, handles), None if new is None else new.tolist(), rewrite)
        self.keep(after, backend, model)

    @rule(data=st.data())
    def sample(self, data: st.DataObject) -> None:
        state, backend, model = self.choose(data)
        key = backend.rb.key(data.draw(st.integers(0, 2**32 - 1), "key"))
        beta = None
        if isinstance(self.spec.sampler, frb.Prioritized):
            beta = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0]), "beta")
        drawable = model.drawable
        assert bool(backend.rb.can_sample(state, 1)) == bool(drawable)
        assert not bool(backend.rb.can_sample(state, len(model.entries) + 1))
        if not drawable:
            if backend.name != "jax-jit":
                with pytest.raises(ValueError, match=r"empty|positive priority"):
                    backend.sample(state, key, 4, beta)
            return
        after, sample = backend.sample(state, key, 4, beta)
        handles = backend.numpy(sample.indices)
        arrays = [backend.numpy(leaf) for leaf in arrays_in(self.spec.item, sample.items)]
        total = math.fsum(entry.value for entry in drawable)
        least = min(entry.value for entry in drawable)
        beta = getattr(self.spec.sampler, "beta", 0.0) if beta is None else beta
        for k, serial in enumerate(self.serials(model, handles)):
            entry = model.find(serial)
            assert entry in drawable
            assert entry is not None
            assert rows_of(arrays, 4)[k] == entry.leaves
            uniform = isinstance(self.spec.sampler, frb.Uniform)
            chance = 1 / len(drawable) if uniform else entry.value / total
            weight = 1.0 if uniform else (entry.value / least) ** -beta
            assert float(sample.probabilities[k]) == pytest.approx(chance, rel=1e-6)
            assert float(sample.weights[k]) == pytest.approx(weight, rel=1e-6)
        if backend.library == "torch":
            self.overwrite(arrays_in(self.spec.item, sample.items))
        self.keep(after, backend, copy.deepcopy(model))

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        state, backend, model = self.choose(data)
        if data.draw(st.integers(0, 3), "seldom"):
            return
        model = copy.deepcopy(model)
        model.entries, model.peak = [], 0.0
        self.keep(backend.clear(state), backend, model)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        kept = self.choose(data)
        self.check_by_handle(kept)

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        # On torch this gives the memory out, which then moves: seldom, so that the other way is tried too.
        kept = self.choose(data)
        if data.draw(st.integers(0, 2), "seldom") == 0:
            self.check_arrays(kept)

    @precondition(lambda self: len(self.backends) > 1)
    @rule(data=st.data())
    def bridge(self, data: st.DataObject) -> None:
        state, backend, model = self.choose(data)
        other = next(x for x in self.backends if x is not backend)
        self.keep(other.rb.from_dlpack(state), other, model)

    def check_by_handle(self, kept: Kept) -> None:
        """All of the live items, and some that are gone, at one shape."""
        state, backend, model = kept
        capacity, limit = self.spec.capacity, modulus(self.spec.capacity)
        handles = np.array([(model.serial - capacity - 1 + k) % limit for k in range(capacity + 2)], np.int32)
        got = backend.rb.get(state, handles)
        rows = rows_of([backend.numpy(x) for x in arrays_in(self.spec.item, got)], len(handles))
        serials = self.serials(model, handles)
        assert backend.numpy(backend.rb.is_live(state, handles)).tolist() == [s is not None for s in serials]
        blank = tuple(bytes(len(leaf)) for leaf in rows[0])
        for row, serial in zip(rows, serials, strict=True):
            entry = model.find(serial)
            assert row == (blank if entry is None else entry.leaves)
        assert int(backend.rb.size(state)) == len(model.entries)
        assert int(backend.rb.rejected(state)) == model.rejected
        assert int(backend.rb.stale(state)) == model.stale

    def check_arrays(self, kept: Kept) -> None:
        """The arrays themselves, as `items` and the tree give them."""
        state, backend, model = kept
        got = [backend.numpy(x) for x in arrays_in(self.spec.item, backend.rb.items(state))]
        assert [x.shape for x in got] == [(self.spec.capacity, *leaf.shape) for leaf in self.leaves]
        assert [x.dtype.name for x in got] == [leaf.dtype for leaf in self.leaves]
        rows = rows_of(got, self.spec.capacity)
        for entry in model.entries:
            assert rows[entry.serial % self.spec.capacity] == entry.leaves
        if isinstance(self.spec.sampler, frb.Prioritized):
            values = np.zeros(self.spec.capacity)
            for entry in model.entries:
                values[entry.serial % self.spec.capacity] = entry.value
            stored = backend.numpy(state.tree).reshape(-1)[: self.spec.capacity]
            np.testing.assert_allclose(stored, values, rtol=ROUNDING)

    def teardown(self) -> None:
        try:
            # From the oldest or from the newest: torch rebuilds older states from the newer ones.
            for kept in self.kept if len(self.kept) % 2 else reversed(self.kept):
                self.check_by_handle(kept)
                self.check_arrays(kept)
        finally:
            self.stack.close()


class OnTorch(Histories):
    variants = ("torch",)


class OnTorchOperations(Histories):
    variants = ("torch-core",)


class InPlace(Histories):
    variants = ("torch-inplace",)


class OnBoth(Histories):
    variants = ("jax", "torch")
    specs = st.sampled_from(POOL)
    sizes = (0, 1, 3, 9)


class OnBothOperations(Histories):
    variants = ("jax-core", "torch-core")
    specs = st.sampled_from([POOL[0], POOL[2]])
    sizes = (1, 5)  # an empty batch goes to the core in `OnBoth` too


class Jitted(Histories):
    variants = ("jax-jit",)
    specs = st.sampled_from([POOL[1], POOL[5]])
    sizes = (0, 1, 3)


def settings(examples: int, steps: int) -> hypothesis.settings:
    return hypothesis.settings(hypothesis.settings.default, max_examples=examples, stateful_step_count=steps)


TestOnTorch = OnTorch.TestCase
TestOnTorch.settings = settings(40, 25)
TestOnTorchOperations = OnTorchOperations.TestCase
TestOnTorchOperations.settings = settings(40, 15)
TestInPlace = InPlace.TestCase
TestInPlace.settings = settings(40, 20)
TestOnBoth = OnBoth.TestCase
TestOnBoth.settings = settings(18, 25)
TestOnBothOperations = OnBothOperations.TestCase
TestOnBothOperations.settings = settings(10, 20)
TestJitted = Jitted.TestCase
TestJitted.settings = settings(30, 20)


@pytest.mark.parametrize("name", ["jax", "torch", "torch-inplace"])
@pytest.mark.parametrize("sampler", [frb.Uniform(), ONE_ALPHA], ids=["uniform", "prioritized"])
def test_a_million_and_three(name: str, sampler: Any) -> None:
    capacity, chunk = 1_000_003, 250_001
    with backends.make(name) as backend:
        state = backend.init(frb.BufferSpec({"n": frb.Unbounded((), "int32")}, capacity, sampler))
        for start in range(0, 5 * chunk, chunk):
            older, state = state, backend.add(state, {"n": np.arange(start, start + chunk, dtype=np.int32)})
        added = 5 * chunk
        assert int(backend.rb.size(state)) == capacity
        state, sample = backend.sample(state, backend.rb.key(3), 512)
        handles = backend.numpy(sample.indices)
        assert handles.min() >= added - capacity
        assert handles.max() < added
        np.testing.assert_array_equal(backend.numpy(sample.items["n"]), handles)
        gone = np.array([0, added - capacity - 1, added], np.int32)
        mixed = np.concatenate([handles, gone])
        companions = [] if isinstance(sampler, frb.Uniform) else [np.full(mixed.size, 2, np.float32)]
        state = backend.update(state, mixed, *companions, items={"n": -mixed})
        assert int(backend.rb.stale(state)) == gone.size
        got = backend.numpy(backend.rb.get(state, mixed)["n"])
        np.testing.assert_array_equal(got, [*-handles, 0, 0, 0])
        serials = np.arange(added - capacity, added)
        expected = np.zeros(capacity, np.int64)
        expected[serials % capacity] = np.where(np.isin(serials, handles), -serials, serials)
        np.testing.assert_array_equal(backend.numpy(backend.rb.items(state)["n"]), expected)
        if not backend.consumes:
            before = np.arange(4 * chunk - capacity if 4 * chunk > capacity else 0, 4 * chunk)
            stored = backend.numpy(backend.rb.items(older)["n"])
            np.testing.assert_array_equal(stored[before % capacity], before)


@pytest.mark.parametrize("name", ["jax", "jax-core", "torch"])
def test_what_the_caller_writes_to_his_arrays_afterwards_is_not_seen(name: str) -> None:
    # On JAX numbers are read in the background: an environment that writes its next observation into the same
    # array would have got into the buffer.
    spec = frb.BufferSpec({"x": frb.Unbounded((16_384,))}, 64)
    with backends.make(name) as backend:
        for k in range(60):
            x = np.full((64, 16_384), k, np.float32)
            state = backend.add(backend.init(spec), {"x": x})
            x[...] = -1
            assert (backend.numpy(backend.rb.items(state)["x"]) == k).all()
