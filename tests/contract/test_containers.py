"""What items are put in comes back, whatever it is: containers of every kind, on both backends."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import pickle
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from functional_rb.base import containers, nest
from functional_rb.buffer import earlier
from functional_rb.convert import json as module
from functional_rb.core.draft import Arrays
from functional_rb.specs.values import is_leaf
from tests.support import backends, grammar
from tests.support.backends import Backend

Tree = Any
NUMBERS = np.arange(4, dtype=np.float32)


def test_updates_take_the_items_of_a_sample_with_empty_containers(backend: Backend) -> None:
    scalar = frb.Unbounded(())
    spec = frb.BufferSpec({"x": scalar, "nothing": {}, "pair": (), "list": [scalar, {}, {"deep": []}]}, 4)
    state = backend.init(spec)
    array = backend.array(NUMBERS)
    batch = {"x": array, "nothing": {}, "pair": (), "list": [array, {}, {"deep": []}]}
    state = backend.add(state, batch)
    handles = backend.array(np.arange(4, dtype=np.int32))
    items = backend.rb.get(state, handles)
    state = backend.update(state, handles, items=items | {"x": array + 10})
    state = backend.update(state, handles, items={"list": [array + 20, {}, {}]})
    stored = backend.rb.items(state)
    assert backend.numpy(stored["x"]).tolist() == [10, 11, 12, 13]
    assert backend.numpy(stored["list"][0]).tolist() == [20, 21, 22, 23]
    assert (stored["nothing"], stored["pair"], stored["list"][1:]) == ({}, (), [{}, {"deep": []}])
    for wrong in ({"nothing": {"x": array}}, {"none": {}}, {"list": [array, {"x": {}}]}):
        with pytest.raises(ValueError, match=r"no such leaf in BufferSpec.item; expected some of \['list/0', 'x'\]"):
            backend.update(state, handles, items=wrong)


# --- the order of names ---------------------------------------------------------------------------------------------

SCALAR = frb.Unbounded(())
ITEM: dict[str, Any] = {
    "value": SCALAR,
    "reward": SCALAR,
    "obs": {"right": frb.Unbounded((1100,), "uint8"), "left": frb.Unbounded((1100,), "uint8")},
    "done": frb.Binary(),
    "count": frb.Unbounded((), "int32"),
}
"""Leaves that nothing but their names tells apart, in an order that is not that of their names."""


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
    if isinstance(nest, frb.Stacked):
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
    assert one.as_given().plan.structure.paths == nest.flatten(item, is_leaf)[1].paths
    text = frb.to_json(one)
    assert earlier.laid_out(two, text) is two
    assert text.count('"version": 2') == 1
    lain = earlier.laid_out(two, text.replace('"version": 2', '"version": 1'))
    assert lain.plan.structure.paths == nest.flatten(item, is_leaf)[1].paths
    assert (lain is two) == (lain.plan.structure.paths == two.plan.structure.paths)


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
    specs = [frb.BufferSpec(frb.spec_of(x), 4) for x in (example, sorted_one)]
    assert frb.spec_of(example) == frb.spec_of(sorted_one)
    assert hash(frb.spec_of(example)) == hash(frb.spec_of(sorted_one))
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
        "s": frb.Sequence({"y": SCALAR, "x": SCALAR}, 2),
    }
    drawn = [
        rb.rand(frb.specs.freeze(x), rb.key(0), 3)
        for x in (spec, frb.specs.freeze(spec), {**spec, "a": backwards(spec["a"])})
    ]
    assert in_numpy(library, drawn[0]) == in_numpy(library, drawn[1]) == in_numpy(library, drawn[2])


# --- what earlier versions wrote, with leaves in the order given ----------------------------------------------------

PICTURES = {name: frb.Unbounded((1100,), "uint8") for name in ("obs", "next_obs")}
EARLIER = {
    "plain": frb.BufferSpec(ITEM, 6, frb.Prioritized()),
    "lanes": frb.BufferSpec((ITEM, [frb.Sequence({"y": SCALAR, "x": SCALAR}, 2)]), 8, lanes=2),
    "waiting": frb.BufferSpec(ITEM, 6, transforms=frb.n_step(3, 0.5, at="add")),
    "frames": frb.BufferSpec(
        {"z": SCALAR, **PICTURES, "next_a": SCALAR, "a": SCALAR, "done": frb.Binary()}, 6, compact=frb.Compact()
    ),
}


def earlier_state(rb: Any, spec: frb.BufferSpec, patch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A state as an earlier version made it, with the text that it wrote; and the same by this one."""
    drawn = rb.rand(spec.item, rb.key(1), (5, 2) if spec.lanes else 9)
    now = rb.add(rb.init(spec), drawn)
    patch.setattr(module, "VERSION", 1)
    then = rb.add(rb.init(spec.as_given()), drawn)
    assert then.spec.plan.structure.paths != spec.plan.structure.paths
    return then, now


