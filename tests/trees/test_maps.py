"""Hash maps against a Python dict, on each carrier and bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as hnp

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.hash_maps.functions import problem
from functional_rb.ops import numpy_ops
from functional_rb.structures import hash_map, key_rows
from functional_rb.structures.hash_map import EMPTY, HashTable, MapPlan
from functional_rb.structures.key_rows import KeyRows
from tests.support.backends import Backend
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.part_kernels import Jax, Numpy, Torch
from tests.support.versions import enable_x64
from tests.support.xla_options import AS_USERS

PLANS = [MapPlan(1, 1, 5), MapPlan(5, 1, 6, hash_bits=2), MapPlan(40, 2, 7, hash_bits=2), MapPlan(40, 2, 8)]
# Few plans and one size of batch, so that JAX compiles little.
BATCH = 24


class Listed:
    """The law of a map: a dict, and how often each key came."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.refused = capacity, 0
        self.ids: dict[tuple[int, ...], int] = {}
        self.counts: dict[tuple[int, ...], int] = {}

    def insert(self, key: tuple[int, ...]) -> tuple[int, bool]:
        fresh = key not in self.ids
        if fresh and len(self.ids) == self.capacity:
            self.refused += 1
            return -1, False
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.ids.setdefault(key, len(self.ids)), fresh


@functools.cache
def carriers(plan: MapPlan) -> list[tuple[Any, Any]]:
    """The library, and `insert` of it, of each way of carrying it out."""

    def insert(ops: Any, arrays: HashTable, rows: Any, mask: Any) -> Any:
        return hash_map.insert(ops, plan, arrays, rows, mask)

    made = [(on, form(insert)) for on in (Numpy, Torch) for form in (on.plain, on.kernels)]
    return [*made, (Jax, Jax.plain(insert)), (Jax, Jax.kernels(insert))]


# Where counts stay.
MOST = 2**31 - 1


def counted(plan: MapPlan, before: int) -> HashTable:
    """An empty map, of whose keys each has been counted before, as have keys that were refused."""
    empty = hash_map.init(numpy_ops, plan)
    return empty._replace(counts=empty.counts + before, counters=np.array([0, before], np.int32))


def batches(plan: MapPlan) -> st.SearchStrategy[list[tuple[np.ndarray, np.ndarray]]]:
    few = st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31), EMPTY - 1])
    rows = hnp.arrays(np.int32, (BATCH, plan.words), elements=few)
    return st.lists(st.tuples(rows, hnp.arrays(bool, BATCH)), min_size=1, max_size=3)


@pytest.mark.few(2)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_batch_is_as_one_by_one_on_all_carriers(plan: MapPlan) -> None:
    @hypothesis.settings(max_examples=effort(15, 500))
    @hypothesis.given(batches(plan), st.sampled_from([0, MOST - 1]))
    def check(given: list[tuple[np.ndarray, np.ndarray]], before: int) -> None:
        law, singly = Listed(plan.capacity), counted(plan, before)
        maps = [HashTable(*map(on.array, counted(plan, before))) for on, _ in carriers(plan)]
        for rows, mask in given:
            expected = [
                law.insert(tuple(row)) if marked else (-1, False) for row, marked in zip(rows, mask, strict=True)
            ]
            for row in rows[mask]:
                singly, *_ = hash_map.insert(numpy_ops, plan, singly, row[None], None)
            for k, (on, insert) in enumerate(carriers(plan)):
                maps[k], ids, fresh = insert(maps[k], on.array(rows), on.array(mask))
                assert on.numpy(ids).tolist() == [number for number, _ in expected]
                assert on.numpy(fresh).tolist() == [new for _, new in expected]
                for ours, theirs in zip(maps[k], singly, strict=True):
                    np.testing.assert_array_equal(on.numpy(ours), theirs)
        assert singly.counters.tolist() == [len(law.ids), min(before + law.refused, MOST)]
        assert singly.counts[: len(law.ids)].tolist() == [min(before + n, MOST) for n in law.counts.values()]
        known = list(law.ids)
        asked = np.array([*known, (9,) * plan.words], np.int32)
        for on in (Numpy, Torch):
            for form in (on.plain, on.kernels):
                found = form(lambda ops, arrays, rows: hash_map.lookup(ops, plan, arrays, rows))(
                    HashTable(*map(on.array, singly)), on.array(asked)
                )
                assert on.numpy(found).tolist() == [*range(len(known)), -1]

    check()


