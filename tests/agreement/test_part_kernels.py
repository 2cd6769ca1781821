"""Kernels of parts of the core return the same bits as the core does on plain primitives, on both backends."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend.arrays.ops as jax_ops
import torch_backend.arrays.ops as torch_ops
import torch_backend.arrays.random as torch_random
from functional_rb.native.kernels import DECLARED, WHOLE
from functional_rb.ops import part_kernels, random_bits
from functional_rb.samplers import importance as powers
from functional_rb.structures import episode_windows, sum_tree
from functional_rb.structures import ring as ring_of
from functional_rb.structures import row_layout as layouts
from functional_rb.structures.episode_windows import Lanes, Rule
from functional_rb.structures.ring import Ring, RingState
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.sum_tree import FANOUT
from functional_rb.transforms import returns
from functional_rb.transforms import step_queue as lines
from jax_backend import compat
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.headers import constants
from tests.support.part_kernels import Jax, Numpy, Operations, QuickJax, Torch, jax_by_kernels, torch_by_kernels
from tests.support.spec_pool import POOL, random_leaf
from tests.support.xla_options import AS_USERS
from torch_backend.kernels import cpu_kernels as torch_kernels

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


def assert_same(on: Any, ours: Any, theirs: Any) -> None:
    """The same shape, dtype and bytes."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert on.numpy(ours).tobytes() == on.numpy(theirs).tobytes()


