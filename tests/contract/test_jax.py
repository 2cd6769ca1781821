"""What JAX promises of pure functions, kept: transformations, one trace, donation in place, and the 64-bit mode."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import functional_rb as frb
import jax_backend as rb
from tests.support.backends import needs_native
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.versions import enable_x64
from tests.support.xla_options import AS_USERS

ITEM = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "done": frb.Binary(())}
SPEC = frb.BufferSpec(ITEM, 14, frb.Prioritized())
# Its tree has two levels; XLA takes half as long again to compile that.
DEEP = frb.BufferSpec(ITEM, 20, frb.Prioritized())
SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.Prioritized(alpha=1.0, new_priority="ever")]


@pytest.fixture(params=[pytest.param("kernels", marks=needs_native), "core"])
def kernels(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The compiled CPU kernels, or XLA's own operations."""
    with frb.kernels(request.param == "kernels"):
        yield request.param == "kernels"


# For what JAX makes of either form alike: XLA takes a second or two for each function of the core.
by_kernels = pytest.mark.parametrize("kernels", effort(["kernels"], ["kernels", "core"]), indirect=True)


def in_turn(*cases: tuple[str, Any]) -> Any:
    """Kernels or the core with a sampler: few of the core, which takes XLA seconds; test_conformance has the rest."""
    return pytest.mark.parametrize(("kernels", "sampler"), cases, ids=str, indirect=["kernels"])


def batch(start: int, n: int) -> dict[str, jax.Array]:
    """Made by NumPy, for which nothing is compiled."""
    number = np.arange(start, start + n, dtype=np.int32)
    made = {"id": number, "x": np.stack([number, -number], 1).astype(np.float32), "done": number % 3 == 0}
    return {name: jnp.asarray(leaf) for name, leaf in made.items()}


def filled(spec: frb.BufferSpec = SPEC, n: int = 30) -> frb.State:
    return rb.add(rb.init(spec), batch(0, n))