def test_more_new_keys_than_places() -> None:
    """A batch that would fill the whole table several times over ends, and the first keys are in."""
    plan = MapPlan(3, 1, hash_bits=2)
    rows = np.arange(100, dtype=np.int32)[:, None]
    made, ids, _ = hash_map.insert(numpy_ops, plan, hash_map.init(numpy_ops, plan), rows, None)
    assert ids.tolist() == [0, 1, 2] + [-1] * 97
    assert made.counters.tolist() == [3, 97]
    assert (made.table != EMPTY).sum() == 3


def test_few_keys_begin_in_the_same_place() -> None:
    """As many places are taken by no, one, ... keys as for random ones (Poisson), whatever pattern the keys have."""
    side = 300
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2).astype(np.int32)
    for rows in (grid, grid.astype(np.float32).view(np.int32), grid << 20, -grid):
        plan = MapPlan(len(rows), 2, 3)
        load = len(rows) / plan.table_size
        taken = np.bincount(np.bincount(hash_map.homes(numpy_ops, plan, rows), minlength=plan.table_size))
        expected = [math.exp(-load) * load**k / math.factorial(k) for k in range(4)]
        np.testing.assert_allclose(taken[:4] / plan.table_size, expected, rtol=0.05)


def test_places_are_the_same_in_each_process() -> None:
    """Maps that are saved today are read tomorrow."""
    rows = np.array([[1, 2], [-1, 0], [0, 0]], np.int32)
    found = [hash_map.homes(numpy_ops, MapPlan(40, 2, seed), rows).tolist() for seed in (0, 1)]
    assert found == [[51, 34, 35], [0, 10, 57]]


# --- keys -----------------------------------------------------------------------------------------------------------

FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_zero_and_one_nan(library: Backend, dtype: str) -> None:
    kind = numpy_ops.dtype_of(dtype)
    word = np.dtype(f"u{FLOATS[dtype]}")
    tiny, one = np.array([1], word).view(kind), np.array([1], kind)
    nan = np.array([np.nan], kind)
    other_nan = (nan.view(word) ^ np.array([1 << (8 * word.itemsize - 1) | 1], word)).view(kind)
    values = np.concatenate([np.zeros(1, kind), -np.zeros(1, kind), tiny, -tiny, one, nan, other_nan, -nan])
    values = np.concatenate([values, np.array([np.inf, -np.inf], kind)])
    with enable_x64(dtype == "float64"):
        rb, spec = library.rb, frb.HashMapSpec(frb.Unbounded((), dtype), 20)
        made, inserted = rb.add(rb.init(spec), library.array(values))
        assert inserted.ids.tolist() == [0, 0, 1, 2, 3, 4, 4, 4, 5, 6]
        stored = library.numpy(rb.items(made))[:7]
        np.testing.assert_array_equal(stored.astype(np.float64), values[[0, 2, 3, 4, 5, 8, 9]].astype(np.float64))


NEST = {
    "a": frb.Unbounded((2, 3), "uint8"),
    "b": (frb.Binary((5,)), frb.Unbounded((), "int16")),
    "c": frb.Unbounded((2,), "complex64"),
    "image": frb.Unbounded((40, 40), "uint8"),
    "none": frb.Unbounded((0, 3)),
}


