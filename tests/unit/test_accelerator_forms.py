"""What GPUs and TPUs compute in a form of their own: bit for bit the same, and in few steps."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from functional_rb.ops import fixed_point, numpy_ops
from functional_rb.samplers import importance
from functional_rb.structures import sum_tree
from jax_backend.arrays import ops
from jax_backend.kernels import tpu_tree, tpus
from tests.support import backends

NARROW = "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "bool"


@pytest.mark.parametrize("word", ["int32", "float32"])
@pytest.mark.parametrize("narrow", NARROW)
def test_words_are_the_bytes_that_they_consist_of(narrow: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.random.default_rng(0).integers(0, 2 if narrow == "bool" else 256, (5, 24)).astype(np.uint8)
    own = np.asarray(ops.bitcast(jnp.asarray(bits), narrow))
    assert own.tobytes() == bits.tobytes()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    words = ops.bitcast(jnp.asarray(own), word)
    assert words.dtype == word
    assert np.asarray(words).tobytes() == bits.tobytes()
    again = ops.bitcast(words, narrow)
    assert (again.dtype, again.shape) == (own.dtype, own.shape)
    assert np.asarray(again).tobytes() == bits.tobytes()


def sizes_read(text: str) -> list[tuple[str, str]]:
    """What is read as what, where the one has more bits than the other."""
    found = re.findall(r"bitcast_convert .*: \(tensor<(?:\d+x)*(\w+)>\) -> tensor<(?:\d+x)*(\w+)>", text)
    return [(x, y) for x, y in found if re.sub(r"\D", "", x) != re.sub(r"\D", "", y)]


def test_bytes_of_rows_are_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As XLA puts nothing else into one launch with an operation that reads dtypes of one size as those of another."""

    def traced(words: int) -> list[tuple[str, str]]:  # specs of their own, as what is traced is kept
        item = {"done": frb.Binary(()), "bytes": frb.Bounded(0, 255, (words, 4), "uint8"), "x": frb.Unbounded(())}
        state = rb.init(frb.BufferSpec(item, 1000))
        batch = {name: jnp.zeros((8, *leaf.shape), leaf.dtype) for name, leaf in item.items()}

        def step(state: rb.State, key: jax.Array) -> tuple[rb.State, rb.Sample]:
            return rb.sample(rb.add(state, batch), key, 8)

        return sizes_read(jax.jit(step).trace(state, rb.key(0)).lower(lowering_platforms=("cuda",)).as_text())

    with backends.make("jax-core"):
        assert set(traced(11)) == {("ui8", "i32"), ("i32", "ui8")}
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert traced(12) == []