def forms(on: Any, function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of `ops` and arrays as one of the arrays: on plain primitives, and by kernels."""
    return on.plain(function), on.kernels(function)


def random_values(rng: np.random.Generator, n: int) -> Numbers:
    """What leaves may hold: zero, and anything from the smallest to the largest."""
    values = rng.choice([0.0, 2.0**-100, 2.0**95, 1.0], n)
    return np.where(rng.random(n) < 0.8, 2.0 ** rng.uniform(-40, 20, n), values).astype(np.float32)


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


def assert_same_all(ours: Any, theirs: Any) -> None:
    for new, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_same(Jax, new, expected)


def custom_calls(text: str) -> set[str]:
    """The kernels that a compiled program calls."""
    return set(re.findall(r'custom_call_target="functional_rb_(\w+)"', text))


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
        assert_same_all(jax.tree.map(lambda x, k=k: x[k], found), drawn)
    assert_same_all(after, expected)


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
        assert_same_all(jax.tree.map(lambda x, k=k: x[k], found), expected)


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
            assert_same_all(jax.tree.map(lambda x, k=k, j=j: x[k, j], found), once(*mine))


def test_no_derivative_goes_through() -> None:
    def summed(values: jax.Array) -> jax.Array:
        tree = jnp.zeros((sum_tree.geometry(20).rows, FANOUT))
        return sum_tree.total(jax_by_kernels(sum_tree.set_leaves)(tree, 20, jnp.arange(3), values))

    assert np.array_equal(jax.jit(jax.grad(summed))(jnp.ones(3)), np.zeros(3))


def assert_same_parts(on: Any, ours: Any, theirs: Any) -> None:
    """Nests of the same shapes, dtypes and bytes, with the same places empty."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for new, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_same(on, new, expected)


def both(on: Any, function: Callable[..., Any], rounded: bool = False) -> Callable[..., Any]:
    """A function of `ops` and arrays as one of NumPy arrays, on which kernel and core are compared.

    On torch by strided arrays too. On JAX as users compile it, if anything is rounded in it.
    """
    plain, native = forms(QuickJax if on is Jax and not rounded else on, function)

    def compare(*args: Any) -> None:
        arrays = jax.tree.map(on.array, args)
        expected = plain(*arrays)
        assert_same_parts(on, native(*arrays), expected)
        if on is Torch:
            turned = [x if isinstance(x, Written) else jax.tree.map(strided, x) for x in arrays]  # but what is stored
            assert_same_parts(on, native(*turned), expected)

    return compare


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in another order of the axes, or with others between them."""
    return x.T.contiguous().T if x.ndim == 2 else x.repeat_interleave(2, 0)[::2] if x.ndim else x


def random_ends(rng: np.random.Generator, ring: Ring) -> RingState:
    """Lanes that are empty, partly filled, just full, long full, or about to begin with their first handles again."""
    sizes = rng.choice([0, 1, ring.length // 2, ring.length - 1, ring.length], ring.lanes).astype(np.int32)
    turned = rng.integers(0, ring.limit - ring.length, ring.lanes)
    turned = np.where(rng.random(ring.lanes) < 0.3, ring.limit - rng.integers(1, 4, ring.lanes), turned)
    full = rng.choice([ring.length, 0], ring.lanes) + turned
    return RingState(np.where(sizes < ring.length, sizes, full % ring.limit).astype(np.int32), sizes)


# With the steps of a batch, for each lane.
RINGS = [(Ring(1), 3), (Ring(12), 5), (Ring(12), 12), (Ring(12), 40), (Ring(12, 3), 5), (Ring(15, 5), 1)]


@pytest.mark.parametrize(("ring", "steps"), RINGS)
@pytest.mark.parametrize("masked", [False, True])
def test_plan_write(on: Any, ring: Ring, steps: int, masked: bool) -> None:
    rng = np.random.default_rng(steps)
    batch = steps * ring.lanes
    compare = both(on, lambda ops, ends, mask: ring_of.plan_write(ops, ring, ends, batch, mask))
    for likely in [0.0, 0.2, 0.5, 0.9, 1.0] * 4:
        compare(random_ends(rng, ring), rng.random(batch) < likely if masked else None)


@pytest.mark.parametrize("which", ["begins", "ends", "both"])
@pytest.mark.parametrize(("lanes", "steps"), [(1, 1), (1, 20), (3, 7)])
def test_steps_in_episodes(on: Any, which: str, lanes: int, steps: int) -> None:
    rng = np.random.default_rng(steps)

    def numbers(ops: Any, next_in_episode: Any, written: Any, begins: Any, ends: Any) -> Any:
        return episode_windows.steps_in_episodes(ops, next_in_episode, written, begins=begins, ends=ends)

    compare = both(on, numbers)
    for likely in [0.0, 0.1, 0.5, 1.0] * 4:
        begins, ends = rng.random((2, lanes, steps)) < likely
        next_in_episode = rng.choice([0, 5, episode_windows.LONGEST - 3, episode_windows.LONGEST - 1], lanes).astype(
            np.int32
        )
        written = rng.choice([0, 1, steps], lanes).astype(np.int32)
        compare(next_in_episode, written, None if which == "ends" else begins, None if which == "begins" else ends)


class Written(NamedTuple):
    """What a buffer keeps of trajectories: see `windows`."""

    ends: RingState
    in_episode: Any
    next_in_episode: Any


def written_at_random(rng: np.random.Generator, ring: Ring) -> Written:
    """Lanes with steps of random trajectories, at any turn of their rings."""
    ends, lanes = random_ends(rng, ring), ring.lanes
    likely = rng.choice([0.0, 0.1, 0.3, 1.0])
    steps = rng.random((lanes, 3 * ring.length)) < likely
    lived = torch.full((lanes,), steps.shape[1], dtype=torch.int32)
    zeros = torch.zeros(lanes, dtype=torch.int32)
    new, next_in_episode = episode_windows.steps_in_episodes(torch_ops, zeros, lived, ends=torch.from_numpy(steps))
    in_episode = np.zeros(ring.capacity, np.int32)
    for e, (cursor, size) in enumerate(zip(*ends, strict=True)):
        back = np.arange(1, size + 1)
        in_episode[e * ring.length + (int(cursor) - back) % ring.length] = new.numpy()[e, -back]
    return Written(ends, in_episode, np.where(ends.sizes > 0, next_in_episode.numpy(), 0).astype(np.int32))


RULES = [
    (Rule(4, 1, True, 0, 0), Ring(300)),
    (Rule(3, 2, False, 0, 0), Ring(60, 3)),
    (Rule(4, 3, False, 3, 0), Ring(10)),
    (Rule(5, 2, False, 3, 1), Ring(18, 2)),
    (Rule(2, 1, False, 0, 1), Ring(40, 4)),
    (Rule(1, 1, False, 0, 0), Ring(1)),
]


def index_and_slices(rule: Rule, ring: Ring, by_trajectory: bool) -> Callable[..., Any]:
    """All that is read of an index, as a function of `ops` and arrays."""

    def read(ops: Any, written: Written, slots: Any, draws: Any, live: Any) -> Any:
        lanes, in_episode = Lanes(ring, written.ends), written.in_episode
        at = lanes, in_episode, written.next_in_episode, slots, draws
        return (
            episode_windows.changed(ops, rule, lanes, in_episode, min(3, ring.length), by_trajectory),
            episode_windows.weights_at(ops, rule, lanes, in_episode, slots),
            [episode_windows.expand(ops, rule, *at, counting, by_trajectory) for counting in (live, None)],
        )

    return read


def to_draw_from(rng: np.random.Generator, ring: Ring) -> tuple[Written, Numbers, Numbers, Numbers]:
    """Every slot: also where no window begins, where nothing is stored, and where the slot does not count."""
    draws = rng.integers(0, 2**31, (ring.capacity, 2)).astype(np.int32)
    draws[::5] = 2**31 - 1
    return (
        written_at_random(rng, ring),
        np.arange(ring.capacity, dtype=np.int32),
        draws,
        rng.random(ring.capacity) < 0.8,
    )


@pytest.mark.parametrize(
    ("on", "rule", "ring", "by_trajectory"),
    [
        (on, rule, ring, by)
        for on in (Jax, Torch)
        for k, (rule, ring) in enumerate(RULES)
        for by in (False, True)
        # Each rule in one of the two ways on JAX, as it takes a second to compile; and not all of them.
        if on is Torch or (by == bool(k % 2) and k in effort((1, 2, 3, 4), range(len(RULES))))
    ],
    indirect=["on"],
)
def test_index_and_slices(on: Any, rule: Rule, ring: Ring, by_trajectory: bool) -> None:
    rng = np.random.default_rng(rule.length)
    compare = both(on, index_and_slices(rule, ring, by_trajectory))
    for _ in range(12):
        compare(*to_draw_from(rng, ring))


def test_no_slots_at_all(on: Any) -> None:
    rule, ring = RULES[1]
    written, *drawn = to_draw_from(np.random.default_rng(0), ring)
    both(on, index_and_slices(rule, ring, True))(written, *(x[:0] for x in drawn))


def check_vmapped(function: Callable[..., Any], several: list[Any], calls: set[str]) -> None:
    """Under `vmap`, by these kernels, a function gives what it gives of each by itself."""
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *several)
    program = jax.jit(jax.vmap(jax_by_kernels(function))).lower(*stacked).compile()
    assert custom_calls(program.as_text()) == calls
    found, alone = program(*stacked), jax.jit(functools.partial(function, jax_ops))
    for k, args in enumerate(several):
        assert_same_all(jax.tree.map(lambda x, k=k: x[k], found), alone(*jax.tree.map(jnp.asarray, args)))


def test_windows_under_vmap() -> None:
    rule, ring = RULES[3]
    rng = np.random.default_rng(1)
    several = [to_draw_from(rng, ring) for _ in range(3)]
    check_vmapped(index_and_slices(rule, ring, True), several, {"changed", "expand", "weights_at"})


def test_some_of_these_windows_are_drawn() -> None:
    """So that the test above has compared more than padding."""
    rng = np.random.default_rng(0)
    for rule, ring in RULES:
        counts = []
        for _ in range(20):
            written = jax.tree.map(torch.from_numpy, written_at_random(rng, ring))
            slots = torch.arange(ring.capacity, dtype=torch.int32)
            counts.append(
                episode_windows.weights_at(torch_ops, rule, Lanes(ring, written.ends), written.in_episode, slots)
            )
        found = torch.cat(counts)
        assert 0 < (found > 0).sum() < found.numel()


def around(ring: Ring, n: int) -> Callable[..., Any]:
    """What follows on slots, and how far their trajectories go, as a function of `ops` and arrays."""

    def look(ops: Any, written: Written, slots: Any) -> Any:
        lanes, in_episode = Lanes(ring, written.ends), written.in_episode
        lane, back = episode_windows.step_at(ops, lanes, slots)
        stored = back <= ops.take(lanes.size, lane)
        before, after = episode_windows.extent(ops, lanes, in_episode, slots)
        none = ops.full_like(before, -1)  # that of an empty slot has no meaning
        extent = ops.where(stored, before, none), ops.where(stored, after, none)
        return episode_windows.following(ops, lanes, in_episode, slots, n), extent

    return look


AROUND = [(Ring(1), 2), (Ring(12), 5), (Ring(300), 1), (Ring(15, 5), 7), (Ring(60, 3), 3)]


@pytest.mark.parametrize(
    ("on", "ring", "n"),
    [(on, *one) for on in (Jax, Torch, Numpy) for one in (effort(AROUND[1:4:2], AROUND) if on is Jax else AROUND)],
    indirect=["on"],
)
def test_following_and_extent(on: Any, ring: Ring, n: int) -> None:
    rng = np.random.default_rng(n)
    compare = both(on, around(ring, n))
    for _ in range(15):
        compare(written_at_random(rng, ring), rng.permutation(ring.capacity).astype(np.int32))
    compare(written_at_random(rng, ring), np.zeros(0, np.int32))


def test_some_of_these_trajectories_go_on() -> None:
    """So that the test above has compared more than single steps."""
    rng = np.random.default_rng(0)
    ring, n = AROUND[4]
    seen = set()
    for _ in range(20):
        written = jax.tree.map(torch.from_numpy, written_at_random(rng, ring))
        slots = torch.arange(ring.capacity, dtype=torch.int32)
        (_, real), (before, after) = around(ring, n)(torch_ops, written, slots)
        seen |= set(real.sum(1).tolist()) | set((before + after).tolist())
    assert {0, 1, 2, 3, 19} <= seen | {0}
    assert len(seen) > 10


def rewards_of_steps(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> tuple[Numbers, Numbers]:
    """Rewards [m, n, ...] of many sizes, zeros of both signs and infinities, and which of them there are."""
    m, n = shape[:2]
    rewards = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)
    rewards = np.where(rng.random(shape) < 0.2, rng.choice([0.0, -0.0, np.inf], shape), rewards)
    return rewards.astype(dtype), np.arange(n) < rng.integers(1, n + 1, m)[:, None]


@pytest.mark.parametrize("shape", [(400, 5), (200, 3, 2), (60, 2, 1, 3), (50, 1), (0, 4), (7, 3, 0)])
def test_fold(on: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    for gamma in effort((0.99,), (0.99, 1.0, 0.0)) if on is Jax else (0.99, 1.0, 0.0):
        compare = both(on, lambda ops, rewards, real, gamma=gamma: returns.fold(ops, rewards, real, gamma), True)
        compare(*rewards_of_steps(rng, shape, "float32"))


def test_fold_of_other_dtypes() -> None:
    rng = np.random.default_rng(0)
    for on, dtype in [(Torch, "float64"), (Torch, "float16"), (Jax, "float16")]:
        compare = both(on, lambda ops, rewards, real: returns.fold(ops, rewards, real, 0.9), True)
        compare(*rewards_of_steps(rng, (300, 4, 2), dtype))


def test_rewards_rounded_once_would_differ() -> None:
    """So that the tests above tell a product rounded before the sum from one that is not."""
    rewards, real = rewards_of_steps(np.random.default_rng(0), (400, 2), "float32")
    rewards = np.where(np.isfinite(rewards), rewards, 0)
    total, _ = torch_by_kernels(returns.fold)(torch.from_numpy(rewards), torch.from_numpy(real), 0.99)
    term = np.where(real[:, 1], rewards[:, 1].astype(np.float64) * np.float32(0.99), 0)
    once = (rewards[:, 0].astype(np.float64) + term).astype(np.float32)
    assert 0 < (once != total.numpy()).sum() < 200


@pytest.mark.parametrize(
    ("on", "lanes", "steps", "n", "masked", "words"),
    [
        (on, *shape, masked, words)
        for on in (Jax, Torch)
        for k, shape in enumerate([(1, 1, 1), (1, 6, 3), (3, 1, 3), (2, 5, 4), (3, 2, 6)])
        for masked in (False, True)
        for words in (0, 1, 2)
        # On JAX half of them, or those that differ in what is given: each is compiled.
        if on is Torch or ((k + words) % 2 == masked and k in effort((3, 4), range(5)))
    ],
    indirect=["on"],
)
def test_plan_line(on: Any, lanes: int, steps: int, n: int, masked: bool, words: int) -> None:
    rng = np.random.default_rng(n)
    rows = lanes * (steps + n - 1)
    compare = both(on, lambda ops, *args: lines.plan_line(ops, *args, n))
    for likely in [0.0, 0.2, 0.5, 1.0] * 4:
        pending = rng.integers(0, n, lanes).astype(np.int32)
        ended = rng.random(lanes * steps) < (likely if words == 0 else 0.2)
        ids = (rng.random((rows, words)) < likely).astype(np.int32) if words else None
        mask = rng.random(lanes * steps) < rng.choice([0.0, 0.5, 1.0]) if masked else None
        compare(pending, ended, ids, mask)


def test_transforms_under_vmap() -> None:
    ring, n = AROUND[4]
    rng = np.random.default_rng(1)

    def all_of_them(ops: Any, written: Written, slots: Any, rewards: Any, real: Any, ended: Any) -> Any:
        line = lines.plan_line(ops, written.ends.sizes % n, ended, None, None, n)
        return around(ring, n)(ops, written, slots), returns.fold(ops, rewards, real, 0.9), line

    several = []
    for _ in range(3):
        slots = rng.permutation(ring.capacity).astype(np.int32)
        rewards = rewards_of_steps(rng, (20, n), "float32")
        several.append((written_at_random(rng, ring), slots, *rewards, rng.random(ring.lanes * 4) < 0.3))
    check_vmapped(all_of_them, several, {"extent", "fold_float32", "following", "plan_line"})


def test_below(on: Any) -> None:
    rng = np.random.default_rng(0)
    compare = both(on, random_bits.below)
    draws = rng.integers(0, 2**31, (300, 2)).astype(np.int32)
    draws[::7] = rng.choice([0, 2**31 - 1], draws[::7].shape)
    numbers = rng.choice([0, 1, 2, 1000, 2**31 - 1], 300).astype(np.int32)
    compare(draws, numbers)
    for n in (0, 3, 2**31 - 1):
        compare(draws, np.int32(n))
    compare(draws[:1], numbers[:1])
    compare(draws[:0], numbers[:0])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_stored_value(on: Any, alpha: float) -> None:
    rng = np.random.default_rng(0)
    special = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.int32)
    bits = np.concatenate([special, special | -(2**31), rng.integers(0, 2**31, 500).astype(np.int32)])
    both(on, lambda ops, priorities: powers.stored_value(ops, priorities, alpha), True)(bits.view(np.float32))


def test_updated_values(on: Any) -> None:
    """Slots that come once, several times and all the time, live or not, with priorities that are good or not."""
    rng = np.random.default_rng(0)
    compare = both(on, lambda ops, *args: powers.updated_values(ops, *args, 0.6), True)
    for slots, good in itertools.product((2**31 - 1, 50, 3, 1), (1.0, 0.5, 0.0)):
        bad = rng.choice([np.nan, -1.0, np.inf], 200)
        priorities = np.where(rng.random(200) < good, rng.choice([0.0, 1e-40, 0.3, 7.0, 1e30], 200), bad)
        for n in (200,) if on is Jax else (200, 1):
            live = rng.random(n) < rng.choice([0.0, 0.5, 1.0])
            compare(rng.integers(0, slots, n).astype(np.int32), live, priorities[:n].astype(np.float32))


def test_importance_weights(on: Any) -> None:
    rng = np.random.default_rng(0)
    compare = both(on, lambda ops, values, smallest, beta: powers.importance_weights(ops, values, smallest, beta), True)
    for beta in (0.0, 0.4, 1.0, 7.5, np.nan, -1.0, 1e9):
        values = random_values(rng, 300)
        values = values[values > 0][:200]
        compare(values, values.min(), np.float32(beta))


def test_draws_on_torch() -> None:
    for seed in range(20):
        key = torch_random.key(seed)
        assert torch.equal(torch_kernels.draws(key, 7, 5), torch_random.draws(key, 7, 5))
    assert torch_kernels.draws(key, 0, 5).shape == (0, 5)


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