def assert_goes_on(library: Backend, state: Any, now: Any) -> None:
    """That a state is, and goes on, as another."""
    spec, rb = now.spec, library.rb
    assert state.spec == spec
    again = library.rb.rand(spec.item, rb.key(2), (1, 2) if spec.lanes else 2)
    for _ in range(2):
        assert in_numpy(library, rb.items(state)) == in_numpy(library, rb.items(now))
        state, now = rb.add(state, again), rb.add(now, again)


@pytest.mark.parametrize(
    ("variant", "name"), [*(("torch", name) for name in EARLIER), ("jax-host", "frames"), ("jax", "plain")]
)
def test_what_earlier_versions_wrote_is_arranged_anew(
    variant: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EARLIER[name] if variant != "jax-host" else dataclasses.replace(EARLIER[name], storage=frb.Host())
    with backends.make(variant) as library:
        rb = library.rb
        with monkeypatch.context() as patch:
            then, now = earlier_state(rb, spec, patch)
            saved = rb.state_dict(then)
            frb.save(then, tmp_path)
        for mmap in (False, True):
            assert_goes_on(library, frb.load(tmp_path, rb, mmap=mmap), now)
        # What is told of the leaves decides, not in which order the spec at hand has them.
        for target in (spec, dataclasses.replace(spec, item=backwards(spec.item))):
            assert_goes_on(library, rb.load_state_dict(target, saved), now)
        # A save on top of it writes what lies elsewhere now.
        loaded = rb.add(frb.load(tmp_path, rb), rb.rand(spec.item, rb.key(3), (1, 2) if spec.lanes else 1))
        frb.save(loaded, tmp_path, incremental=True)
        assert in_numpy(library, rb.items(frb.load(tmp_path, rb))) == in_numpy(library, rb.items(loaded))


@pytest.mark.parametrize("backend", ["torch", "jax", "jax-host"], indirect=True)
def test_pickles_of_earlier_versions_are_arranged_anew(backend: Backend) -> None:
    storage = frb.Host() if backend.name == "jax-host" else frb.Device()
    then = backend.init(frb.BufferSpec(ITEM, 6, storage=storage))
    expected = backend.add(then, backend.tree(steps(0, 8)))
    then = backend.add(backend.rb.init(then.spec.as_given()), backend.tree(steps(0, 8)))
    arrays, spec = Arrays(then.rows, then.wide, then.tree, then.counters, then.auxiliary), then.spec
    if backend.name == "jax":
        state = object.__new__(type(then))
        fields = {**arrays._asdict(), "spec": pickle.loads(pickle.dumps(spec))}
        state.__setstate__(fields | {"kept": fields.pop("auxiliary")})  # by the names of then
    else:  # by names that pickles have
        module = importlib.import_module(type(then).__module__)
        read = module._unpickled if backend.name == "torch" else module._rebuilt
        more = (None,) if backend.name == "torch" else ()
        state = read(arrays, pickle.loads(pickle.dumps(spec)), None, *more)
    assert_goes_on(backend, state, expected)
    assert_goes_on(backend, pickle.loads(pickle.dumps(expected)), expected)


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
    for version, lain in ((2, spec), (1, spec.as_given())):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "VERSION", version)
            state = rb.add(rb.init(lain), batch)
            told = rb.state_dict(state)
            frb.save(state, tmp_path / str(version))
        for loaded in (frb.load(tmp_path / str(version), rb, known=others), rb.load_state_dict(other, told)):
            items = rb.items(loaded)
            for name, kind in zip(("pair", "data"), others, strict=True):
                assert isinstance(items[name], kind)
                assert library.numpy(items[name].a).tolist() == NUMBERS.tolist()
                assert library.numpy(items[name].b).tolist() == (10 + NUMBERS).tolist()


