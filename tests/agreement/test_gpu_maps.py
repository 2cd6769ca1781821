"""Hash maps by kernels for GPUs: emulated in several orders, beside the reference to the bit, on torch and on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as hnp
from jax import lax

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.hash_maps import functions
from functional_rb.ops import numpy_ops
from functional_rb.structures import hash_map
from functional_rb.structures.hash_map import EMPTY, HashTable, MapPlan
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import bits, cuda, otherwise
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops
from torch_backend.arrays.ops import DTYPES
from torch_backend.kernels import launches

pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
INSERT, LOOKUP = (launches.TABLE[function] for function in (hash_map.insert, hash_map.lookup))
PLANS: Final = (
    *(MapPlan(1, 1, 5), MapPlan(7, 1, -6, hash_bits=2), MapPlan(40, 2, 7, hash_bits=3), MapPlan(40, 5, 2**64 - 1)),
)
WAYS: Final = [(order, 3, share) for order in emulated_gpu.ORDERS for share in (1, 4096)]
MOST: Final = 2**31 - 1


def tensors(map: HashTable) -> HashTable:
    return HashTable(*(torch.from_numpy(np.array(x)) for x in map))


def arrays(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in tree]


@st.composite
def programs(draw: Any) -> tuple[MapPlan, list[tuple[np.ndarray, np.ndarray | None]]]:
    """A map, and batches of few different keys, some of them masked; together more than it has room for."""
    plan, few = draw(st.sampled_from(PLANS)), st.integers(-4, 4) | st.sampled_from([MOST, -(2**31), EMPTY - 1])
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 70))
        rows = draw(hnp.arrays(np.int32, (n, plan.words), elements=few, fill=st.nothing()))
        batches.append((rows, draw(st.none() | hnp.arrays(bool, n))))
    return plan, batches


@pytest.mark.parametrize(("order", "blocks", "share"), WAYS)
@hypothesis.settings(max_examples=effort(12, 500))
@hypothesis.given(programs(), st.sampled_from([0, MOST - 1]))
def test_batches_are_as_one_by_one(order: str, blocks: int, share: int, given: Any, before: int) -> None:
    plan, batches = given
    empty = hash_map.init(numpy_ops, plan)
    expected = empty._replace(counts=empty.counts + before, counters=np.array([0, before], np.int32))
    found = tensors(expected)
    for rows, mask in batches:
        expected, *told = hash_map.insert(numpy_ops, plan, expected, rows, mask)
        marked = None if mask is None else torch.from_numpy(mask)
        with emulated_gpu.using(order, blocks, share) as emulated:
            found, *of_each = INSERT(plan, found, torch.from_numpy(rows), marked)
            ids = LOOKUP(plan, found, torch.from_numpy(rows))
        assert arrays(of_each) == arrays(told)
        assert arrays(found) == arrays(expected)
        assert arrays([ids]) == arrays([hash_map.lookup(numpy_ops, plan, expected, rows)])
        kept = ["keep_keys"] if rows.size > 4 * share else []
        assert [name for name, _ in emulated.launched] == ["find_keys", "enter_keys", *kept, "find_keys"]


@pytest.mark.parametrize("order", ["scattered", "backward"])
def test_large_batches(order: str) -> None:
    """Of several blocks; more new keys than the map has room for, most of which begin at few places."""
    plan, rng = MapPlan(900, 2, 3, hash_bits=4), np.random.default_rng(0)
    expected = hash_map.init(numpy_ops, plan)
    found = tensors(expected)
    for count, different in ((300, 40), (700, 1000)):
        rows = rng.integers(-different, different, (count, 2)).astype(np.int32)
        expected, *told = hash_map.insert(numpy_ops, plan, expected, rows, None)
        with emulated_gpu.using(order, share=30) as emulated:
            found, *of_each = INSERT(plan, found, torch.from_numpy(rows), None)
        assert arrays([*found, *of_each]) == arrays([*expected, *told])
        assert dict(emulated.launched)["keep_keys"] == (-(-count // 32), 1)
    assert expected.counters.tolist()[1] > 0


GUARD: Final = 64
WILD: Final = st.sampled_from([-(2**31), -3, -1, 0, 1, 2, 4, 5, 6, 9, 11, 12, 2**20, 2**30, MOST - 1, EMPTY])
SMALL: Final = MapPlan(5, 2, 6, hash_bits=2)


@hypothesis.settings(max_examples=effort(60, 2000))
@hypothesis.given(st.data(), hnp.arrays(np.int32, (6, 2), elements=st.integers(0, 2)))
def test_no_map_makes_a_kernel_leave_its_arrays_or_go_on_for_ever(data: st.DataObject, rows: np.ndarray) -> None:
    sizes = [int(np.prod(shape)) for shape in hash_map.shapes(SMALL)]
    whole = [torch.full((n + 2 * GUARD,), 7, dtype=torch.int32) for n in sizes]
    inner = [x[GUARD : GUARD + n].view(shape) for x, n, shape in zip(whole, sizes, hash_map.shapes(SMALL), strict=True)]
    for x, elements in zip(inner, (WILD, st.integers(0, 2), WILD, WILD), strict=True):
        x[...] = torch.from_numpy(data.draw(hnp.arrays(np.int32, tuple(x.shape), elements=elements)))
    with emulated_gpu.using("scattered", share=1):
        _, ids, _ = INSERT(SMALL, HashTable(*inner), torch.from_numpy(rows), None)
        found = LOOKUP(SMALL, HashTable(*inner), torch.from_numpy(rows))
    for x, n in zip(whole, sizes, strict=True):
        assert (torch.cat([x[:GUARD], x[GUARD + n :]]) == 7).all()
    for numbers in (ids, found):
        assert ((numbers >= -1) & (numbers < SMALL.capacity)).all()


def test_elements_of_another_size_are_an_error() -> None:
    map = tensors(hash_map.init(numpy_ops, SMALL))
    marked: Any = torch.ones(2, dtype=torch.int32)
    with emulated_gpu.using("forward") as emulated, pytest.raises(TypeError, match="elements of another size"):
        INSERT(SMALL, map, torch.zeros(2, SMALL.words, dtype=torch.int32), marked)
    assert emulated.launched == []


# --- public functions -------------------------------------------------------------------------------------------------

NEST: Final = {"cell": frb.Unbounded((2,), "int32"), "speed": frb.Unbounded(())}
SPEC: Final = frb.HashMapSpec(NEST, 20, seed=3, hash_bits=3)
ODD: Final = (0.0, -0.0, np.nan, 1.5)


def keys(seed: int, *lead: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"cell": rng.integers(0, 3, (*lead, 2)).astype(np.int32), "speed": rng.choice(ODD, lead).astype(np.float32)}


def mask(seed: int, *lead: int) -> np.ndarray:
    return np.random.default_rng(seed).random(lead) < 0.7


def life(rb: Any) -> list[bytes]:
    """What is told of a map, and what is in it; an older one stays as it is."""
    older, inserted = rb.add(rb.init(SPEC), keys(0, 9))
    newer, again = rb.add(older, keys(1, 3, 4), mask(1, 3, 4))
    large = rb.with_spec(newer, frb.HashMapSpec(NEST, 40, seed=4))
    own, more = rb.add_(large, keys(2, 30))
    told = [*inserted, *again, *more, rb.lookup(older, keys(1, 12)), rb.visits(own, keys(2, 30)), rb.size(newer)]
    return arrays([*told, *(getattr(map, name) for map in (older, newer, own) for name in HashTable._fields)])


def test_public_functions_of_torch() -> None:
    expected = life(torch_backend)
    with emulated_gpu.using("scattered", blocks=3) as emulated:
        assert life(torch_backend) == expected
        emulated.note()
        before = len(emulated.launched)
        with frb.kernels(False):
            assert life(torch_backend) == expected
    names = [name for name, _ in emulated.launched]
    assert {name: names.count(name) for name in {*names}} == {"find_keys": 6, "enter_keys": 4}
    assert len(names) == before


@pytest.mark.parametrize("count", [9, 300])
def test_a_batch_of_any_size_is_put_in_by_three_launches(count: int) -> None:
    """As its keys are packed by the launch that looks for them; where they are many the third copies them."""
    given = torch_backend.from_dlpack(keys(0, count))
    expected, told = torch_backend.add(torch_backend.init(SPEC), given, torch.arange(count) % 3 > 0)
    with emulated_gpu.using("scattered", blocks=3, share=30) as emulated:
        found, inserted = torch_backend.add_(torch_backend.init(SPEC), given, torch.arange(count) % 3 > 0)
        ids = torch_backend.lookup(found, given)
    assert arrays([*inserted, ids]) == arrays([*told, torch_backend.lookup(expected, given)])
    assert all(arrays([getattr(found, x)]) == arrays([getattr(expected, x)]) for x in HashTable._fields)
    third = ["keep_keys"] if count == 300 else []
    assert [name for name, _ in emulated.launched] == ["find_keys", "enter_keys", *third, "find_keys"]


def test_keys_of_more_leaves_than_a_launch_can_name_are_put_in_by_the_core() -> None:
    spec = frb.HashMapSpec({f"x{k}": frb.Unbounded((), "int32") for k in range(50)}, 20)
    given = {name: torch.arange(6, dtype=torch.int32) % 4 for name in spec.key}
    expected = torch_backend.add(torch_backend.init(spec), given)[1]
    with emulated_gpu.using("scattered") as emulated:
        found = torch_backend.add(torch_backend.init(spec), given)[1]
    assert arrays(found) == arrays(expected)
    assert [name for name, _ in emulated.launched] == ["find_keys", "enter_keys"]


@hypothesis.settings(max_examples=effort(15, 500))
@hypothesis.given(
    st.sampled_from(["float16", "bfloat16", "float32", "float64", "complex64", "int8", "int64"]), st.data()
)
def test_keys_are_packed_as_by_the_reference(dtype: str, data: st.DataObject) -> None:
    """Any bits of floats, beside leaves that do not fill a word."""
    spec = frb.HashMapSpec({"a": frb.Binary((3,)), "x": frb.Unbounded((2,), dtype), "n": frb.Unbounded((0,))}, 4)
    size, n = ITEMSIZE[dtype], data.draw(st.integers(1, 5))
    wild = st.sampled_from([0, 0x7F, 0x80, 0xFF, 0x7C, 0xF0, 1])
    given = torch.from_numpy(data.draw(hnp.arrays(np.uint8, (n, 2 * size), elements=wild, fill=st.nothing())))
    leaves = {"a": torch.ones(n, 3, dtype=torch.bool), "x": given.view(DTYPES[dtype]), "n": torch.zeros(n, 0)}
    leaves = [leaves[path[0]] for path, _, _ in spec.rows.leaves]
    expected = functions.rows_of_keys.core(torch_ops, spec.rows, leaves)
    with emulated_gpu.using("scattered", blocks=2) as emulated:
        assert torch.equal(launches.TABLE[functions.rows_of_keys](spec.rows, leaves), expected)
    assert [name for name, _ in emulated.launched] == ["pack_keys"]


def in_a_scan(map: Any) -> Any:
    batches = [jax.tree.map(jnp.asarray, (keys(k, 5), mask(k, 5))) for k in range(3)]
    turns = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    return lax.scan(lambda map, given: jax_backend.add(map, *given), map, turns)


def by_vmap(map: Any) -> Any:
    maps = jax.vmap(lambda _: map)(jnp.arange(2))
    maps, inserted = jax.vmap(jax_backend.add)(maps, jax.tree.map(jnp.asarray, keys(0, 2, 6)))
    asked = jax.tree.map(jnp.asarray, keys(1, 4))
    return maps, inserted, jax.vmap(jax_backend.lookup, in_axes=(0, None))(maps, asked)


def in_a_cond(map: Any) -> Any:
    given = jax.tree.map(jnp.asarray, keys(0, 6))
    return lax.cond(jax_backend.size(map) < 5, lambda: jax_backend.add(map, given)[0], lambda: map)


def in_place(map: Any) -> Any:
    for k in range(3):
        map, inserted = jax_backend.add_(map, keys(k, 6), mask(k, 6))
    return map, inserted, jax_backend.visits(map, keys(1, 8))


PROGRAMS: Final[dict[str, Callable[[Any], Any]]] = {
    "scan": jax.jit(in_a_scan, donate_argnums=0),
    "vmap": jax.jit(by_vmap),
    "cond": jax.jit(in_a_cond),
    "in place": in_place,
}


def run(program: str) -> Any:
    map, _ = jax_backend.add(jax_backend.init(SPEC), keys(7, 3))
    return bits(PROGRAMS[program](map))


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_jax(program: str) -> None:
    with otherwise():
        expected = run(program)
    with gpu_on_xla.using("scattered", blocks=4, share=3) as emulated:
        assert run(program) == expected
    assert {name for name, _ in emulated.launched} >= {"find_keys", "enter_keys", "keep_keys"}


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_jax_on_a_gpu(program: str) -> None:
    with otherwise():
        expected = run(program)
    assert run(program) == expected