def assert_same_bits(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def step(state: frb.State, key: jax.Array, number: Any, rewrite: bool = True) -> tuple[frb.State, Any]:
    """One round of everything, as a training loop does it."""
    mask = (jnp.arange(5) + number) % 3 != 0
    state = rb.add(state, jax.tree.map(lambda x: x, batch(0, 5)) | {"id": jnp.arange(5) + 100 * number}, mask=mask)
    state, sample = rb.sample(state, key, 4)
    priorities = jnp.abs(sample.items["x"][:, 0]) + 0.5 if isinstance(state.spec.sampler, frb.Prioritized) else None
    new = {"x": sample.items["x"] + 1} if rewrite else None
    return rb.update(state, sample.indices, priorities, new), sample


# --- transformations ------------------------------------------------------------------------------------------------


@in_turn(("kernels", SAMPLERS[0]), (effort("kernels", "core"), SAMPLERS[1]), ("kernels", SAMPLERS[2]))
def test_vmapped_buffers_equal_single_ones(kernels: bool, sampler: Any) -> None:
    spec = frb.BufferSpec(ITEM, 7, sampler)

    def life(seed: jax.Array) -> Any:
        state = rb.init(spec)
        key = jax.random.fold_in(rb.key(0), seed)
        state = rb.add(state, batch(5, 4))
        state, sample = step(state, key, seed)
        return state, sample, rb.items(state), rb.get(state, sample.indices), rb.size(state)

    seeds = jnp.arange(3)
    together = jax.device_get(jax.jit(jax.vmap(life))(seeds))  # NumPy's arrays, of which parts are taken at once
    single = jax.jit(life)
    for i in range(3):
        assert_same_bits(jax.tree.map(lambda x, i=i: x[i], together), single(seeds[i]))
    # The buffers went different ways, or the comparison would say little.
    assert not np.array_equal(together[0].rows[0], together[0].rows[1])


def test_vmap_over_arguments_of_one_buffer() -> None:
    state = filled(DEEP)
    keys = rb.split(rb.key(3), 4)
    masks = jnp.asarray([[True, False, True], [False, False, False], [True, True, True]])
    many = jax.vmap(lambda key: rb.sample(state, key, 5)[1])(keys)
    forks = jax.vmap(lambda mask: rb.add(state, batch(50, 3), mask=mask))(masks)
    for kernels in (True, False):
        with frb.kernels(kernels):
            samples = [rb.sample(state, key, 5)[1] for key in keys]
            added = [rb.add(state, batch(50, 3), mask=mask) for mask in masks]
        for together, alone in ((jax.device_get(many), samples), (jax.device_get(forks), added)):
            for i, one in enumerate(alone):
                assert_same_bits(jax.tree.map(lambda x, i=i: x[i], together), one)


@in_turn(*(("kernels", sampler) for sampler in SAMPLERS), ("core", SAMPLERS[1]))
def test_scan_equals_the_eager_loop(kernels: bool, sampler: Any) -> None:
    keys = rb.split(rb.key(1), 6)
    state = rb.init(frb.BufferSpec(ITEM, 13, sampler))
    program = jax.jit(lambda s, k: lax.scan(lambda s, x: step(s, *x), s, (k, jnp.arange(6))))
    scanned, samples = jax.device_get(program(state, keys))
    with frb.kernels(True):  # of the core XLA takes as long again
        for i in range(6):
            state, sample = step(state, keys[i], i)
            assert_same_bits(jax.tree.map(lambda x, i=i: x[i], samples), sample)
    assert_same_bits(scanned, state)


@pytest.mark.parametrize("taken", [True, False])
def test_cond_adds_or_does_not(kernels: bool, taken: bool) -> None:
    state = filled()
    new = batch(70, 3)
    expected = rb.add(state, new) if taken else state
    got = jax.jit(lambda s, p: lax.cond(p, lambda s: rb.add(s, new), lambda s: s, s))(state, taken)
    assert_same_bits(got, expected)


def test_gradient_of_a_loss_through_a_sample(kernels: bool) -> None:
    state = filled()
    w = jnp.asarray([0.5, -2.0])

    def loss(w: jax.Array, state: frb.State, key: jax.Array) -> jax.Array:
        _, sample = rb.sample(state, key, 6)
        return jnp.sum(sample.weights * (sample.items["x"] @ w) ** 2)

    _, sample = rb.sample(state, rb.key(5), 6)
    x, weights = np.asarray(sample.items["x"]), np.asarray(sample.weights)
    expected = 2 * (weights * (x @ np.asarray(w))) @ x
    checkpointed = jax.grad(jax.checkpoint(loss))
    np.testing.assert_allclose(jax.jit(checkpointed)(w, state, rb.key(5)), expected, rtol=1e-5)
    if effort(not kernels, False):  # eagerly that goes operation by operation: a hundred programs for the core
        return
    for f in (jax.grad(loss), checkpointed):
        np.testing.assert_allclose(f(w, state, rb.key(5)), expected, rtol=1e-5)
    closed_over = jax.jit(jax.grad(lambda w: jax.checkpoint(lambda w: loss(w, state, rb.key(5)))(w)))
    np.testing.assert_allclose(closed_over(w), expected, rtol=1e-5)


def test_storage_takes_values_that_depend_on_parameters(kernels: bool) -> None:
    """In a loss one adds features, and sets priorities by errors: what is stored carries no derivative."""
    state = filled()

    def loss(w: jax.Array, state: frb.State) -> tuple[jax.Array, frb.State]:
        features = w * jnp.ones((3, 2))
        state = rb.add(state, batch(40, 3) | {"x": features}, priorities=features[:, 0])
        state, sample = rb.sample(state, rb.key(0), 3, beta=w / 10)
        error = w * sample.items["x"][:, 0]
        state = rb.update(state, sample.indices, jnp.abs(error), {"x": features})
        return jnp.sum(error), state

    gradient, after = jax.jit(jax.grad(loss, has_aux=True))(2.0, state)
    with frb.kernels(True):  # of the core, operation by operation, each would be compiled
        value, expected = loss(jnp.float32(2.0), state)
    # Were it not cut, the sampled features, which are w themselves, would count twice.
    np.testing.assert_allclose(gradient, value / 2, rtol=1e-6)
    assert_same_bits(after, expected)
    if effort(kernels, True):
        tangent = jax.jvp(lambda w: loss(w, state)[0], (2.0,), (1.0,))[1]
        np.testing.assert_allclose(tangent, value / 2, rtol=1e-6)


@by_kernels
def test_eval_shape_and_ahead_of_time(kernels: bool) -> None:
    shapes = jax.eval_shape(lambda: rb.init(SPEC))
    assert shapes.spec is SPEC
    abstract = jax.eval_shape(lambda s, k: step(s, k, 0), shapes, rb.key(0))
    state = filled()
    real = step(state, rb.key(0), 0)
    assert jax.tree.structure(abstract) == jax.tree.structure(real)
    for a, b in zip(jax.tree.leaves(abstract), jax.tree.leaves(real), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    compiled = jax.jit(lambda s, k: step(s, k, 0)).lower(shapes, rb.key(0)).compile()
    assert_same_bits(compiled(state, rb.key(0)), real)


def test_a_key_that_the_writer_does_not_need_is_not_drawn_from() -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 8)
    program = jax.make_jaxpr(lambda state, key: rb.add(state, {"x": jnp.ones(3)}, key=key))(rb.init(spec), rb.key(0))
    assert "random" not in str(program)


def test_sampling_nothing_under_jit_is_marked(kernels: bool) -> None:
    for spec in (SPEC, frb.BufferSpec(ITEM, 4), frb.BufferSpec(ITEM, 4, frb.Uniform(max_times_sampled=1))):
        _, sample = jax.jit(lambda s, k: rb.sample(s, k, 3))(rb.init(spec), rb.key(0))
        assert sample.indices.tolist() == [-1] * 3
        assert sample.weights.tolist() == sample.probabilities.tolist() == [0.0] * 3
        # The handles of nothing do no harm.
        state = rb.update(rb.init(spec), sample.indices)
        assert int(rb.counts(state).stale) == 0
        assert_same_bits(state, rb.init(spec))


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [jax.random.key, jax.random.PRNGKey, lambda s: jax.random.key(s, impl="rbg")],
    ids=["typed", "legacy", "rbg"],
)
def test_every_kind_of_key(kernels: bool, make: Callable[[int], jax.Array]) -> None:
    state = filled()
    first, again, other = (rb.sample(state, make(s), 32)[1] for s in (0, 0, 1))
    assert_same_bits(first, again)
    assert not np.array_equal(first.indices, other.indices)
    keys = rb.split(make(0), 3)
    drawn = [rb.sample(state, keys[i], 32)[1].indices.tolist() for i in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    if kernels:  # the core's function is traced alike
        assert_same_bits(jax.jit(lambda k: rb.sample(state, k, 32)[1])(make(0)), first)


def test_typed_and_legacy_keys_draw_alike() -> None:
    state = filled()
    assert_same_bits(rb.sample(state, jax.random.key(7), 9)[1], rb.sample(state, jax.random.PRNGKey(7), 9)[1])


@by_kernels
def test_beta_may_be_annealed_in_a_scan(kernels: bool) -> None:
    state = rb.add(rb.init(SPEC), batch(0, 14), priorities=jnp.arange(1.0, 15.0))
    betas = jnp.linspace(0.0, 1.0, 5)
    _, weights = lax.scan(lambda s, b: (s, rb.sample(s, rb.key(2), 8, beta=b)[1].weights), state, betas)
    assert weights[0].tolist() == [1.0] * 8
    for beta, row in zip(betas, weights, strict=True):
        np.testing.assert_array_equal(row, rb.sample(state, rb.key(2), 8, beta=float(beta))[1].weights)
    assert (weights[1:].min(1) < weights[:-1].min(1)).all()


# --- one trace ------------------------------------------------------------------------------------------------------


@by_kernels
def test_one_trace_for_equal_specs(kernels: bool) -> None:
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(1)
    def train(state: frb.State, key: jax.Array) -> frb.State:
        return step(state, key, 1)[0]

    specs = [frb.BufferSpec(dict(ITEM), 11, frb.Prioritized(0.5)) for _ in range(3)]
    assert specs[0] is not specs[1]
    for spec in (*specs, pickle.loads(pickle.dumps(specs[0]))):
        state = rb.init(spec)
        for i in range(3):
            state = train(state, rb.key(i))


def test_a_state_keeps_its_tree_structure() -> None:
    state = rb.init(SPEC)
    outline = jax.tree.structure(state)
    for _ in range(3):
        state, _ = step(state, rb.key(0), 2)
        assert jax.tree.structure(state) == outline
    assert outline == jax.tree.structure(rb.init(frb.BufferSpec(dict(ITEM), 14, frb.Prioritized())))
    assert outline != jax.tree.structure(rb.init(frb.BufferSpec(ITEM, 14, frb.Prioritized(0.5))))


# --- in place -------------------------------------------------------------------------------------------------------

WIDE_ITEM = {"x": frb.Unbounded((4,)), "r": frb.Unbounded(()), "image": frb.Unbounded((32, 32), "uint8")}


def wide_batch(n: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((n, 4), np.float32), "r": np.ones(n, np.float32), "image": np.ones((n, 32, 32), np.uint8)}


def train_step(state: frb.State, key: jax.Array) -> tuple[frb.State, jax.Array]:
    state = rb.add(state, wide_batch(8))
    state, sample = rb.sample(state, key, 8)
    state = rb.update(state, sample.indices, sample.weights, {"r": sample.weights})
    return state, sample.items["r"].sum()


HANDLES, PRIORITIES = np.arange(8, dtype=np.int32), np.ones(8, np.float32)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "add": (rb.add, (wide_batch(8),)),
    "masked add": (lambda s, b, m: rb.add(s, b, mask=m), (wide_batch(8), np.ones(8, bool))),
    "add with priorities": (lambda s, b, p: rb.add(s, b, priorities=p), (wide_batch(8), PRIORITIES)),
    "update": (rb.update, (HANDLES, PRIORITIES)),
    "rewrite": (rb.update, (HANDLES, PRIORITIES, wide_batch(8))),
    "sample": (lambda s, k: rb.sample(s, k, 8), (jax.eval_shape(lambda: rb.key(0)),)),
    "cond": (lambda s, p: lax.cond(p, lambda s: rb.add(s, wide_batch(8)), lambda s: s, s), (True,)),
    "scan": (lambda s, k: lax.scan(train_step, s, rb.split(k, 10)), (jax.eval_shape(lambda: rb.key(0)),)),
}


