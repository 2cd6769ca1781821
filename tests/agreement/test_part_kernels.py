"""Kernels of trees and rows return the same bits as the core does on plain primitives, on both backends."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend.arrays.ops as jax_ops
import torch_backend.arrays.ops as torch_ops
from functional_rb.native.kernels import DECLARED, WHOLE
from functional_rb.ops import part_kernels
from functional_rb.samplers import staleness
from functional_rb.structures import row_layout as layouts
from functional_rb.structures import sum_tree
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.sum_tree import FANOUT
from jax_backend import compat
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.headers import constants
from tests.support.part_kernels import (
    Jax,
    Numpy,
    Operations,
    Torch,
    assert_same,
    assert_same_parts,
    custom_calls,
    forms,
    jax_by_kernels,
    random_values,
    torch_by_kernels,
)
from tests.support.spec_pool import POOL, random_leaf
from tests.support.xla_options import AS_USERS

CAPACITIES = [1, 15, 16, 17, 300, 5000]
# On JAX, where each is compiled, a tree of four levels: the kernels are those of the others.
AT_CAPACITIES = [
    (on, capacity)
    for on in (Jax, Torch, Operations, Numpy)
    for capacity in (effort((5000,), CAPACITIES) if on is Jax else CAPACITIES)
]
# Leaves set at once: two shapes for all, so that JAX compiles twice for a capacity.
FEW, MANY = 24, 3000
EIGHT = frb.BufferSpec({"a": frb.Unbounded((2,), "int64"), "b": frb.Unbounded((), "float64"), "c": frb.Binary()}, 5)
Numbers = np.ndarray[Any, Any]


@pytest.fixture(params=[Jax, Torch, Operations, Numpy], ids=["jax", "torch", "operations", "numpy"])
def on(request: pytest.FixtureRequest) -> Any:
    return request.param


@functools.cache
def example_tree(capacity: int) -> Numbers:
    """A tree of such values."""
    leaves = torch.arange(capacity, dtype=torch.int32)
    tree = torch_ops.zeros((sum_tree.geometry(capacity).rows, FANOUT), "float32")
    values = torch.from_numpy(random_values(np.random.default_rng(capacity), capacity))
    return sum_tree.set_leaves(torch_ops, tree, capacity, leaves, values).numpy()


def random_draws(rng: np.random.Generator, n: int, capacity: int) -> Numbers:
    """Draws of which some lie at the ends."""
    draws = rng.integers(0, 2**31, (n, len(sum_tree.geometry(capacity).levels)))
    draws[: n // 4] = rng.choice([0, 2**31 - 1], draws[: n // 4].shape)
    return draws.astype(np.int32)


def leaves_in_patterns(rng: np.random.Generator, n: int, capacity: int) -> list[Numbers]:
    """Consecutive, wrapped, random, in few places, and all in one."""
    starts = [0, max(capacity - n // 2, 0)]
    patterns = [(start + np.arange(n)) % capacity for start in starts]
    patterns += [rng.integers(0, capacity, n), rng.choice(rng.integers(0, capacity, 5), n), np.full(n, capacity - 1)]
    return [leaves.astype(np.int32) for leaves in patterns]


@pytest.mark.parametrize(("on", "capacity"), AT_CAPACITIES, indirect=["on"])
def test_descend(on: Any, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    plain, native = forms(on, lambda ops, tree, draws: sum_tree.descend(ops, tree, capacity, draws))
    draws = on.array(random_draws(rng, 400, capacity))
    for tree in (example_tree(capacity), np.zeros_like(example_tree(capacity))):
        assert_same(on, native(on.array(tree), draws), plain(on.array(tree), draws))
    wider = on.array(np.concatenate([random_draws(rng, 400, capacity)] * 2, 1))
    assert_same(on, native(on.array(tree), wider), plain(on.array(tree), wider))
    assert_same(on, native(on.array(tree), draws[:0]), draws[:0, 0])


@pytest.mark.parametrize(("on", "capacity"), AT_CAPACITIES, indirect=["on"])
def test_draw_in_span(on: Any, capacity: int) -> None:
    """Of spans of any length, one without leaves and one of leaves of value 0 among them."""
    rng = np.random.default_rng(capacity)
    plain, native = forms(
        on,
        lambda ops, tree, first, end, which, draws: sum_tree.draw_in_span(
            ops, tree, capacity, first, end, which, draws
        ),
    )
    words = np.concatenate([random_draws(rng, 100, capacity), random_draws(rng, 100, capacity)[:, :1]], 1)
    for tree in (example_tree(capacity), np.zeros_like(example_tree(capacity))):
        cuts = np.sort(np.concatenate([[0, 0, capacity], rng.integers(0, capacity + 1, 3)])).astype(np.int32)
        for which in range(len(cuts) - 1):
            given = [on.array(x) for x in (tree, cuts[:-1], cuts[1:], np.array([which], np.int32), words)]
            found, expected = native(*given), plain(*given)
            for one, other in zip(found, expected, strict=True):
                assert_same(on, one, other)
            leaves, totals = on.numpy(found[0]), on.numpy(found[1])
            assert ((leaves >= 0) & (leaves < capacity)).all()
            if totals[which] > 0:
                assert ((leaves >= cuts[which]) & (leaves < cuts[which + 1])).all()


@pytest.mark.parametrize(("most", "power"), [(None, 1), (3, staleness.HIGHEST_POWER), (0, 0)])
def test_freshness(on: Any, most: int | None, power: int) -> None:
    """Of versions close by and of any, of which some lie so far apart that they wrap around."""
    rng = np.random.default_rng(power)
    plain, native = forms(on, lambda ops, version, made_by: staleness.freshness(ops, version, made_by, most, power))
    made_by = np.concatenate([rng.integers(-9, 9, 300), rng.integers(-(2**31), 2**31, 300)]).astype(np.int32)
    for version in (5, -(2**31)):
        given = on.array(np.array([version], np.int32)), on.array(made_by)
        assert_same(on, native(*given), plain(*given))


@pytest.mark.parametrize(("on", "capacity"), AT_CAPACITIES, indirect=["on"])
def test_set_leaves(on: Any, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    plain, native = forms(
        on, lambda ops, tree, leaves, values: sum_tree.set_leaves(ops, tree, capacity, leaves, values)
    )
    ours, theirs = on.array(example_tree(capacity)), on.array(example_tree(capacity))
    for n in (FEW, MANY):
        for leaves in leaves_in_patterns(rng, n, capacity):
            values = random_values(rng, capacity)[leaves]
            ours = native(ours, on.array(leaves), on.array(values))
            theirs = plain(theirs, on.array(leaves), on.array(values))
            assert_same(on, ours, theirs)
    assert_same(on, native(ours, on.array(leaves[:0]), on.array(values[:0])), theirs)


def test_large_levels_are_refreshed_leaf_by_leaf_and_by_sweeping() -> None:
    """So that the test above has gone both ways."""
    nodes = sum_tree.geometry(5000).levels[1].nodes
    sparse = constants("sum_tree.h")["SPARSE"]
    assert FEW * sparse < nodes < MANY * sparse


def random_batch(on: Any, spec: frb.BufferSpec, n: int, rng: np.random.Generator) -> list[Any]:
    return [on.array(random_leaf(leaf, n, rng)) for leaf in spec.plan.leaves]


def storing(on: Any, layout: Layout) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`layout.store` on plain primitives, and by the kernel."""
    return forms(on, lambda ops, *args: layouts.store(ops, layout, *args))


