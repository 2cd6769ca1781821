"""Programs on four devices: run by `tests.programs.test_meshes` in a process that has eight."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from functional_rb.native.switch import switch
from jax_backend import compat
from tests.support import training
from tests.support.effort import effort
from tests.support.members import MEMBERS, USUAL
from tests.support.versions import is_version

in_mesh = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh  # type: ignore[attr-defined]  # before JAX 0.7
SEEDS = 4
# On a mesh of each kind, in `make test-all`; the others on one.
BOTH = ("prioritized", "slices, prioritized", "without replacement")
# Members that have every structure and every writer among them.
TYPED = ("prioritized, of the best", "queue of windows", "without replacement, of a reservoir", "slices, by windows")
each_member = pytest.mark.parametrize(
    ("kind", "name"),
    [(AxisType.Auto, name) for name in effort(BOTH[1:2], MEMBERS) if MEMBERS[name].compiled]
    + [(AxisType.Explicit, name) for name in effort(BOTH[:1], BOTH)],
)


def mesh_of(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((SEEDS,), ("d",), axis_types=(kind,), devices=jax.devices()[:SEEDS])


@functools.cache
def alone(name: str) -> tuple[Any, Any, Any]:
    """Empty buffers, what chance gives, and what becomes of them on one device, one after the other."""
    spec = MEMBERS[name].spec
    begun, given = training.begin(spec), [training.given(spec, seed) for seed in range(SEEDS)]
    program = training.jit(training.train)
    after = [jax.device_get(program(begun, chance)) for chance in given]
    return stacked([begun] * SEEDS), stacked(given), stacked(after)


@functools.cache
def whole(name: str) -> tuple[Any, Any]:
    """What chance gives one step of a large buffer, and what becomes of it where its storage is not split."""
    spec = split_spec(name)
    chance = jax.tree.map(lambda x: x[1], training.given(spec, 1))
    return chance, jax.device_get(training.jit(step)(rb.init(spec), chance))


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def spread(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, P("d")))


def one_of_each(state: frb.State, given: training.Given) -> Any:
    """The training of a device's own buffer, the only one in its part of the arrays."""
    after = training.train(*jax.tree.map(lambda x: x[0], (state, given)))
    return jax.tree.map(lambda x: x[None], after)


@each_member
def test_each_device_trains_its_own(kind: AxisType, name: str) -> None:
    """`shard_map` with all that JAX checks by default; JAX 0.6 checks its own `searchsorted` wrongly."""
    begun, given, expected = alone(name)
    mesh = mesh_of(kind)
    with in_mesh(mesh):
        checks = is_version(jax, "0.7")
        program = training.jit(jax.shard_map(one_of_each, in_specs=P("d"), out_specs=P("d"), check_vma=checks))
        begun, given = spread(mesh, (begun, given))
        compiled = program.lower(begun, given).compile()
        training.assert_same_bits(compiled(begun, given), expected)
    assert ("functional_rb_" in compiled.as_text()) is switch.on


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_a_storage_that_is_divided_stays_so_under_another_spec(kind: AxisType) -> None:
    """The tree, and what else is small, lies whole on each device."""
    where = NamedSharding(mesh_of(kind), P("d"))
    state = rb.init(frb.BufferSpec({"x": frb.Unbounded((2,))}, 8), device=where)
    state = rb.add(state, {"x": np.arange(12, dtype=np.float32).reshape(6, 2)})
    other = dataclasses.replace(state.spec, capacity=16, sampler=frb.Prioritized())
    after = rb.with_spec(state, other)
    assert after.rows.sharding.is_equivalent_to(where, 2)
    assert after.tree.is_fully_replicated
    assert np.asarray(rb.items(after)["x"])[:6, 0].tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(ValueError, match=r"the capacity so that .* divides 9"):
        rb.with_spec(after, dataclasses.replace(other, capacity=9))


# --- buffers that are stacked, each device with its own --------------------------------------------------------------


def read(state: frb.State) -> Any:
    """What other functions tell of a state, and make of it."""
    spec, handles = state.spec, jnp.arange(2, dtype=jnp.int32)
    told: list[Any] = [
        rb.items(state),
        rb.get(state, handles),
        rb.is_live(state, handles),
        rb.size(state),
        rb.can_sample(state),
    ]
    if spec.sampler.has_priorities:
        told += [rb.priorities(state, handles), rb.probabilities(state, handles)]
    if spec.writer.in_order:
        told += [rb.newest(state, 2)]
    if not isinstance(spec.writer, frb.Immutable):
        told += [rb.clear(state), rb.add(state, training.items(spec), key=rb.key(0), validate=True)]
    return told