def compiled_in_place(name: str, capacity: int) -> tuple[Any, Any]:
    program, args = PROGRAMS[name]
    shapes = jax.eval_shape(lambda: rb.init(frb.BufferSpec(WIDE_ITEM, capacity, frb.Prioritized())))
    return shapes, jax.jit(program, donate_argnums=0).lower(shapes, *args).compile(AS_USERS)


def test_the_search_for_copies_finds_one() -> None:
    """A program that needs the old value after writing must copy; if this finds none, the tests below say nothing."""

    def needs_the_old(x: jax.Array) -> Any:
        y = x.at[0].set(1.0)
        return y, x.sum() + y.sum(), x

    text = jax.jit(needs_the_old).lower(jnp.zeros(5000)).compile(AS_USERS).as_text()
    assert big_copies(text, 4000)


# Without kernels XLA on CPUs fuses reads of the old rows into code behind the write in loops and branches, barrier or
# not, and then copies them. Of the others it takes a second for each.
BY_THE_CORE = effort(("masked add", "rewrite"), tuple(name for name in PROGRAMS if name not in ("scan", "cond")))


@pytest.mark.parametrize(
    ("kernels", "name"),
    [*(("kernels", name) for name in PROGRAMS), *(("core", name) for name in BY_THE_CORE)],
    indirect=["kernels"],
)
def test_donated_states_are_written_in_place(kernels: bool, name: str) -> None:
    shapes, compiled = compiled_in_place(name, 1_000_000)
    memory = compiled.memory_analysis()
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    assert memory.alias_size_in_bytes >= held
    # What is allocated beyond that depends on the batch (8 items of 1 KiB, the scan's keys), not on the capacity: a
    # byte for each item would be fifty times as much.
    assert memory.temp_size_in_bytes < 20_000
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 20_000
    text = compiled.as_text()
    assert "input_output_alias" in text.splitlines()[0]
    assert len(re.findall(r"(?:may|must)-alias", text.splitlines()[0])) == len(jax.tree.leaves(shapes))
    assert big_copies(text, 8 * 1024) == []


