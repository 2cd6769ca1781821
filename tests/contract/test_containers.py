"""What items are put in comes back, whatever it is: containers of every kind, on both backends."""

from __future__ import annotations

import collections
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends, grammar
from tests.support.backends import Backend

NUMBERS = np.arange(4, dtype=np.float32)
SCALAR = frb.Unbounded(())


def test_updates_take_the_items_of_a_sample_with_empty_containers(backend: Backend) -> None:
    spec = frb.BufferSpec({"x": SCALAR, "nothing": {}, "pair": (), "list": [SCALAR, {}, {"deep": []}]}, 4)
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


class Frozen:
    """A mapping that JAX knows and torch does not, as flax's FrozenDict."""

    def __init__(self, parts: Any) -> None:
        self.parts = dict(parts)

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]


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
    jax.tree_util.register_pytree_with_keys(
        Frozen,
        lambda x: ([(jax.tree_util.DictKey(name), x[name]) for name in sorted(x.parts)], (*sorted(x.parts),)),
        lambda names, parts: Frozen(zip(names, parts, strict=True)),
    )
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
        "named": grammar.Pair(leaf(), [leaf()]),
    }
    if library.library == "torch":
        return made | {"queue": collections.deque([leaf(), Step(leaf(), leaf(), "pole")], maxlen=5)}
    return made | {"frozen": Frozen({"b": {"c": leaf()}, "a": leaf()})}


def numbered(library: Backend) -> Any:
    """Makes leaves that are told apart."""
    count = iter(range(1000))
    return lambda: library.array(NUMBERS + 10 * next(count))


def test_what_is_registered_comes_back(backend: Backend, tmp_path: Path) -> None:
    rb = backend.rb
    batch = some_nest(backend, numbered(backend))
    spec = frb.BufferSpec(frb.specs.spec_of(mapped(backend, lambda leaf: leaf[0], batch)), 4)
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
    known = [Step, Pose, grammar.Pair, collections.deque if backend.library == "torch" else Frozen]
    frb.save(state, tmp_path)
    assert_same(backend, rb.items(frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(known=known))), expected)
    assert_same(backend, rb.items(rb.load_state_dict(spec, rb.state_dict(state))), expected)
    (drawn,) = frb.iterate(rb, state, rb.key(1), 2, n=1)
    assert structure_of(backend, drawn.items) == structure_of(backend, batch)


def test_programs_over_states_with_registered_items() -> None:
    import jax
    import jax.numpy as jnp

    import jax_backend as rb

    with backends.make("jax") as library:
        batch = some_nest(library, numbered(library))
    spec = frb.BufferSpec(frb.specs.spec_of(jax.eval_shape(lambda x: jax.tree.map(lambda leaf: leaf[0], x), batch)), 4)
    state = rb.init(spec)

    def step(state: Any, item: Any) -> tuple[Any, Any]:
        state = jax.lax.cond(item["step"].obs > 1.5, rb.add, lambda s, i: s, state, item)
        return state, rb.get(state, jnp.zeros(1, jnp.int32))

    scanned, seen = jax.jit(lambda s, xs: jax.lax.scan(step, s, xs))(state, batch)
    assert int(rb.size(scanned)) == 2
    assert jax.tree.structure(seen) == jax.tree.structure(batch)
    assert rb.items(scanned)["pose"].at["z"].tolist()[:2] == batch["pose"].at["z"].tolist()[2:]

    # The oldest JAX's vmap fills containers with what is no array, which Step refuses.
    batch = {name: part for name, part in batch.items() if name != "step"}
    state = rb.init(frb.BufferSpec({name: part for name, part in spec.item.items() if name != "step"}, 4))
    several = jax.vmap(lambda x: rb.add(state, x))(jax.tree.map(lambda leaf: leaf.reshape(2, 2), batch))
    drawn = jax.vmap(lambda s, k: rb.sample(s, k, 3)[1].items)(several, jax.random.split(rb.key(0), 2))
    assert jax.tree.structure(drawn) == jax.tree.structure(batch)
    assert drawn["pose"].at["z"].shape == (2, 3)


def test_static_fields_are_part_of_the_spec(library: Backend) -> None:
    rb = library.rb
    one, other = Step(library.array(NUMBERS), library.array(NUMBERS)), Step(*[library.array(NUMBERS)] * 2, "pole")
    specs = [frb.BufferSpec(frb.specs.spec_of(x), 8) for x in (one, other)]
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
        frb.specs.spec_of(Step(one.obs, one.action, ["cart"]))
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
    assert frb.specs.spec_of(items)["step"].obs == frb.Unbounded((4,))
    drawn = rb.rand(spec.item, rb.key(0), 2)
    assert rb.contains(spec.item, drawn).tolist() == [True, True]
    assert spec.item["step"].obs == SCALAR
    assert "Composite.like(Step, {" in repr(spec)
    again = frb.convert.from_json(frb.convert.to_json(spec), known=[Step, Pose, Checked])
    assert again == spec
    with pytest.raises(ValueError, match=rf"the text names .{__name__}:Pose., which is not among those known"):
        frb.convert.from_json(frb.convert.to_json(spec), known=[Step, Checked])


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


def test_containers_go_to_the_other_library_and_back() -> None:
    with backends.make("torch") as torch, backends.make("jax") as jax:
        batch = some_nest(jax, numbered(jax))
        spec = frb.BufferSpec(frb.specs.spec_of(mapped(jax, lambda leaf: leaf[0], batch)), 4)
        state = jax.rb.add(jax.rb.init(spec), batch)
        there = torch.rb.from_dlpack(state, copy=True)
        found = torch.rb.items(there)
        assert (type(found["frozen"]), type(found["step"]), found["pose"].unit) == (Frozen, Step, "m")
        assert torch.numpy(found["frozen"]["b"]["c"]).tolist() == leaves_of(jax, batch["frozen"]["b"]["c"])[0]
        assert_same(jax, jax.rb.items(jax.rb.from_dlpack(there, copy=True)), batch)


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
    spec = frb.BufferSpec(frb.specs.spec_of(jax.tree.map(lambda leaf: leaf[0], batch)), 4)
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
        spec = frb.BufferSpec(frb.specs.spec_of(mapped(library, lambda x: x[0], batch)), 4)
        state = library.add(library.init(spec), batch)
        assert_same(library, library.rb.items(state), batch)
        sample = library.sample(state, library.rb.key(0), 2)[1]
        assert structure_of(library, sample.items) == structure_of(library, batch)
        state = library.update(state, sample.indices, items=sample.items)
        assert_same(library, library.rb.items(pickle.loads(pickle.dumps(state))), batch)
        path = tmp_path_factory.mktemp("saved")
        frb.save(state, path)
        known = [Pose, grammar.Pair, collections.deque]
        assert_same(
            library, library.rb.items(frb.load(path, library.rb, frb.checkpoint.LoadOptions(known=known))), batch
        )