@pytest.mark.parametrize("name", effort(TYPED[::2], USUAL))
def test_stacked_buffers_keep_their_axis_in_the_types(name: str) -> None:
    """On explicit axes the types tell how results lie; that is known when a program has been traced."""
    spec = MEMBERS[name].spec
    begun, given = training.begin(spec), [training.given(spec, seed) for seed in range(SEEDS)]
    mesh = mesh_of(AxisType.Explicit)
    with in_mesh(mesh):
        states, probabilities = spread(mesh, (stacked([begun] * SEEDS), stacked(given)))
        for types in (
            jax.eval_shape(jax.vmap(training.train), states, probabilities),
            jax.eval_shape(jax.vmap(read), states),
        ):
            assert {leaf.sharding.spec[0] for leaf in jax.tree.leaves(types)} == {"d"}
        scalars = jax.eval_shape(jax.vmap(rb.size), states), *jax.eval_shape(jax.vmap(rb.counts), states)
        assert {x.sharding.spec for x in scalars} == {P("d")}


@pytest.mark.skipif(not compat.IS_EXPLICIT, reason="XLA of JAX 0.6 gathers the parts of such a program")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (AxisType.Auto, "prioritized"),
        *effort([], [(AxisType.Auto, "slices, prioritized"), (AxisType.Explicit, "prioritized")]),
    ],
)
def test_stacked_buffers_are_trained_apart(kind: AxisType, name: str) -> None:
    """XLA divides the program: each device gets what it gets by itself, and asks no other for anything."""
    begun, given, expected = alone(name)
    mesh = mesh_of(kind)
    with in_mesh(mesh):
        begun, given = spread(mesh, (begun, given))
        compiled = training.jit(jax.vmap(training.train)).lower(begun, given).compile()
        after = compiled(begun, given)
    training.assert_same_bits(after, expected)
    assert {x.sharding.spec[0] for x in jax.tree.leaves(after)} == {"d"}
    assert not re.search(COMMUNICATION, compiled.as_text())


# --- one buffer, whose storage is split -------------------------------------------------------------------------------

# So large that no shape of a program has it, unless the program puts the storage together.
CAPACITY = 240
COMMUNICATION = r"all-gather|all-reduce|all-to-all|collective-permute"


def split_spec(name: str) -> frb.BufferSpec:
    return dataclasses.replace(MEMBERS[name].spec, capacity=CAPACITY)


def shardings(state: frb.State) -> dict[str, P]:
    """Along which axes of the mesh each array's first axis is divided, where it is."""
    named = {"rows": state.rows, "tree": state.tree, "counters": state.counters, **state.auxiliary}
    named |= {f"wide_{k}": x for k, x in enumerate(state.wide)}
    found = {name: (*x.sharding.spec, None)[0] for name, x in named.items() if x is not None}
    return {name: axis for name, axis in found.items() if axis is not None}


def step(state: frb.State, now: training.Given) -> Any:
    return training.learn(training.collect(state, now), now)


@pytest.mark.parametrize(
    "name", [name for name in effort(TYPED, USUAL) if not isinstance(MEMBERS[name].writer, frb.Immutable)]
)
def test_split_storage_is_told_by_the_types(name: str) -> None:
    spec, mesh = split_spec(name), mesh_of(AxisType.Explicit)
    chance = jax.tree.map(lambda x: x[1], training.given(spec, 1))
    state = rb.init(spec, device=NamedSharding(mesh, P("d")))
    after, sample = jax.eval_shape(step, state, chance)
    assert shardings(after) == shardings(jax.eval_shape(rb.clear, state)) == {"rows": "d"}
    assert not any(x.sharding.spec and x.sharding.spec[0] for x in jax.tree.leaves(sample))
    assert {x.sharding.spec[0] for x in jax.tree.leaves(jax.eval_shape(rb.items, state))} == {"d"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((AxisType.Auto, name) for name in effort(BOTH[2:], BOTH)), (AxisType.Explicit, "prioritized")],
)
def test_split_storage_stays_split(kind: AxisType, name: str) -> None:
    """Rows are written and read where they lie; only what is sampled goes from device to device."""
    spec, mesh = split_spec(name), mesh_of(kind)
    chance, expected = whole(name)
    state = rb.init(spec, device=NamedSharding(mesh, P("d")))
    assert shardings(state) == {"rows": "d"}
    compiled = training.jit(step).lower(state, chance).compile()
    after, sample = compiled(state, chance)
    training.assert_same_bits((after, sample), expected)
    assert shardings(after) == {"rows": "d"}
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(sample))
    assert compiled.output_shardings[0].rows.shard_shape(state.rows.shape)[0] == CAPACITY // SEEDS
    width = state.rows.shape[1]
    assert f"[{CAPACITY // SEEDS},{width}]" in compiled.as_text()
    assert f"[{CAPACITY},{width}]" not in compiled.as_text()