def test_the_donated_memory_is_the_result(kernels: bool) -> None:
    for program in (lambda s: rb.add(s, batch(0, 3)), lambda s: rb.sample(s, rb.key(0), 2)[0]):
        state = filled()
        before = [leaf.unsafe_buffer_pointer() for leaf in (state.rows, state.tree)]
        after = jax.jit(program, donate_argnums=0)(state)
        assert [leaf.unsafe_buffer_pointer() for leaf in (after.rows, after.tree)] == before
        assert state.rows.is_deleted()


@by_kernels
def test_without_donation_the_old_state_stays(kernels: bool) -> None:
    state = filled()
    before = jax.tree.map(np.array, state)
    handles = jnp.arange(20, 24, dtype=jnp.int32)
    for program in (
        lambda s: rb.add(s, batch(90, 5)),
        lambda s: rb.update(s, handles, jnp.ones(4) * 9, {"x": jnp.ones((4, 2)) * 7}),
        lambda s: step(s, rb.key(0), 1)[0],  # a masked add first
    ):
        for run in (program, jax.jit(program)):
            after = run(state)
            assert not np.array_equal(after.rows, state.rows)
            assert_same_bits(state, before)


@needs_native
def test_the_state_that_sample_returns_costs_nothing() -> None:
    """Eagerly it is the same object; inside a larger program only the counters are not, which wait for the reading."""
    state = filled()
    assert rb.sample(state, rb.key(0), 3)[0] is state

    def returned(state: frb.State, key: jax.Array) -> Any:
        new, sample = rb.sample(state, key, 3)
        return new, sample.indices

    jaxpr = jax.make_jaxpr(returned)(state, rb.key(0)).jaxpr
    names = [path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    handed_through = [out is given for out, given in zip(jaxpr.outvars, jaxpr.invars, strict=False)]
    assert dict(zip(names, handed_through, strict=False)) == {"rows": True, "tree": True, "counters": False}


# --- 64-bit mode ----------------------------------------------------------------------------------------------------

LONG_ITEM = {
    "i": frb.Unbounded((), "int64"),
    "d": frb.Unbounded((2,), "float64"),
    "n": {"u": frb.Unbounded((), "uint64")},
}
LONG_BATCH = {
    "i": np.asarray([2**62 + 1, -5, 3]),
    "d": np.arange(6.0).reshape(3, 2) / 3,
    "n": {"u": np.asarray([2**64 - 1, 1, 2], np.uint64)},
}


def test_64_bit_leaves_need_the_64_bit_mode() -> None:
    for name, path in (("int64", "i"), ("float64", "d"), ("uint64", "n/u")):
        part = {"n": {"u": frb.Unbounded((), name)}} if path == "n/u" else {path: frb.Unbounded((), name)}
        with pytest.raises(TypeError, match=rf"'{path}'.*{name}.*jax_enable_x64.*use {name.replace('64', '32')}"):
            rb.init(frb.BufferSpec(part, 4))


# Capacities of different values, since equal specs share a trace.
@pytest.mark.parametrize(
    ("kernels", "capacity", "sampler"),
    [
        (form, capacity, sampler)
        for form in ("kernels", "core")
        for capacity, sampler in [(5, SAMPLERS[1]), *((np.int64(6), sampler) for sampler in SAMPLERS)]
        if form == "kernels" or effort(capacity == 5, True)  # XLA takes a second for each of the core
    ],
    ids=str,
    indirect=["kernels"],
)
def test_64_bit_leaves_in_the_64_bit_mode(kernels: bool, sampler: Any, capacity: int) -> None:
    with enable_x64(True):
        state = rb.init(frb.BufferSpec(LONG_ITEM, capacity, sampler))
        state = rb.add(state, LONG_BATCH, mask=np.asarray([True, False, True]))
        state = rb.add(state, LONG_BATCH)
        state, sample = jax.jit(lambda s, k: rb.sample(s, k, 6))(state, rb.key(0))
        priorities = None if isinstance(sampler, frb.Uniform) else sample.weights
        state = rb.update(state, sample.indices, priorities, {"n": sample.items["n"]})
        assert [leaf.dtype.name for leaf in (state.rows, state.counters)] == ["int32", "int32"]
        assert [leaf.dtype.name for leaf in sample[1:4]] == ["int32", "float32", "float32"]
        items = jax.tree.map(np.asarray, rb.items(state))
        for leaf, given in zip(jax.tree.leaves(items), jax.tree.leaves(LONG_BATCH), strict=True):
            assert leaf.dtype == given.dtype
            np.testing.assert_array_equal(leaf[:5], given[[0, 2, 0, 1, 2]])


@by_kernels
def test_the_mode_does_not_change_the_bits(kernels: bool) -> None:
    def life() -> Any:
        state = rb.init(frb.BufferSpec(ITEM, 9, frb.Prioritized()))
        for number in range(3):
            state = rb.add(state, batch(10 * number, 5), mask=np.arange(5) % 2 == 0)
            state, sample = rb.sample(state, rb.key(number), 4, beta=0.7)
            state = rb.update(state, sample.indices, sample.weights + np.float32(0.5), {"x": sample.items["x"] + 1})
        return jax.tree.map(np.asarray, (state, sample))

    narrow = life()
    with enable_x64(True):
        assert_same_bits(life(), narrow)
        # What JAX calls an int is now another dtype: it is never converted silently.
        with pytest.raises(TypeError, match="leaf 'id': expected dtype int32, got int64"):
            rb.add(rb.init(SPEC), batch(0, 5) | {"id": jnp.arange(5)})


# --- pytrees --------------------------------------------------------------------------------------------------------


def test_twenty_leaves(kernels: bool) -> None:
    dtypes = ["float32", "int8", "uint16", "bool", "float16", "bfloat16", "complex64", "int32", "uint32", "uint8"]
    item = {f"leaf{i}": frb.Unbounded((i % 3,) * (i % 2), dtypes[i % 10]) for i in range(20)}
    rng = np.random.default_rng(0)
    given = {
        name: jnp.asarray(rng.integers(0, 2, (6, *leaf.shape)).astype(jnp.dtype(leaf.dtype)))
        for name, leaf in item.items()
    }
    state = rb.add(rb.init(frb.BufferSpec(item, 6)), given)
    assert_same_bits(rb.items(state), given)


def test_states_are_ordinary_pytrees() -> None:
    state = filled()
    doubled = jax.tree.map(lambda x: x * 2, state)
    assert doubled.spec is state.spec
    np.testing.assert_array_equal(doubled.rows, state.rows * 2)
    leaves, outline = jax.tree.flatten(state)
    assert len(leaves) == 3
    assert_same_bits(jax.tree.unflatten(outline, leaves), state)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert names == [".rows", ".tree", ".counters"]
    assert "capacity=14" in repr(state)
    assert repr(state.spec) in repr(state)


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        copy.copy,
        lambda s: pickle.loads(pickle.dumps(s)),
        lambda s: jax.device_put(s, jax.devices()[0]),
        lambda s: jax.device_put(jax.device_get(s)),
    ],
    ids=["deepcopy", "copy", "pickle", "device_put", "device_get"],
)
def test_copies_of_states_go_on_alike(copied: Callable[[Any], Any]) -> None:
    state = filled()
    other = copied(state)
    assert isinstance(other, frb.State)
    assert other.spec == state.spec
    assert_same_bits(step(other, rb.key(4), 3), step(state, rb.key(4), 3))


