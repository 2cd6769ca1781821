"""Composites: their parts, keys that some members lack, and buffers of every kind of spec."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

import functional_rb as frb
from functional_rb.base import nest
from tests.specs.spec_examples import AGENTS, NAMESPACE, U, leaves_of, many
from tests.support.backends import Backend
from tests.support.grammar import Box, Data, Pair


def test_parts_named_like_attributes() -> None:
    names = ("shape", "dtype", "parts", "items", "keys", "axes", "batch_shape", "self", "_parts", "", "a b", "expand")
    spec = frb.Composite({name: U((i,)) for i, name in enumerate(names)})
    assert list(spec) == list(names)
    for i, name in enumerate(names):
        assert spec[name] == spec[name,] == spec.parts[name] == U((i,))
        assert name in spec
        assert frb.Composite(inner=spec)["inner", name] == U((i,))
    assert dict(spec) == dict(spec.items()) == spec.parts
    assert spec.shape["shape"] == (0,)
    assert spec.expand(2)["expand"].shape == (2, 11)
    assert pickle.loads(pickle.dumps(spec)) == eval(repr(spec), NAMESPACE) == spec
    assert frb.BufferSpec(spec, 2).plan.names == tuple(sorted(names))


def test_composites_stay_what_they_are() -> None:
    spec = frb.Composite(a=U())
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to 'a'"):
        spec.a = U((2,))
    for name in ("a", "_parts"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete '{name}'"):
            delattr(spec, name)
    assert spec == frb.Composite(a=U())


def test_what_is_in_a_composite() -> None:
    spec = frb.Composite(a=frb.Composite(b=U((3, 2)), batch_shape=(3,)), batch_shape=(3,))
    assert "a" in spec
    assert ("a", "b") in spec
    assert ("a", "b", 0) in spec
    for key in ("b", ("a", "c"), ("a", "b", 7), 0, (0,), (), None, slice(None), 1.5, ("a", "b", "c")):
        assert key not in spec
    assert spec["a", "b", 1] == U((2,))
    assert spec["a", 1] == frb.Composite(b=U((2,)))
    nested = frb.Composite(t=(U((3,)), {"c": U((3, 1))}), batch_shape=(3,))
    assert nested["t", 1, "c"] == U((3, 1))
    assert nested[0]["t"] == (U(), frb.Composite(c=U((1,))))


def test_dicts_in_dataclasses_are_parts_too() -> None:
    spec = frb.Composite(d=Data({"x": U((2,))}, [{"y": U((2,))}]), batch_shape=(2,))
    assert spec.d.x == frb.Composite(x=U((2,)), batch_shape=(2,))
    assert spec.shape == {"d": Data({"x": (2,)}, [{"y": (2,)}])}
    assert spec[0].d == Data(frb.Composite(x=U()), [frb.Composite(y=U())])
    assert hash(spec) == hash(copy.deepcopy(spec))


def test_containers_of_torch_survive() -> None:
    spec = frb.Composite.like(Box, {"a": U((3, 2))}, (3,))
    for made in (spec[0], spec.expand(2, 3), spec.reshape(1, 3), spec.consolidate(), copy.deepcopy(spec)):
        assert made._container is Box
    assert eval(repr(spec), NAMESPACE) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec != frb.Composite(a=U((3, 2)), batch_shape=(3,))


# --- keys that some members lack ------------------------------------------------------------------------------------


def skeletons() -> st.SearchStrategy[Any]:
    """Nests of names alone: a dict is a composite, a list members side by side, 0 a leaf."""
    return st.recursive(
        st.just(0),
        lambda inner: (
            st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
            | st.lists(inner, min_size=1, max_size=2)
            | st.tuples(st.sampled_from(["sequence", "tuple", "one of"]), inner)
        ),
        max_leaves=8,
    )


def spec_from(skeleton: Any) -> Any:
    if skeleton == 0 and not isinstance(skeleton, dict | list | tuple):
        return frb.Categorical(3)
    if isinstance(skeleton, dict):
        return frb.Composite({name: spec_from(part) for name, part in skeleton.items()})
    if isinstance(skeleton, list):
        parts = [spec_from(part) for part in skeleton]
        parts = [frb.Composite(t=part) if isinstance(part, tuple) else part for part in parts]
        most = max(len(part.axes) for part in parts)
        for i, part in enumerate(parts):
            for _ in range(most - len(part.axes)):
                parts[i] = parts[i].unsqueeze(0)
        return frb.specs.Stacked(parts)
    kind, inner = skeleton
    made = spec_from(inner)
    return {"sequence": frb.specs.Sequence(made, 2), "tuple": (made,), "one of": frb.specs.OneOf([made])}[kind]


def walk(spec: Any) -> list[Any]:
    """All specs there are in one, by hand."""
    if isinstance(spec, tuple):
        return [found for part in spec for found in walk(part)]
    below = {
        frb.Composite: lambda: tuple(spec.values()),
        frb.specs.Stacked: lambda: spec.members,
        frb.specs.Sequence: lambda: (spec.element,),
        frb.specs.OneOf: lambda: spec.options,
    }.get(type(spec), tuple)()
    return [spec, *walk(below)]


def lacks(parts: list[Any]) -> bool:
    """Whether a list of specs side by side has composites of which one has a name that another lacks."""
    while parts and all(isinstance(part, frb.specs.Stacked) for part in parts):
        parts = list(itertools.chain.from_iterable(part.members for part in parts))
    if not all(isinstance(part, frb.Composite) for part in parts):
        return False
    names = [sorted(part) for part in parts]
    if names.count(names[0]) < len(names):
        return True
    return any(lacks([part[name] for part in parts]) for name in names[0])


@many
@given(skeletons())
def test_keys_of_members(skeleton: Any) -> None:
    spec = frb.Composite(nest=spec_from(skeleton))
    found = [one for one in walk(spec) if isinstance(one, frb.specs.Stacked)]
    whole = spec.consolidate()
    assert (whole != spec) == any(lacks(list(one.members)) for one in found)
    assert not any(lacks(list(one.members)) for one in walk(whole) if isinstance(one, frb.specs.Stacked))
    assert whole.consolidate() == whole
    assert sum(isinstance(one, frb.specs.Stacked) for one in walk(whole)) >= len(found)
    compare(spec, whole)


def compare(before: Any, after: Any) -> None:
    """What was there is there as it was, and what is new has no elements."""
    if isinstance(before, frb.Composite):
        assert before.batch_shape == after.batch_shape
        assert set(before) <= set(after)
        for name, part in after.items():
            if name in before:
                compare(before[name], part)
            else:
                batch = after.batch_shape
                assert all(0 in leaf.shape and leaf.shape[: len(batch)] == batch for leaf in leaves_of(part))
    elif isinstance(before, frb.specs.Stacked):
        assert (before.axis, len(before.members)) == (after.axis, len(after.members))
        for one, other in zip(before.members, after.members, strict=True):
            compare(one, other)
    elif isinstance(before, tuple):
        for one, other in zip(before, after, strict=True):
            compare(one, other)
    elif isinstance(before, frb.specs.Sequence):
        assert dataclasses.replace(after, element=before.element) == before
        compare(before.element, after.element)
    elif isinstance(before, frb.specs.OneOf):
        compare(before.options, after.options)
    else:
        assert before == after


def test_consolidate_by_example() -> None:
    agents = frb.specs.Stacked(
        [
            frb.Composite(obs=U((4, 3)), info=frb.Composite(a=U((4,)), batch_shape=(4,)), batch_shape=(4,)),
            frb.Composite(
                text=frb.specs.Text(5, shape=(4, 5)),
                talk=frb.specs.Sequence(frb.Unbounded((2,), "int8"), 3, batch_shape=(4,)),
                team=frb.specs.Stacked([U((4, 2)), frb.Binary((4, 3))], 2),
                note=frb.specs.NonTensor((4,)),
                info=frb.Composite(
                    b=frb.Binary((4, 7, 7)),
                    duo=frb.specs.Stacked([U((4, 7)), U((4, 7), "int8")], 2),
                    batch_shape=(4, 7),
                ),
                batch_shape=(4,),
            ),
        ],
        1,
    )
    whole = agents.consolidate()
    first, second = whole.members
    assert list(first) == list(second) == ["obs", "info", "text", "talk", "team", "note"]
    assert first == frb.Composite(
        obs=U((4, 3)),
        info=frb.Composite(
            a=U((4,)),
            b=frb.specs.ArraySpec((4, 0), "bool"),
            duo=frb.specs.Stacked([frb.specs.ArraySpec((4, 0)), frb.specs.ArraySpec((4, 0), "int8")], 1),
            batch_shape=(4,),
        ),
        text=frb.specs.ArraySpec((4, 0), "int32"),
        talk=frb.Composite(
            elements=frb.specs.ArraySpec((4, 0, 0), "int8"),
            length=frb.specs.ArraySpec((4, 0), "int32"),
            batch_shape=(4,),
        ),
        team=frb.specs.Stacked([frb.specs.ArraySpec((4, 0)), frb.specs.ArraySpec((4, 0), "bool")], 2),
        note=frb.specs.NonTensor((4, 0)),
        batch_shape=(4,),
    )
    assert second.obs == frb.specs.ArraySpec((4, 0))
    assert second.info.a == frb.specs.ArraySpec((4, 7, 0))
    assert second.talk == agents[:, 1].talk
    assert frb.Composite(agents=agents, t=(agents,)).consolidate()["t"] == (whole,)


# --- in buffers -----------------------------------------------------------------------------------------------------


ITEM: Any = {
    "leaves": {
        "c": frb.Categorical(5, start=2),
        "o": frb.specs.OneHot(3, [True, False, True], (2, 3)),
        "mc": frb.specs.MultiCategorical([[2, 3], [4, 5]], dtype="uint8"),
        "mo": frb.specs.MultiOneHot([2, 3], dtype="float32"),
        "t": (frb.specs.Text(4), [frb.specs.Text(3, shape=(2, 3))]),
        "b": frb.Bounded([0, 1], 2, (2,), "bfloat16"),
    },
    "varying": {
        "s": frb.specs.Sequence(frb.Composite(x=U((2,)), y=frb.Binary()), 3),
        "g": frb.specs.Graph(U((2,)), frb.Categorical(4, dtype="uint8"), 3, 2),
        "one": frb.specs.OneOf([U((2,), "int8"), frb.specs.Sequence(frb.specs.Text(2), 2)], (2,)),
    },
    "agents": {
        "agents": AGENTS.consolidate(),
        "raw": AGENTS.expand(2, 2),
        "pair": Pair(U(), Data(U(), AGENTS)),
    },
    "batched": frb.Composite(a=U((2, 3)), inner={"b": frb.specs.OneHot(3, shape=(2, 3))}, batch_shape=(2,)),
    "sequence": frb.specs.Sequence(AGENTS, 2),
}


@pytest.mark.parametrize("item", [ITEM, AGENTS], ids=["nest", "stacked"])
def test_buffers_hold_every_kind(library: Backend, item: Any) -> None:
    spec = frb.BufferSpec(item, 4)
    rng = np.random.default_rng(0)
    given_leaves = [rng.integers(0, 2, (4, *leaf.shape)) for leaf in spec.plan.leaves]
    types = [ml_dtypes.bfloat16 if leaf.dtype == "bfloat16" else leaf.dtype for leaf in spec.plan.leaves]
    arrays = [array.astype(kind) for array, kind in zip(given_leaves, types, strict=True)]
    batch = nest.unflatten(spec.plan.structure, [library.array(x) for x in arrays], lambda _, parts, __: parts)
    state = library.add(library.init(spec), batch)
    state, sample = library.sample(state, library.rb.key(0), 3)
    slots = np.asarray(library.numpy(sample.indices))
    for got, array in zip(nest.flatten_as(spec.plan.structure, sample.items), arrays, strict=True):
        back = np.asarray(library.numpy(got))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array[slots])
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_buffers_tell_items_apart_that_are_stored_alike() -> None:
    """What an item is decides what validating adds refuses."""
    sequence = frb.specs.Sequence(U((2,)), 3)
    assert frb.BufferSpec(sequence, 4) == frb.BufferSpec(copy.deepcopy(sequence), 4)
    assert frb.BufferSpec(sequence, 4) != frb.BufferSpec(dict(sequence.parts), 4)