def test_split_storage_outside_of_jit() -> None:
    spec, where = split_spec("prioritized"), NamedSharding(mesh_of(AxisType.Explicit), P("d"))
    state = rb.add_(rb.init(spec, where), training.items(spec))
    state, sample = rb.sample(state, rb.key(1))
    state = rb.update_(state, sample.indices, np.linspace(0.1, 1, 6, dtype=np.float32))
    assert shardings(state) == shardings(rb.clear(state)) == {"rows": "d"}
    items = rb.items(state)
    assert {x.sharding.spec[0] for x in jax.tree.leaves(items)} == {"d"}
    assert set(np.asarray(items["id"]).tolist()) == {0, 1, 2, 3, 4, 5}
    assert rb.get(state, sample.indices)["id"].tolist() == sample.items["id"].tolist()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_where_the_arrays_of_a_state_go(kind: AxisType, tmp_path: Path) -> None:
    """The storage is split, the rest is whole on each device; also of what is loaded."""
    mesh = mesh_of(kind)
    where = NamedSharding(mesh, P("d"))
    images = {"obs": frb.Unbounded((8, 8), "uint8"), "next_obs": frb.Unbounded((8, 8), "uint8")}
    item = images | {"wide": frb.Unbounded((4, 512), "uint8"), "x": frb.Unbounded(())}
    spec = frb.BufferSpec(item, 16, frb.Prioritized(), compact=frb.Compact(spare=4))
    split = {"rows": "d", "wide_0": "d", "kept_frames": "d"}
    state = rb.init(spec, device=where)
    frb.save(state, tmp_path / "it")
    saved = rb.state_dict(state)
    for one in (
        state,
        jax.jit(lambda: rb.init(spec, device=where))(),
        frb.load(tmp_path / "it", rb, device=where),
        rb.load_state_dict(spec, saved, device=where),
        rb.load_state_dict(state, saved),
    ):
        assert {("kept_" + k if k in state.auxiliary else k): v for k, v in shardings(one).items()} == split
        assert {len(x.sharding.device_set) for x in jax.tree.leaves(one)} == {SEEDS}
    data = frb.BufferSpec({"x": frb.Unbounded(())}, 8, writer=frb.Immutable())
    assert shardings(rb.init(data, where, {"x": np.ones(3, np.float32)})) == {"rows": "d"}
    assert shardings(rb.init(spec, device=NamedSharding(mesh, P()))) == {}
    with pytest.raises(ValueError, match=r"'rows', \[18, 1\].*change the capacity so that .* divides 18"):
        rb.init(dataclasses.replace(data, capacity=18, writer=frb.RoundRobin()), device=where)
    with pytest.raises(ValueError, match=r"'kept_frames', \[21, 16\].*change Compact\(spare=\.\.\.\) so that"):
        rb.init(dataclasses.replace(spec, compact=frb.Compact(spare=5)), device=where)


@pytest.mark.parametrize("name", effort(BOTH[2:], BOTH[1:]))
def test_axes_that_are_split_by_the_user(name: str) -> None:
    """Also what goes by slot beside the rows: it stays as it is."""
    spec, mesh = split_spec(name), mesh_of(AxisType.Auto)
    chance, expected = whole(name)

    def place(x: jax.Array) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, P("d") if x.shape[0] == CAPACITY else P()))

    state = jax.tree.map(place, rb.init(spec))
    after = training.jit(step)(state, chance)
    assert shardings(after[0]) == shardings(state)
    assert shardings(state).keys() > {"rows"}
    training.assert_same_bits(after, expected)


def test_values_are_drawn_on_the_device_that_is_named() -> None:
    item, device = {"x": frb.Unbounded((2,)), "n": frb.Bounded(0, 9, (), "int32")}, jax.devices()[2]
    drawn = rb.rand(item, rb.key(0), 3, device=device)
    assert {name: leaf.devices() for name, leaf in drawn.items()} == {name: {device} for name in item}
    training.assert_same_bits(drawn, rb.rand(item, rb.key(0), 3))


def test_what_an_older_jax_cannot_name_lies_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.10 it has no name for how XLA divides six rows among four devices, or the few counters."""
    spec = split_spec(BOTH[2])
    state = rb.init(spec, device=NamedSharding(mesh_of(AxisType.Auto), P("d")))
    counters, six, pairs, slots = f"{len(state.counters)}", "6", "6,2", f"{CAPACITY}"
    placed = {}
    for placed_by in ("XLA", "library"):
        monkeypatch.setattr(compat, "IS_TOLD", placed_by == "XLA")
        jax.clear_caches()
        program = str(jax.make_jaxpr(lambda x: rb.sample(x, rb.key(0), 6))(state))
        placed[placed_by] = set(re.findall(r"\w+:\w+\[([\d,]+)\]\S* = sharding_constraint", program))
    jax.clear_caches()
    assert not placed["XLA"]
    assert {counters, six, pairs} <= placed["library"]
    assert slots not in placed["library"]