def test_keys_are_any_nest_and_come_back(library: Backend) -> None:
    rb, spec = library.rb, frb.HashMapSpec(NEST, 6, seed=3)
    given = rb.rand(NEST, rb.key(1), (2, 2))
    made, inserted = rb.add(rb.init(spec), given, mask=np.array([[True, True], [False, True]]))
    assert inserted.ids.tolist() == [[0, 1], [-1, 2]]
    assert rb.lookup(made, given).tolist() == [[0, 1], [-1, 2]]
    assert rb.visits(made, given).tolist() == [[1, 1], [0, 1]]
    stored = rb.items(made)
    for ours, theirs in zip(jax.tree.leaves(stored), jax.tree.leaves(given), strict=True):
        flat = library.numpy(theirs).reshape(4, *theirs.shape[2:])
        np.testing.assert_array_equal(library.numpy(ours)[:3], flat[[0, 1, 3]])
    single = jax.tree.map(lambda x: library.array(library.numpy(x)[0, 1]), given)
    assert int(rb.lookup(made, single)) == 1
    assert spec.rows.words == 4 + 404  # 2 complex numbers; 1 int16, 11 bytes and 1600, padded
    assert spec.nbytes == sum(4 * math.prod(x.shape) for x in (made.table, made.keys, made.counts, made.counters))


def test_each_byte_of_a_key_counts() -> None:
    keys = KeyRows((((), (1600,), "uint8"), (("b",), (3,), "bool"))[:1])
    image = np.zeros((1600, 1600), np.uint8)
    image[np.arange(1600), np.arange(1600)] = 1
    rows = key_rows.pack(numpy_ops, keys, [image], np.zeros(1600, np.int32))
    plan = MapPlan(1600, keys.words, hash_bits=2)
    _, ids, _ = hash_map.insert(numpy_ops, plan, hash_map.init(numpy_ops, plan), rows[:50], None)
    assert ids.tolist() == list(range(50))
    assert len({row.tobytes() for row in rows}) == 1600


# --- the public functions -------------------------------------------------------------------------------------------

PAIR = frb.HashMapSpec(frb.Unbounded((2,), "int32"), 8, hash_bits=2)
PAIRS = np.array([[1, 2], [3, 4], [1, 2], [5, 6]], np.int32)


def test_a_map_is_a_value(library: Backend) -> None:
    rb = library.rb
    empty = rb.init(PAIR)
    first, _ = rb.add(empty, library.array(PAIRS[:2]))
    second, _ = rb.add(first, library.array(PAIRS))
    assert [int(rb.size(x)) for x in (empty, first, second)] == [0, 2, 3]
    assert rb.visits(first, library.array(PAIRS)).tolist() == [1, 1, 1, 0]
    assert pickle.loads(pickle.dumps(PAIR)) == PAIR
    assert repr(first) == f"HashMap({PAIR!r})"


def test_insert_in_place_consumes(library: Backend) -> None:
    rb = library.rb
    old, _ = rb.add(rb.init(PAIR), library.array(PAIRS[:1]))
    where = old.keys.unsafe_buffer_pointer() if library.library == "jax" else old.keys.data_ptr()
    new, inserted = rb.add_(old, library.array(PAIRS))
    assert inserted.ids.tolist() == [0, 1, 0, 2]
    assert where == (new.keys.unsafe_buffer_pointer() if library.library == "jax" else new.keys.data_ptr())
    for use in (rb.size, lambda x: rb.add(x, PAIRS), lambda x: rb.lookup(x, PAIRS)):
        with pytest.raises(RuntimeError, match="consumed"):
            use(old)