def reading(on: Any, layout: Layout) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return forms(on, lambda ops, *args: layouts.read(ops, layout, *args))


def batches_to_store(on: Any, capacity: int, rng: np.random.Generator) -> list[tuple[Any, Any, Any, int]]:
    """Slots, source, live and batch size, in all combinations; on JAX in those that differ in what is compiled."""
    n = min(capacity, 9)
    slots = on.array(((rng.integers(capacity) + np.arange(n)) % capacity).astype(np.int32))
    source = on.array(rng.integers(0, n, n).astype(np.int32))
    live = on.array(rng.random(n) < 0.6)
    choices = rng.integers(0, n, 12).astype(np.int32)
    repeated = (on.array(on.numpy(slots)[choices]), on.array(choices), on.array(choices % 3 > 0), n)
    found = [(slots, None, None, n), (slots, source, None, n), (slots, None, live, n + 4), repeated]
    return found if on is Jax else [*found, (slots, None, None, n + 4), (slots, source, live, n)]


def compare_storage(on: Any, spec: frb.BufferSpec, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    layout = spec.plan.layout
    store_plain, store_native = storing(on, layout)
    read_plain, read_native = reading(on, layout)
    ours, theirs = (layouts.allocate(on.ops, layout, capacity) for _ in range(2))
    for slots, source, live, batch in batches_to_store(on, capacity, rng):
        leaves = random_batch(on, spec, batch, rng)
        ours = store_native(*ours, slots, source, live, leaves)
        theirs = store_plain(*theirs, slots, source, live, leaves)
        for new, expected in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
            assert_same(on, new, expected)
    pack_plain, pack_native = forms(on, lambda ops, *args: layouts.pack(ops, layout, *args))
    like = on.array(np.zeros(batch, np.int32))
    packed, expected = pack_native(leaves, like), pack_plain(leaves, like)
    for new, wanted in zip((packed[0], *packed[1]), (expected[0], *expected[1]), strict=True):
        assert_same(on, new, wanted)
    nothing = store_native(*ours, slots[:0], None, None, leaves)
    assert_same(on, nothing[0], theirs[0])
    for n in (0, 40):
        slots = on.array(rng.integers(0, capacity, n).astype(np.int32))
        found, expected = read_native(*ours, slots), read_plain(*theirs, slots)
        for leaf, wanted, spec_of_leaf in zip(found, expected, spec.plan.leaves, strict=True):
            assert leaf.shape == (n, *spec_of_leaf.shape)
            assert_same(on, leaf, wanted)


LAYOUTS = [*{spec.plan.layout: spec for spec in POOL}.values()]


@pytest.mark.parametrize(
    ("on", "spec"),
    [
        (on, spec)
        for on in (Jax, Torch, Operations, Numpy)
        for spec in (effort(LAYOUTS[::2], LAYOUTS) if on is Jax else LAYOUTS)
    ],
    ids=lambda x: getattr(x, "capacity", None),
    indirect=["on"],
)
def test_store_and_read(on: Any, spec: frb.BufferSpec) -> None:
    """On JAX each takes a second to compile, and the kernel takes a layout as data: there with some of them."""
    if on is Jax and not compat.IS_EXPLICIT and "bfloat16" in [x.dtype for x in spec.plan.layout.wide]:
        pytest.skip("XLA's operations keep the bits of NaNs in bfloat16 from JAX 0.7.2 on")
    compare_storage(on, spec, 1 if spec.capacity == 1 else 17)


def test_some_leaves_alone(on: Any) -> None:
    """Of rows of which a small piece is read, the larger part, and all but one; also leaves that lie apart."""
    rng = np.random.default_rng(0)
    item = {name: frb.Unbounded((size,)) for name, size in {"b": 6, "c": 1, "d": 9, "e": 0}.items()}
    spec = frb.BufferSpec({"a": frb.Binary()} | item | {"f": frb.Unbounded((1100,), "uint8")}, 20)
    names = [str(path[0]) for path in spec.plan.structure.paths]
    leaves = random_batch(on, spec, 20, rng)

    def pack(ops: Any, leaves: Any, like: Any) -> Any:
        return layouts.pack(ops, spec.plan.layout, leaves, like=like)

    rows, wide = on.kernels(pack)(leaves, on.array(np.zeros(20, np.int32)))
    same = on.plain(pack)(leaves, on.array(np.zeros(20, np.int32)))
    assert_same_parts(on, (rows, wide), same)
    for slots in (rng.integers(0, 20, 30), np.arange(5, 15)):
        for wanted in ("c", "d", "bcd", "ca", "f", "ea", "bd", "e", "cf", "bcdeaf"):
            chosen = tuple(names.index(name) for name in wanted)
            reads = on.kernels(
                lambda ops, *args, chosen=chosen: layouts.read_part(ops, spec.plan.layout, *args, chosen)
            )
            found = reads(rows, wide, on.array(slots.astype(np.int32)))
            for leaf, k in zip(found, chosen, strict=True):
                assert_same(on, leaf, on.array(on.numpy(leaves[k])[slots]))


@pytest.mark.parametrize("spec", [*POOL, EIGHT], ids=range(len(POOL) + 1))
def test_store_and_read_more_on_torch(spec: frb.BufferSpec) -> None:
    """Cheap there, and with dtypes that JAX lacks."""
    for capacity in CAPACITIES:
        compare_storage(Torch, spec, capacity)


def test_more_rows_than_are_read_together(on: Any) -> None:
    layout = POOL[0].plan.layout
    rng = np.random.default_rng(0)
    count = 4 * constants("rows.h")["ROWS_TOGETHER"] + 5
    rows, wide = layouts.pack(on.ops, layout, random_batch(on, POOL[0], 50, rng), like=on.array(np.zeros(50, np.int32)))
    slots = on.array(rng.integers(0, 50, count).astype(np.int32))
    plain, native = reading(on, layout)
    for leaf, wanted in zip(native(rows, wide, slots), plain(rows, wide, slots), strict=True):
        assert_same(on, leaf, wanted)


def test_torch_writes_in_place_and_takes_any_strides() -> None:
    rng = np.random.default_rng(1)
    tree = torch.from_numpy(example_tree(300).copy())
    draws = torch.from_numpy(random_draws(rng, 64, 300))
    expected = sum_tree.descend(torch_ops, tree, 300, draws)
    assert torch.equal(torch_by_kernels(sum_tree.descend)(tree, 300, draws.T.contiguous().T), expected)
    assert torch.equal(torch_by_kernels(sum_tree.descend)(tree, 300, draws.repeat(1, 2)[:, : draws.shape[1]]), expected)

    leaves, value = torch.arange(48, dtype=torch.int32)[::2], torch.tensor([3.0]).expand(24)
    wanted = sum_tree.set_leaves(torch_ops, tree.clone(), 300, leaves, value)
    assert torch_by_kernels(sum_tree.set_leaves)(tree, 300, leaves, value) is tree
    assert torch.equal(tree, wanted)

    layout = POOL[0].plan.layout
    rows, wide = layouts.allocate(torch_ops, layout, 60)
    batch = [leaf[::2] for leaf in random_batch(Torch, POOL[0], 48, rng)]
    source, live = torch.arange(24, dtype=torch.int32).flip(0), torch.ones(1, dtype=torch.bool).expand(24)
    expected_rows, _ = layouts.store(torch_ops, layout, rows.clone(), wide, leaves, source, live, batch)
    assert torch_by_kernels(layouts.store)(layout, rows, wide, leaves, source, live, batch)[0] is rows
    assert torch.equal(rows, expected_rows)
    found = torch_by_kernels(layouts.read)(layout, rows, wide, leaves)
    for leaf, same in zip(found, layouts.read(torch_ops, layout, rows, wide, leaves), strict=True):
        assert_same(Torch, leaf, same)


def test_torch_refuses_other_integers() -> None:
    with pytest.raises(TypeError, match="an array has elements of another size than it takes"):
        torch_by_kernels(sum_tree.descend)(torch.zeros(1, FANOUT), 3, torch.zeros(2, 1, dtype=torch.int64))


CAPACITY, BATCH = 5000, 8
SPEC = frb.BufferSpec({"x": frb.Unbounded((40,)), "image": frb.Unbounded((1024,), "uint8")}, CAPACITY)


def one_of_each(ops: Any, carry: Any, step: Any) -> tuple[Any, Any]:
    """Add items, draw leaves, read their items, and write these back, changed, with other values."""
    tree, rows, wide = carry
    draws, slots, values, batch = step
    rows, wide = layouts.store(ops, SPEC.plan.layout, rows, wide, slots, slots % BATCH, values > 0.5, batch)
    tree = sum_tree.set_leaves(ops, tree, CAPACITY, slots, values)
    leaves = sum_tree.descend(ops, tree, CAPACITY, draws)
    items = layouts.read(ops, SPEC.plan.layout, rows, wide, leaves)
    rows, wide = layouts.store(ops, SPEC.plan.layout, rows, wide, leaves, None, None, [-item for item in items])
    tree = sum_tree.set_leaves(ops, tree, CAPACITY, leaves, ops.cast(leaves, "float32") + 1)
    return (tree, rows, wide), (leaves, items)


def steps(rng: np.random.Generator, count: int) -> tuple[Any, ...]:
    draws = random_draws(rng, count * BATCH, CAPACITY).reshape(count, BATCH, -1)
    slots = (rng.integers(0, CAPACITY, (count, 1)) + np.arange(BATCH)) % CAPACITY
    values = random_values(rng, slots.size).reshape(slots.shape)
    batch = [random_leaf(leaf, slots.size, rng).reshape(count, BATCH, *leaf.shape) for leaf in SPEC.plan.leaves]
    return jax.tree.map(jnp.asarray, (draws, slots.astype(np.int32), values, batch))


def filled() -> Any:
    rng = np.random.default_rng(2)
    batch = random_batch(Jax, SPEC, CAPACITY, rng)
    rows, wide = layouts.pack(jax_ops, SPEC.plan.layout, batch, like=jnp.zeros(CAPACITY, jnp.int32))
    return jnp.asarray(example_tree(CAPACITY)), rows, wide


once = jax.jit(functools.partial(one_of_each, jax_ops))


def test_in_a_scan_nothing_is_copied() -> None:
    xs = steps(np.random.default_rng(3), 6)
    carry = filled()
    step = jax_by_kernels(one_of_each)
    scanned = jax.jit(lambda carry, xs: jax.lax.scan(step, carry, xs), donate_argnums=0)
    program = scanned.lower(carry, xs).compile(AS_USERS)
    assert custom_calls(program.as_text()) == {"descend", "read", "store", "set_leaves"}
    held = sum(x.nbytes for x in jax.tree.leaves(carry))
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes >= held
    assert memory.temp_size_in_bytes < 60_000 < carry[0].nbytes * 4
    assert big_copies(program.as_text(), carry[0].size // 2) == []
    expected = filled()
    after, found = program(carry, xs)
    for k in range(6):
        expected, drawn = once(expected, jax.tree.map(lambda x, k=k: x[k], xs))
        assert_same_parts(Jax, jax.tree.map(lambda x, k=k: x[k], found), drawn)
    assert_same_parts(Jax, after, expected)


def test_old_values_survive_in_jax() -> None:
    carry = filled()
    before = [np.asarray(x).copy() for x in jax.tree.leaves(carry)]
    step = jax.tree.map(lambda x: x[0], steps(np.random.default_rng(4), 1))
    (tree, _, _), _ = jax_by_kernels(one_of_each)(carry, step)  # op by op
    assert not np.array_equal(tree, before[0])
    for x, old in zip(jax.tree.leaves(carry), before, strict=True):
        assert np.array_equal(x, old)


@pytest.mark.parametrize("shared", [False, True])
def test_under_vmap_one_call_serves_all(shared: bool) -> None:
    """With as many storages as draws, and with one for all of them."""
    carry, step = filled(), steps(np.random.default_rng(5), 3)
    if not shared:
        carry = jax.tree.map(lambda x: jnp.stack([x, x[::-1], x]), carry)
        carry = (jnp.stack([jnp.asarray(example_tree(CAPACITY))] * 3), *carry[1:])
    axes = (None if shared else 0, 0)
    batched = jax.jit(jax.vmap(jax_by_kernels(one_of_each), in_axes=axes)).lower(carry, step)
    program = batched.compile(AS_USERS)
    assert custom_calls(program.as_text()) == {"descend", "read", "store", "set_leaves"}
    found = program(carry, step)
    for k in range(3):
        mine = carry if shared else jax.tree.map(lambda x, k=k: x[k], carry)
        expected = once(mine, jax.tree.map(lambda x, k=k: x[k], step))
        assert_same_parts(Jax, jax.tree.map(lambda x, k=k: x[k], found), expected)


def test_under_vmap_of_vmap_one_call_serves_all() -> None:
    """Some operands have the outer axis only, some the inner one."""
    carry, step = filled(), steps(np.random.default_rng(6), 3)
    carries = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), carry)
    carries = (jnp.stack([jnp.asarray(example_tree(CAPACITY))] * 2), *carries[1:])
    inner = jax.vmap(jax_by_kernels(one_of_each), in_axes=(None, 0))
    program = jax.jit(jax.vmap(inner, in_axes=(0, None))).lower(carries, step).compile()
    assert len(re.findall('custom_call_target="functional_rb_', program.as_text())) == 6
    found = program(carries, step)
    for k in range(2):
        for j in range(3):
            mine = jax.tree.map(lambda x, k=k: x[k], carries), jax.tree.map(lambda x, j=j: x[j], step)
            assert_same_parts(Jax, jax.tree.map(lambda x, k=k, j=j: x[k, j], found), once(*mine))


