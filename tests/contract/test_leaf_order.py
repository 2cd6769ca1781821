"""Leaves lie in the order of their names, whatever order they are given in."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np

import functional_rb as frb
from functional_rb.base import nest
from tests.support import backends, grammar
from tests.support.backends import Backend

NUMBERS = np.arange(4, dtype=np.float32)

SCALAR = frb.Unbounded(())
# Leaves that nothing but their names tells apart, in an order that is not that of their names.
ITEM: dict[str, Any] = {
    "value": SCALAR,
    "reward": SCALAR,
    "obs": {"right": frb.Unbounded((1100,), "uint8"), "left": frb.Unbounded((1100,), "uint8")},
    "done": frb.Binary(),
    "count": frb.Unbounded((), "int32"),
}


def is_spec(x: Any) -> bool:
    return isinstance(x, frb.specs.ArraySpec | frb.specs.NonTensor)


def backwards(nest: Any) -> Any:
    """The same nest with the names of every mapping in the opposite order."""
    if isinstance(nest, frb.Composite):
        return nest.with_parts(backwards(dict(nest)))
    if isinstance(nest, dict):
        return {name: backwards(nest[name]) for name in reversed(nest)}
    if isinstance(nest, (tuple, list)):
        parts = map(backwards, nest)
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    names = nest.nests if isinstance(nest, frb.specs.Varying) else ()
    if isinstance(nest, frb.specs.Stacked):
        names = ("members",)
    if isinstance(nest, grammar.Data):
        names = tuple(field.name for field in dataclasses.fields(nest))
    return dataclasses.replace(nest, **{name: backwards(getattr(nest, name)) for name in names}) if names else nest


def steps(first: int, count: int) -> dict[str, Any]:
    """Items that tell their number, each leaf in another way."""
    k = np.arange(first, first + count)
    picture = np.zeros((count, 1100), np.uint8)
    return {
        "value": (1000 + k).astype(np.float32),
        "reward": (2000 + k).astype(np.float32),
        "obs": {
            "right": (picture.T + 10 + k % 50).T.astype(np.uint8),
            "left": (picture.T + 100 + k % 50).T.astype(np.uint8),
        },
        "done": k % 3 == 2,
        "count": (3000 + k).astype(np.int32),
    }


def in_numpy(backend: Backend, nest: Any) -> Any:
    """With dicts in the order of their names, so that nests compare."""
    if isinstance(nest, dict):
        return {name: in_numpy(backend, nest[name]) for name in sorted(nest)}
    if isinstance(nest, (tuple, list)):
        return type(nest)(in_numpy(backend, part) for part in nest)
    return backend.numpy(nest).tolist() if hasattr(nest, "shape") else nest


def order_of(nest: Any) -> Any:
    """The names of all dicts, in their order."""
    return [(name, order_of(part)) for name, part in nest.items()] if isinstance(nest, dict) else None


@hypothesis.settings(max_examples=30)
@hypothesis.given(grammar.ALL.nests_of(3))
def test_any_nest_is_laid_out_by_its_names(spec: Any) -> None:
    item, other = frb.specs.freeze(spec), frb.specs.freeze(backwards(spec))
    one, two = frb.BufferSpec(item, 4), frb.BufferSpec(other, 4)
    assert one == two
    assert hash(one) == hash(two)
    assert (one.plan.layout, one.plan.leaves, one.plan.names, one.plan.objects) == (
        two.plan.layout,
        two.plan.leaves,
        two.plan.names,
        two.plan.objects,
    )
    assert one.plan.structure.as_given().paths == nest.flatten(item, is_spec)[1].paths


def test_states_of_specs_in_another_order_are_interchangeable(backend: Backend) -> None:
    rb, sampler = backend.rb, frb.Slices(2) if backend.name == "torch-core" else frb.Prioritized()
    one, other = frb.BufferSpec(ITEM, 6, sampler), frb.BufferSpec(backwards(ITEM), 6, sampler)
    assert (one, hash(one)) == (other, hash(other))
    states = []
    for spec in (one, other):
        state = backend.add(backend.init(spec), backend.tree(steps(0, 4)))
        states.append(backend.add(state, backend.tree(backwards(steps(4, 4)))))
    stored = [in_numpy(backend, rb.items(state)) for state in states]
    expected = steps(6, 2), steps(2, 4)
    assert stored[0] == stored[1]
    assert stored[0]["value"] == [leaf for part in expected for leaf in part["value"].tolist()]
    assert stored[0]["obs"]["left"] == [row for part in expected for row in part["obs"]["left"].tolist()]
    drawn = [backend.sample(state, rb.key(3), 5)[1].items for state in states]
    assert in_numpy(backend, drawn[0]) == in_numpy(backend, drawn[1])
    if backend.library == "torch":  # JAX sorts names as soon as anything is compiled
        assert [order_of(items) for items in drawn] == [order_of(ITEM), order_of(backwards(ITEM))]


def test_what_is_loaded_goes_with_a_spec_in_another_order(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    one, other = frb.BufferSpec(ITEM, 6), frb.BufferSpec(backwards(ITEM), 6)
    state = rb.add(rb.init(one), library.tree(steps(0, 8)))
    expected = in_numpy(library, rb.items(state))
    frb.save(state, tmp_path / "saved")
    loaded = frb.load(tmp_path / "saved", rb)
    assert loaded.spec == other
    assert order_of(loaded.spec.item) == order_of(one.item)
    for again in (
        loaded,
        rb.load_state_dict(other, rb.state_dict(state)),
        rb.load_state_dict(state, rb.state_dict(state)),
    ):
        assert in_numpy(library, rb.items(again)) == expected
    there = rb.init(dataclasses.replace(one, storage=frb.Memmap(tmp_path / "mapped")))
    there = rb.add(there, library.tree(steps(0, 8)))
    expected = in_numpy(library, rb.items(there))
    del there
    again = rb.init(dataclasses.replace(other, storage=frb.Memmap(tmp_path / "mapped", existsok=True)))
    assert in_numpy(library, rb.items(again)) == expected


def test_from_one_backend_to_the_other_and_back() -> None:
    with backends.make("torch") as torch, backends.make("jax") as jax:
        state = torch.rb.add(torch.rb.init(frb.BufferSpec(ITEM, 6)), torch.tree(steps(0, 8)))
        expected = in_numpy(torch, torch.rb.items(state))
        on_jax = jax.rb.from_dlpack(state, copy=True)
        on_jax = jax.rb.add(on_jax, jax.tree(backwards(steps(8, 1))))
        state = torch.rb.add(state, torch.tree(steps(8, 1)))
        expected = in_numpy(torch, torch.rb.items(state))
        assert in_numpy(jax, jax.rb.items(on_jax)) == expected
        assert in_numpy(torch, torch.rb.items(torch.rb.from_dlpack(on_jax))) == expected


def test_branches_and_loops_take_states_of_specs_in_another_order() -> None:
    import jax
    import jax.numpy as jnp

    import jax_backend as rb

    example = jax.tree.map(lambda x: x[0], steps(0, 1))
    example = {name: example[name] for name in ITEM}  # not as JAX has sorted it
    sorted_one = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, example))
    assert list(example) != list(sorted_one)
    specs = [frb.BufferSpec(frb.specs.spec_of(x), 4) for x in (example, sorted_one)]
    assert frb.specs.spec_of(example) == frb.specs.spec_of(sorted_one)
    assert hash(frb.specs.spec_of(example)) == hash(frb.specs.spec_of(sorted_one))
    assert specs[0] == specs[1]
    states = [rb.add(rb.init(spec), steps(10 * k, 4)) for k, spec in enumerate(specs)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    chosen = [jax.lax.cond(p, lambda a, b: a, lambda a, b: b, *states) for p in (True, False)]
    assert [rb.items(state)["value"][0] for state in chosen] == [1000, 1010]
    both = jax.tree.map(lambda *x: jnp.stack(x), *states)
    both = jax.vmap(lambda state, item: rb.add(state, item))(
        both, jax.tree.map(lambda *x: np.stack(x), steps(5, 1), steps(15, 1))
    )
    assert jax.vmap(rb.items)(both)["reward"][:, 0].tolist() == [2005, 2015]

    def step(state: Any, item: Any) -> tuple[Any, None]:
        return jax.lax.cond(
            item["done"], lambda s, i: rb.add(s, i), lambda s, i: rb.add(states[1], i), state, item
        ), None

    last, _ = jax.jit(lambda s, xs: jax.lax.scan(step, s, xs))(states[0], steps(20, 4))
    assert rb.items(last)["count"].tolist() == [3022, 3023, 3012, 3013]


def test_values_of_specs_in_another_order_are_the_same(library: Backend) -> None:
    rb = library.rb
    spec = {
        "b": frb.Bounded(0, 1),
        "a": {"d": frb.Categorical(9), "c": SCALAR},
        "s": frb.specs.Sequence({"y": SCALAR, "x": SCALAR}, 2),
    }
    drawn = [
        rb.rand(frb.specs.freeze(x), rb.key(0), 3)
        for x in (spec, frb.specs.freeze(spec), {**spec, "a": backwards(spec["a"])})
    ]
    assert in_numpy(library, drawn[0]) == in_numpy(library, drawn[1]) == in_numpy(library, drawn[2])


def test_fields_in_another_order_are_matched_by_name(library: Backend, tmp_path: Path) -> None:
    """A class has its fields in another order than when a checkpoint was written."""

    def made(names: str) -> tuple[type, type]:
        pair = collections.namedtuple("Pair", names)
        data = dataclasses.make_dataclass("Data", names.split())
        for kind in (pair, data):
            kind.__module__, kind.__qualname__ = __name__, kind.__name__
        return pair, data

    def values(kinds: tuple[type, type], a: Any, b: Any) -> Any:
        return {name: kind(a=a, b=b) for name, kind in zip(("pair", "data"), kinds, strict=True)}

    rb, kinds, others = library.rb, made("b a"), made("a b")
    spec, other = (frb.BufferSpec(values(k, SCALAR, SCALAR), 4) for k in (kinds, others))
    batch = values(kinds, library.array(NUMBERS), library.array(10 + NUMBERS))
    state = rb.add(rb.init(spec), batch)
    frb.save(state, tmp_path)
    for loaded in (
        frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(known=others)),
        rb.load_state_dict(other, rb.state_dict(state)),
    ):
        items = rb.items(loaded)
        for name, kind in zip(("pair", "data"), others, strict=True):
            assert isinstance(items[name], kind)
            assert library.numpy(items[name].a).tolist() == NUMBERS.tolist()
            assert library.numpy(items[name].b).tolist() == (10 + NUMBERS).tolist()