def test_what_does_not_fit_is_refused(library: Backend) -> None:
    rb, made = library.rb, library.rb.init(PAIR)
    for use in (rb.lookup, rb.visits):
        with pytest.raises(TypeError, match=f"{use.__name__}: expected HashMap or Forest, got State"):
            use(rb.init(frb.BufferSpec(frb.Unbounded(()), 3)), PAIRS)
    for use, who, name in (
        (lambda: rb.visits(made, PAIRS, PAIRS), "visits: a HashMap", "action"),
        (lambda: rb.size(made, each=True), "size: a HashMap", "each"),
        (lambda: rb.init(PAIR, items=PAIRS), "init: a HashMapSpec", "items"),
        (lambda: rb.add(made, PAIRS, priorities=np.ones(4)), "add: a HashMap", "priorities"),
        (lambda: rb.init(PAIR, validate=True), "init: a HashMapSpec", "validate"),
        (lambda: rb.init(PAIR, sharding=3), "init: a HashMapSpec", "sharding"),
    ):
        with pytest.raises(TypeError, match=f"^{who} has no use for {name}; leave it out$"):
            use()
    for use, who in ((rb.add, "add"), (rb.add_, "add_")):
        with pytest.raises(ValueError, match=f"^{who}: expected a mask of shape"):
            use(made, PAIRS, mask=np.ones(3, bool))
    with pytest.raises(TypeError, match=r"^with_spec: expected a HashMapSpec, got int$"):
        rb.with_spec(made, 3)
    with pytest.raises(TypeError, match=r"expected (dtype )?int32"):
        rb.add(made, PAIRS.astype(np.int64))
    others = (torch_backend if library.library == "jax" else jax_backend).init(PAIR)
    for use in (
        rb.size,
        rb.items,
        lambda x: rb.add_(x, PAIRS),
        lambda x: rb.lookup(x, PAIRS),
    ):
        with pytest.raises(TypeError, match=r"a map of this backend; bring it over by rb\.from_dlpack\(map\)"):
            use(others)
    with pytest.raises(ValueError, match=r"expected shape \('...', 2\), got \(4, 3\)"):
        rb.add(made, np.zeros((4, 3), np.int32))
    with pytest.raises(ValueError, match=r"expected a mask of shape \(4,\), got \(3,\)"):
        rb.add(made, PAIRS, mask=np.ones(3, bool))


def test_specs_that_make_no_map_are_refused() -> None:
    key = frb.Unbounded(())
    for given, kind, text in (
        ({"capacity": 0}, ValueError, "capacity: expected 1 to 536870912, got 0"),
        ({"capacity": 2.5}, TypeError, "capacity: expected an int, got 2.5"),
        ({"hash_bits": 32}, ValueError, "hash_bits: expected 0 to 31, got 32"),
        ({"key": frb.Unbounded((0,))}, ValueError, "expected at least one element"),
        ({"key": frb.specs.NonTensor()}, TypeError, "expected a spec of an array, got NonTensor"),
    ):
        with pytest.raises(kind, match=text):
            frb.HashMapSpec(**{"key": key, "capacity": 4} | given)


def test_under_jit_scan_and_vmap() -> None:
    rb = jax_backend
    stacked = jnp.stack([jnp.asarray(PAIRS), jnp.asarray(PAIRS[::-1])])

    def insert(made: Any, keys: Any) -> Any:
        made, inserted = rb.add(made, keys)
        return made, inserted.ids

    made, ids = jax.jit(lambda made: jax.lax.scan(insert, made, stacked))(rb.init(PAIR))
    assert ids.tolist() == [[0, 1, 0, 2], [2, 0, 1, 0]]
    assert rb.visits(made, PAIRS).tolist() == [4, 2, 4, 2]
    many = jax.vmap(insert, in_axes=(None, 0))(rb.init(PAIR), stacked)
    assert many[1].tolist() == [[0, 1, 0, 2], [0, 1, 2, 1]]
    with frb.kernels(False):
        core = jax.vmap(insert, in_axes=(None, 0))(rb.init(PAIR), stacked)
    jax.tree.map(np.testing.assert_array_equal, core, many)


def test_in_a_loop_nothing_is_copied() -> None:
    spec = frb.HashMapSpec(frb.Unbounded((4,)), 1000)

    def run(made: Any, keys: Any) -> Any:
        return jax.lax.scan(lambda made, key: (jax_backend.add(made, key)[0], None), made, keys)[0]

    keys = jnp.zeros((3, 2, 4))
    program = jax.jit(run, donate_argnums=0).lower(jax_backend.init(spec), keys).compile(AS_USERS)
    assert big_copies(program.as_text(), 500) == []