@pytest.mark.parametrize("nbytes", [ops.SHIFTED, ops.SHIFTED + 4])
def test_bytes_of_images_are_not(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for given, dtype in (
        (jnp.zeros((2, nbytes), jnp.uint8), "int32"),
        (jnp.zeros((2, nbytes // 4), jnp.int32), "uint8"),
    ):
        text = jax.jit(ops.bitcast, static_argnums=1).lower(given, dtype).as_text()
        assert bool(sizes_read(text)) == (nbytes > ops.SHIFTED)


OPS = numpy_ops.OPS


def random_numbers(rng: np.random.Generator, count: int) -> np.ndarray:
    numbers = rng.random(count) * (rng.random(count) < 0.7) * 10.0 ** rng.integers(-9, 9, count)
    return numbers.astype(np.float32)


@pytest.mark.parametrize(
    ("capacity", "compared"), [(1, True), (16, True), (17, True), (17, False), (4097, True), (4097, False)]
)
def test_the_bits_are_those_of_the_sum_tree(capacity: int, compared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves around the seam of the ring, and any, some of which come twice; of large writes level by level."""
    monkeypatch.setattr(tpu_tree, "MOST_COMPARED", 1024 if compared else 0)
    setting = jax.jit(tpu_tree.set_leaves, static_argnums=(1, 4))
    drawing, reading = jax.jit(tpu_tree.draw, static_argnums=1), jax.jit(tpu_tree.get_leaves)
    rng, count = np.random.default_rng(capacity), min(capacity, 40)
    tree = np.zeros((sum_tree.geometry(capacity).rows, sum_tree.FANOUT), np.float32)
    made = jnp.asarray(tree)
    for turn in range(8):
        consecutive = turn % 2 == 0
        start = capacity - 1 - turn if turn < 4 else rng.integers(capacity)
        leaves = np.arange(count) + start if consecutive else rng.integers(capacity, size=count)
        leaves = (leaves % capacity).astype(np.int32)
        values = random_numbers(rng, capacity)[leaves]
        values[leaves == leaves[0]] = 1  # so that there is something to draw
        tree = sum_tree.set_leaves.core(OPS, tree, capacity, leaves, values, consecutive)
        made = setting(made, capacity, leaves, values, consecutive)
        assert tree.tobytes() == np.asarray(made).tobytes()
        draws = rng.integers(0, 2**31, (50, len(sum_tree.geometry(capacity).levels))).astype(np.int32)
        drawn = drawing(made, capacity, draws)
        np.testing.assert_array_equal(drawn.leaves, sum_tree.descend.core(OPS, tree, capacity, draws))
        np.testing.assert_array_equal(drawn.values, sum_tree.get_leaves.core(OPS, tree, np.asarray(drawn.leaves)))
        np.testing.assert_array_equal(drawn.total, np.full(50, sum_tree.total(tree)))
        np.testing.assert_array_equal(drawn.smallest, np.full(50, sum_tree.smallest(OPS, tree)))
        np.testing.assert_array_equal(reading(made, leaves), values)


def test_nothing_is_drawn_from_an_empty_tree() -> None:
    draws = np.random.default_rng(0).integers(0, 2**31, (9, 3)).astype(np.int32)
    tree = np.zeros((sum_tree.geometry(300).rows, sum_tree.FANOUT), np.float32)
    drawn = jax.jit(tpu_tree.draw, static_argnums=1)(tree, 300, draws)
    np.testing.assert_array_equal(drawn.leaves, sum_tree.descend.core(OPS, tree, 300, draws))
    assert not np.asarray(drawn[1:]).any()


@pytest.mark.parametrize("table", fixed_point.TABLES)
def test_tables_are_looked_up_by_the_bits_of_their_entries(table: str) -> None:
    np.testing.assert_array_equal(tpus.lookup(table, jnp.arange(256)), fixed_point.TABLES[table])


def test_random_bits_are_those_of_jax() -> None:
    key = jax.random.key(7)
    wanted = jax.random.bits(key, (33, 5), jnp.uint32) >> 1
    np.testing.assert_array_equal(tpus.bits(jax.random.key_data(key), 33, 5), wanted)


@pytest.mark.parametrize("compared", [True, False])
def test_the_last_good_priority_of_equal_slots_counts(compared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpus, "MOST_COMPARED", 64 if compared else 0)
    rng, updating = np.random.default_rng(3), jax.jit(tpus.updated_values, static_argnums=3)
    for _ in range(8):
        slots, live = rng.integers(20, size=64).astype(np.int32), rng.random(64) < 0.6
        priorities = np.where(rng.random(64) < 0.2, -1, random_numbers(rng, 64)).astype(np.float32)
        wanted = importance.updated_values.core(OPS, slots, live, priorities, 0.6)
        found = updating(slots, live, priorities, 0.6)
        for one, other in zip(found[1:], wanted[1:], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.asarray(found[0])[wanted[1]], wanted[0][wanted[1]])


weights_for_a_tpu = jax.jit(tpus.importance_weights)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0, -1.0, np.nan])
def test_weights_are_those_of_the_core(beta: float) -> None:
    values = np.maximum(random_numbers(np.random.default_rng(5), 100), np.float32(1e-8))
    given = values, values.min(), np.float32(beta)
    wanted = importance.importance_weights.core(OPS, *given)
    np.testing.assert_array_equal(weights_for_a_tpu(*given), wanted)


def step(state: rb.State, key: jax.Array) -> tuple[rb.State, jax.Array]:
    state, sample = rb.sample(rb.add(state, jnp.ones(4)), key, 8)
    return rb.update(state, sample.indices, sample.items + sample.weights), sample.indices


def test_what_is_traced_for_a_tpu_draws_the_same_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the operations counted is two pieces of work there at least, and those in loops are so at every turn."""

    def given(batch_size: int) -> tuple[rb.State, jax.Array]:  # specs of their own, as what is traced is kept
        return rb.with_spec(filled, dataclasses.replace(spec, batch_size=batch_size)), rb.key(1)

    spec = frb.BufferSpec(frb.Unbounded(()), 200, frb.Prioritized(), batch_size=8)
    filled = rb.add(rb.init(spec), jnp.arange(190.0))

    wanted = jax.jit(step)(*given(11))
    with backends.make("jax-core"), monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "tpu")
        state, key = given(13)
        text = jax.jit(step).trace(state, key).lower(lowering_platforms=("tpu",)).as_text()
        patch.delitem(tpus.TABLE, fixed_point.lookup)  # which takes XLA for CPUs long to compile
        found = jax.jit(step)(*given(14))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
    # The rows of two children and of the leaves drawn are gathered, and before each write to the tree its old children;
    # what an update leaves as it is, too. Rows are written once, and the tree twice.
    counted = "gather", "scatter", "sort", "while", "dynamic_slice", "dynamic_update_slice", "reduce_window"
    counts = {name: len(re.findall(rf'"?stablehlo\.{name}"?\(', text)) for name in counted}
    assert counts == {name: {"gather": 5, "scatter": 3}.get(name, 0) for name in counted}