def test_init_puts_the_arrays_on_the_device_that_is_asked_for() -> None:
    device = jax.devices()[0]
    state = rb.init(SPEC, device=device)
    assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(state))


@needs_native  # XLA's own operations change signaling NaNs where a masked write is compiled together with a read
def test_every_bit_pattern_of_bfloat16_is_read_back() -> None:
    """XLA's CPU computes with them in float32, which makes quiet NaNs of signaling ones."""
    import ml_dtypes

    every = np.arange(2**16, dtype=np.uint16).reshape(64, 1024).view(ml_dtypes.bfloat16)
    state = rb.add(rb.init(frb.BufferSpec({"x": frb.Unbounded((1024,), "bfloat16")}, 64)), {"x": every})
    handles = np.arange(64, dtype=np.int32)
    mask = jnp.ones(64, bool)
    for read in (rb.get(state, handles), rb.items(state), rb.items(rb.add(state, {"x": every}, mask=mask))):
        assert (np.asarray(read["x"]).view(np.uint16) == every.view(np.uint16)).all()


def test_no_array_of_numpys_is_taken_by_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which JAX 0.10 compiles for each new shape, where no dtype is named."""
    plain = jax.numpy.asarray

    def asarray(a: Any, *args: Any, **settings: Any) -> Any:
        assert args or settings or not isinstance(a, np.ndarray)
        return plain(a, *args, **settings)

    x = np.arange(3, dtype=np.float32)
    state = rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 8, frb.Prioritized()))
    monkeypatch.setattr(jax.numpy, "asarray", asarray)
    state = rb.add(state, {"x": x}, np.ones(3, bool), x)
    state = rb.update(state, np.arange(3, dtype=np.int32), x + 1, {"x": x + 2})
    assert rb.items(state)["x"][:3].tolist() == [2, 3, 4]
    assert rb.contains(frb.Unbounded(()), x).all()
    assert float(rb.moments(x).mean) == 1


@pytest.mark.parametrize("name", ["add", "get", "update"])
def test_sizes_that_are_symbols_are_refused(name: str) -> None:
    """As programs have them that JAX exports for batches of any size."""
    (size,) = export.symbolic_shape("size")
    numbers, handles = (jax.ShapeDtypeStruct((size,), dtype) for dtype in (jnp.float32, jnp.int32))
    functions: dict[str, Any] = {
        "add": lambda numbers, handles: rb.add(state, numbers).counters,
        "get": lambda numbers, handles: rb.get(state, handles),
        "update": lambda numbers, handles: rb.update(state, handles, numbers).counters,
    }
    state = rb.init(frb.BufferSpec(frb.Unbounded(()), 4, frb.Prioritized()))
    with pytest.raises(TypeError, match="expected a batch whose size is known while tracing, got the symbol size"):
        export.export(jax.jit(functions[name]))(numbers, handles)