def test_no_derivative_goes_through() -> None:
    def summed(values: jax.Array) -> jax.Array:
        tree = jnp.zeros((sum_tree.geometry(20).rows, FANOUT))
        return sum_tree.total(jax_by_kernels(sum_tree.set_leaves)(tree, 20, jnp.arange(3), values))

    assert np.array_equal(jax.jit(jax.grad(summed))(jnp.ones(3)), np.zeros(3))


def test_no_kernel_is_in_force_behind_an_error_in_other_threads_and_for_the_user() -> None:
    table: part_kernels.Table = {sum_tree.descend: lambda *args: "kernel"}

    def seen(ops: Any = torch_ops) -> Any:
        return part_kernels.in_force()

    with contextlib.suppress(KeyError), part_kernels.using(table):
        assert sum_tree.descend(torch_ops, None, 3, None) == "kernel"
        with part_kernels.using(part_kernels.NONE):
            assert not seen()
        assert seen() is table
        assert not part_kernels.call_users(torch_ops, seen)
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(seen).result()
        raise KeyError
    assert not seen()


def test_kernels_take_what_the_core_takes() -> None:
    for function, kernel in (DECLARED | WHOLE).items():
        ops, *wanted = inspect.signature(getattr(function, "core", function)).parameters.values()
        assert ops.name == "ops"
        found = inspect.signature(kernel).parameters.values()
        assert [(x.name, x.default) for x in found] == [(x.name, x.default) for x in wanted], function