def test_mapped_files_of_earlier_versions_are_read_into_memory(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rb = library.rb
    spec = frb.BufferSpec(ITEM, 6, storage=frb.Memmap(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(module, "VERSION", 1)
        then = rb.add(rb.init(spec.as_given()), library.tree(steps(0, 8)))
        frb.save(then, tmp_path)
        expected = in_numpy(library, rb.items(then))
        rb.add(then, library.tree(steps(8, 1)))  # after the save: led back when it is loaded
        del then
    loaded = frb.load(tmp_path, rb)
    assert "read into memory" in caplog.text
    assert loaded.spec.storage == frb.Host()
    assert in_numpy(library, rb.items(loaded)) == expected
    with pytest.raises(frb.StorageLayoutError, match=r"the leaves lie in the order \['value'.*an earlier version"):
        rb.init(dataclasses.replace(spec, storage=frb.Memmap(tmp_path, existsok=True)))


# --- containers that are registered ---------------------------------------------------------------------------------


class Refusing:
    """Mixed into classes that take arrays alone."""

    def __post_init__(self) -> None:
        if not all(hasattr(getattr(self, field.name), "dtype") for field in dataclasses.fields(self)[:2]):
            raise TypeError("expected arrays")


@dataclasses.dataclass
class Step(Refusing):
    """With a static field; the class refuses what is no array."""

    obs: Any
    action: Any
    name: str = "cart"


class Pose:
    """Parts without names, and a constructor of its own."""

    def __init__(self, where: Any, *, unit: str) -> None:
        self.at, self.rest, self.unit = where, None, unit

    def tree_flatten(self) -> tuple[tuple[Any, Any], str]:
        return (self.at, self.rest), self.unit

    @classmethod
    def tree_unflatten(cls, unit: str, parts: Any) -> Pose:
        made = cls(parts[0], unit=unit)
        made.rest = parts[1]
        return made


@dataclasses.dataclass(frozen=True)
class Checked(Refusing):
    """Registered nowhere, with a field that its constructor does not take."""

    a: Any
    b: Any
    both: Any = dataclasses.field(init=False, default=None)


def register() -> None:
    """The classes, with both libraries."""
    import jax
    from torch.utils import _pytree as pytree

    jax.tree_util.register_dataclass(Step, data_fields=["obs", "action"], meta_fields=["name"])
    jax.tree_util.register_pytree_node_class(Pose)
    pytree.register_pytree_node(
        Step,
        lambda x: ([x.obs, x.action], x.name),
        lambda parts, name: Step(*parts, name),
        flatten_with_keys_fn=lambda x: (
            [(pytree.GetAttrKey("obs"), x.obs), (pytree.GetAttrKey("action"), x.action)],
            x.name,
        ),
    )
    pytree.register_pytree_node(
        Pose, lambda x: (list(x.tree_flatten()[0]), x.unit), lambda parts, unit: Pose.tree_unflatten(unit, parts)
    )


register()


def structure_of(library: Backend, tree: Any) -> Any:
    """What the library takes a nest for."""
    import jax
    from torch.utils import _pytree as pytree

    if library.library == "jax":
        return jax.tree.structure(tree)
    # To torch None is a leaf, which has to come back too.
    leaves, structure = pytree.tree_flatten(tree)
    return structure, [leaf is None for leaf in leaves]


def leaves_of(library: Backend, tree: Any) -> list[Any]:
    import jax
    from torch.utils import _pytree as pytree

    found = jax.tree.leaves(tree) if library.library == "jax" else pytree.tree_leaves(tree)
    return [library.numpy(leaf).tolist() for leaf in found if leaf is not None]


def assert_same(library: Backend, found: Any, expected: Any) -> None:
    assert structure_of(library, found) == structure_of(library, expected)
    assert leaves_of(library, found) == leaves_of(library, expected)


def mapped(library: Backend, function: Any, tree: Any) -> Any:
    import jax
    from torch.utils import _pytree as pytree

    if library.library == "jax":
        return jax.tree.map(function, tree)
    return pytree.tree_map(lambda leaf: None if leaf is None else function(leaf), tree)


def some_nest(library: Backend, leaf: Any) -> Any:
    """Containers of every kind, with leaves that a function makes."""
    made = {
        "step": Step(leaf(), leaf()),
        "pose": Pose({"z": leaf(), "a": leaf()}, unit="m"),
        "nothing": None,
        "ordered": collections.OrderedDict(b=leaf(), a=leaf()),
        "default": collections.defaultdict(list, b=leaf(), a=[leaf(), None]),
        "pair": (leaf(), {}),
    }
    if library.library == "torch":
        return made | {"queue": collections.deque([leaf(), Step(leaf(), leaf(), "pole")], maxlen=5)}
    flax = pytest.importorskip("flax")
    return made | {"frozen": flax.core.FrozenDict({"b": {"c": leaf()}, "a": leaf()})}


def numbered(library: Backend) -> Any:
    """Makes leaves that are told apart."""
    count = iter(range(1000))
    return lambda: library.array(NUMBERS + 10 * next(count))


def test_what_is_registered_comes_back(backend: Backend, tmp_path: Path) -> None:
    rb = backend.rb
    batch = some_nest(backend, numbered(backend))
    spec = frb.BufferSpec(frb.spec_of(mapped(backend, lambda leaf: leaf[0], batch)), 4)
    assert hash(spec) == hash(frb.BufferSpec(spec.item, 4))
    state = backend.add(backend.init(spec), batch)
    assert_same(backend, rb.items(state), batch)
    handles = backend.array(np.array([2, 0], np.int32))
    assert_same(backend, rb.get(state, handles), mapped(backend, lambda leaf: leaf[np.array([2, 0])], batch))
    after, sample = backend.sample(state, rb.key(0), 3)
    assert structure_of(backend, sample.items) == structure_of(backend, batch)
    state = after if backend.consumes else state
    state = backend.update(state, sample.indices, items=mapped(backend, lambda leaf: leaf * 0, sample.items))
    assert {x for leaf in leaves_of(backend, rb.items(state)) for x in leaf if x == 0} == {0}
    state = backend.add(state, mapped(backend, lambda leaf: leaf[0], batch))  # one item
    assert structure_of(backend, rb.items(state)) == structure_of(backend, batch)
    expected = rb.items(state)
    assert_same(backend, rb.items(pickle.loads(pickle.dumps(state))), expected)
    if backend.name.endswith("core"):
        return
    known = [Step, Pose]
    if backend.library == "torch":
        known.append(collections.deque)
    else:
        known.append(type(batch["frozen"]))
    frb.save(state, tmp_path)
    assert_same(backend, rb.items(frb.load(tmp_path, rb, known=known)), expected)
    assert_same(backend, rb.items(rb.load_state_dict(spec, rb.state_dict(state))), expected)
    (drawn,) = frb.iterate(rb, state, rb.key(1), 2, n=1)
    assert structure_of(backend, drawn.items) == structure_of(backend, batch)


def test_programs_over_states_with_registered_items() -> None:
    import jax
    import jax.numpy as jnp

    import jax_backend as rb

    with backends.make("jax") as library:
        batch = some_nest(library, numbered(library))
    spec = frb.BufferSpec(frb.spec_of(jax.eval_shape(lambda x: jax.tree.map(lambda leaf: leaf[0], x), batch)), 4)
    state = rb.init(spec)

    def step(state: Any, item: Any) -> tuple[Any, Any]:
        state = jax.lax.cond(item["step"].obs > 1.5, rb.add, lambda s, i: s, state, item)
        return state, rb.get(state, jnp.zeros(1, jnp.int32))

    scanned, seen = jax.jit(lambda s, xs: jax.lax.scan(step, s, xs))(state, batch)
    assert int(rb.size(scanned)) == 2
    assert jax.tree.structure(seen) == jax.tree.structure(batch)
    assert rb.items(scanned)["pose"].at["z"].tolist()[:2] == batch["pose"].at["z"].tolist()[2:]
    several = jax.vmap(lambda x: rb.add(state, x))(jax.tree.map(lambda leaf: leaf.reshape(2, 2), batch))
    drawn = jax.vmap(lambda s, k: rb.sample(s, k, 3)[1].items)(several, jax.random.split(rb.key(0), 2))
    assert jax.tree.structure(drawn) == jax.tree.structure(batch)
    assert drawn["step"].obs.shape == (2, 3)


def test_static_fields_are_part_of_the_spec(library: Backend) -> None:
    rb = library.rb
    one, other = Step(library.array(NUMBERS), library.array(NUMBERS)), Step(*[library.array(NUMBERS)] * 2, "pole")
    specs = [frb.BufferSpec(frb.spec_of(x), 8) for x in (one, other)]
    assert specs[0] != specs[1]
    assert specs[0].plan.names == ("action", "obs")
    state = rb.init(specs[0])
    with pytest.raises(ValueError, match=r"'the item': expected Step with the static fields .*cart.*, got .*pole"):
        rb.add(state, other)
    state = rb.add(state, {"action": one.action[None], "obs": one.obs[None]})  # the names decide
    assert rb.items(state).name == "cart"
    with pytest.raises(ValueError, match=r"load_state_dict: the state was of another spec.*pole"):
        rb.load_state_dict(specs[1], rb.state_dict(state))
    with pytest.raises(TypeError, match=r"Step: expected static fields that can be hashed, .*got .*\['cart'\]"):
        frb.spec_of(Step(one.obs, one.action, ["cart"]))
    with pytest.raises(ValueError, match="keys"):
        rb.add(state, {"obs": one.obs[None]})


def test_specs_stand_in_containers_too(library: Backend) -> None:
    """They pass through whatever is registered; classes that refuse what is no array are not called."""
    item = {"step": Step.__new__(Step), "pose": Pose(SCALAR, unit="m"), "checked": Checked.__new__(Checked)}
    vars(item["step"]).update(obs=SCALAR, action=frb.Categorical(3), name="cart")
    vars(item["checked"]).update(a=SCALAR, b=SCALAR, both=None)
    rb, spec = library.rb, frb.BufferSpec(item, 4)
    assert spec.plan.names == ("checked/a", "checked/b", "pose/0", "step/action", "step/obs")
    items = rb.items(rb.init(spec))
    assert (type(items["step"]), items["step"].name) == (Step, "cart")
    assert (items["pose"].unit, items["pose"].rest, type(items["checked"])) == ("m", None, Checked)
    assert items["checked"].both is None
    assert items["step"].obs.shape == (4,)
    assert frb.spec_of(items)["step"].obs == frb.Unbounded((4,))
    drawn = rb.rand(spec.item, rb.key(0), 2)
    assert rb.contains(spec.item, drawn).tolist() == [True, True]
    assert spec.item["step"].obs == SCALAR
    assert "Composite.like(Step, {" in repr(spec)
    again = frb.from_json(frb.to_json(spec), known=[Step, Pose, Checked])
    assert again == spec
    with pytest.raises(ValueError, match=rf"the text names .{__name__}:Pose., which is not among those known"):
        frb.from_json(frb.to_json(spec), known=[Step, Checked])


def test_none_stands_for_nothing(library: Backend) -> None:
    rb = library.rb
    spec = frb.BufferSpec({"x": SCALAR, "extra": None, "pair": (None, SCALAR)}, 4)
    assert spec.plan.names == ("pair/1", "x")
    assert "extra" in spec.item
    batch = {"x": library.array(NUMBERS), "extra": None, "pair": (None, library.array(NUMBERS))}
    state = rb.add(rb.init(spec), batch)
    assert_same(library, rb.items(state), batch)
    with pytest.raises(ValueError, match=r"leaf 'extra': expected the keys \[\], got"):
        rb.add(state, batch | {"extra": batch["x"]})
    with pytest.raises((TypeError, ValueError), match="leaf 'x'"):
        rb.add(state, batch | {"x": None})
    with pytest.raises(TypeError, match="expected a spec such as"):
        frb.BufferSpec(None, 4)
    with pytest.raises(TypeError, match="expected a spec such as"):
        frb.BufferSpec(frb.Uniform(), 4)


def test_containers_go_to_the_other_library_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with backends.make("torch") as torch, backends.make("jax") as jax:
        batch = some_nest(jax, numbered(jax))
        spec = frb.BufferSpec(frb.spec_of(mapped(jax, lambda leaf: leaf[0], batch)), 4)
        state = jax.rb.add(jax.rb.init(spec), batch)
        there = torch.rb.from_dlpack(state, copy=True)
        found = torch.rb.items(there)
        assert (type(found["frozen"]), type(found["step"]), found["pose"].unit) == (type(batch["frozen"]), Step, "m")
        assert torch.numpy(found["frozen"]["b"]["c"]).tolist() == leaves_of(jax, batch["frozen"]["b"]["c"])[0]
        assert_same(jax, jax.rb.items(jax.rb.from_dlpack(there, copy=True)), batch)
        # Where a library is not in use, dicts stand for what it has registered; the one imported first has Step.
        monkeypatch.delitem(containers.LIBRARIES, "jax")
        monkeypatch.delitem(containers.LIBRARIES, "torch")
        found = torch.rb.items(there)
        assert type(found["frozen"]) is type(found["frozen"]["b"]) is type(found["step"]) is dict
        assert torch.numpy(found["frozen"]["b"]["c"]).tolist() == leaves_of(jax, batch["frozen"]["b"]["c"])[0]
        assert type(found["ordered"]) is collections.OrderedDict


def test_classes_of_other_libraries() -> None:
    """What flax and chex register with JAX."""
    chex, flax = pytest.importorskip("chex"), pytest.importorskip("flax")
    import jax

    import jax_backend as rb

    @flax.struct.dataclass
    class Flax:
        x: Any
        tag: str = flax.struct.field(pytree_node=False, default="t")

    @chex.dataclass
    class Chex:
        x: Any

        def __post_init__(self) -> None:
            assert hasattr(self.x, "shape"), "an array"

    batch = {"flax": Flax(NUMBERS, "u"), "chex": Chex(x=NUMBERS)}
    spec = frb.BufferSpec(frb.spec_of(jax.tree.map(lambda leaf: leaf[0], batch)), 4)
    assert spec.plan.names == ("chex/x", "flax/x")
    items = rb.items(rb.add(rb.init(spec), batch))
    assert jax.tree.structure(items) == jax.tree.structure(batch)
    assert (items["flax"].tag, items["chex"].x.tolist()) == ("u", NUMBERS.tolist())


def nests(library: str) -> st.SearchStrategy[Any]:
    """Outlines: True for a leaf, and containers of every kind."""

    def wider(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        named = st.dictionaries(st.sampled_from("zbaé"), part, min_size=1, max_size=3)
        some = [
            named,
            named.map(collections.OrderedDict),
            named.map(lambda parts: collections.defaultdict(list, parts)),
            st.lists(part, max_size=2),
            st.lists(part, max_size=2).map(tuple),
            st.builds(grammar.Pair, part, part),
            st.builds(Pose, part, unit=st.sampled_from(["m", "ft"])),
        ]
        return st.one_of(some + ([st.lists(part, max_size=2).map(collections.deque)] if library == "torch" else []))

    return st.recursive(st.sampled_from([True, True, True, None]), wider, max_leaves=6)


@pytest.mark.parametrize("name", ["torch", "jax-host"])
@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(data=st.data())
def test_any_nest_comes_back(name: str, data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    library_name = name.split("-")[0]
    outline = {"x": True, "nest": data.draw(nests(library_name))}
    with backends.make(name) as library:
        leaf = numbered(library)
        batch = mapped(library, lambda _: leaf(), outline)
        spec = frb.BufferSpec(frb.spec_of(mapped(library, lambda x: x[0], batch)), 4)
        state = library.add(library.init(spec), batch)
        assert_same(library, library.rb.items(state), batch)
        sample = library.sample(state, library.rb.key(0), 2)[1]
        assert structure_of(library, sample.items) == structure_of(library, batch)
        state = library.update(state, sample.indices, items=sample.items)
        assert_same(library, library.rb.items(pickle.loads(pickle.dumps(state))), batch)
        path = tmp_path_factory.mktemp("saved")
        frb.save(state, path)
        known = [Pose, grammar.Pair, collections.deque]
        assert_same(library, library.rb.items(frb.load(path, library.rb, known=known)), batch)