@hypothesis.settings(max_examples=effort(10, 200))
@hypothesis.given(st.lists(st.integers(0, 9), max_size=12), st.lists(st.integers(0, 9), max_size=6))
def test_a_map_that_grows_is_that_of_all_keys(first: list[int], second: list[int]) -> None:
    """It keeps numbers, counts and what it has refused; and the given one stays as it is."""
    spec = frb.HashMapSpec(frb.Unbounded((), "int32"), capacity=5, hash_bits=1)
    large = frb.HashMapSpec(frb.Unbounded((), "int32"), capacity=20, seed=3)

    def put(insert: Any, made: Any, keys: list[int], most: int) -> Any:
        """Of one size, so that JAX compiles once."""
        return insert(made, np.array(keys + [0] * (most - len(keys)), np.int32), np.arange(most) < len(keys))[0]

    for rb in (torch_backend, jax_backend):
        made = put(rb.add, rb.init(spec), first, 12)
        kept, refused = list(dict.fromkeys(first))[:5], int(rb.counts(made).refused)
        larger = rb.with_spec(made, large)
        assert problem(jax.tree.map(np.asarray, larger)) is None
        larger = put(rb.add_, larger, second, 6)
        every = [x for x in first if x in kept] + second
        keys = np.arange(10, dtype=np.int32)
        assert np.asarray(rb.visits(larger, keys)).tolist() == [every.count(x) for x in keys]
        assert np.asarray(rb.items(larger))[: int(rb.size(larger))].tolist() == list(dict.fromkeys(every))
        assert int(rb.counts(larger).refused) == refused == len(first) - len(every) + len(second)
        assert np.asarray(rb.items(made))[: len(kept)].tolist() == kept
        if len(kept) > 1:
            with pytest.raises(ValueError, match=rf"expected room for {len(kept)} keys, got a spec for 1; give more"):
                rb.with_spec(made, dataclasses.replace(spec, capacity=1))


def test_a_map_of_other_keys_is_refused(library: Backend) -> None:
    made = library.rb.init(PAIR)
    with pytest.raises(ValueError, match=r"with_spec: expected the same key"):
        library.rb.with_spec(made, frb.HashMapSpec(frb.Unbounded(()), 4))
    with pytest.raises(TypeError, match=r"with_spec: expected a HashMapSpec, got int"):
        library.rb.with_spec(made, 4)


def test_compiled_by_torch_as_one_graph() -> None:
    rb = torch_backend

    def step(made: Any, keys: Any, mask: Any) -> Any:
        made, inserted = rb.add(made, keys, mask)
        return made, inserted.ids, rb.visits(made, keys), rb.lookup(made, keys)

    given = torch.from_numpy(PAIRS), torch.tensor([True, True, True, False])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(rb.init(PAIR), *given), step(rb.init(PAIR), *given)
    assert ours[0].spec == PAIR
    for one, other in zip(jax.tree.leaves(ours[1:]), jax.tree.leaves(theirs[1:]), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(ours[0].table, theirs[0].table)
    again = compiled(ours[0], *given)
    assert again[2].tolist() == [4, 2, 4, 0]


def test_torch_vmap_is_refused() -> None:
    made = torch_backend.init(PAIR)
    with pytest.raises(TypeError, match=r"torch\.vmap cannot map"):
        torch.vmap(lambda keys: torch_backend.lookup(made, keys))(torch.from_numpy(np.stack([PAIRS, PAIRS])))


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_keys_on_the_cpu_go_where_the_map_is_and_others_are_refused() -> None:
    made, keys = torch_backend.init(PAIR), torch.from_numpy(PAIRS)
    with pytest.raises(ValueError, match="expected all tensors on one device"):
        torch_backend.add(made, keys.to("meta"))
    # An accelerator without data: it gets as far as asking whether any key is left to look for.
    for given in (keys, PAIRS):
        with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta"):
            torch_backend.add(torch_backend.init(PAIR, device="meta"), given)
