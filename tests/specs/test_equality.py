"""Equality and hashes of specs, and how they and their numbers are shown."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import functional_rb as frb
from tests.specs.spec_examples import NAMESPACE, U, many
from tests.specs.spec_model import elements
from tests.support.grammar import ALL, Data, Pair, shapes


@many
@given(ALL.with_axes() | ALL.nests_of() | ALL.stacked())
def test_specs_are_values(spec: Any) -> None:
    copies = [copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))]
    if isinstance(spec, list | tuple | Data):
        spec = frb.Composite(x=spec)
        copies = [frb.Composite(x=one) for one in copies]
    for other in (*copies, eval(repr(spec), NAMESPACE)):
        assert other == spec
        assert hash(other) == hash(spec)
        assert repr(other) == repr(spec)
    if dataclasses.is_dataclass(spec):
        assert dataclasses.replace(spec) == spec
    assert len(str(spec)) <= len(repr(spec))


@many
@given(st.data())
def test_specs_are_equal_where_all_elements_are(data: st.DataObject) -> None:
    axes = data.draw(shapes(1, 2, 1))
    a, b = (data.draw(ALL.specs(axes)) for _ in range(2))
    assert (a == b) == (type(a) is type(b) and elements(a).tolist() == elements(b).tolist())
    if a == b:
        assert hash(a) == hash(b)


@st.composite
def forms(draw: Any, table: np.ndarray, precise: bool) -> Any:
    """The same numbers as anything that a user may have them in."""
    import jax.numpy as jnp
    import torch

    axes = table.shape
    while table.ndim and table.size and (table == table[:1]).all() and draw(st.booleans()):
        table = table[:1] if draw(st.booleans()) else table[0]
    if not table.ndim and draw(st.booleans()):
        table = np.broadcast_to(table, axes)
    kinds = ["list", "numpy", "tuple"] if precise else ["list", "tuple", "numpy", "float32", "torch", "grad", "jax"]
    kind = draw(st.sampled_from(kinds)) if table.size else "numpy"
    if kind == "list":
        return table.tolist()
    if kind == "tuple":
        return tuple(table.tolist()) if table.ndim else table[()]
    if kind in ("torch", "grad"):
        return torch.tensor(table.tolist(), requires_grad=kind == "grad" and table.dtype.kind == "f")
    if kind == "jax":
        return jnp.asarray(table, "float32" if table.dtype.kind == "f" else "int32")
    return table.astype("float32") if kind == "float32" and table.dtype.kind == "f" else table


@many
@given(st.data())
def test_bounds_are_equal_whatever_they_come_in(data: st.DataObject) -> None:
    axes = data.draw(shapes(0, 2))
    kind = data.draw(st.sampled_from(["float32", "float16", "int32", "uint8", "bfloat16"]))
    values = [0.1, 1 / 3, -0.0, 0.0, 2.5] if "float" in kind else [0, 3, 100]
    table = np.array([data.draw(st.sampled_from(values)) for _ in range(math.prod(axes))]).reshape(axes)
    wide = "int" in kind
    specs = [frb.Bounded(data.draw(forms(table, False)), 200, axes, kind) for _ in range(3)]
    specs.append(frb.Bounded(table.astype(float) if not wide else table.astype("int64"), np.float16(200), axes, kind))
    assert set(specs) == {specs[0]}
    assert {repr(spec) for spec in specs} == {repr(specs[0])}
    if table.size:
        place = data.draw(st.integers(0, table.size - 1))
        table.flat[place] += 1
        assert frb.Bounded(table, 200, axes, kind) != specs[0]


@many
@given(st.data())
def test_choices_are_equal_whatever_they_come_in(data: st.DataObject) -> None:
    axes = data.draw(shapes(1, 2, 1))
    nvec = np.array([data.draw(st.integers(1, 3)) for _ in range(math.prod(axes))]).reshape(axes)
    start = np.array([data.draw(st.integers(0, 1)) for _ in range(math.prod(axes))]).reshape(axes)
    specs = [
        frb.specs.MultiCategorical(data.draw(forms(nvec, False)), None, axes, "int16", data.draw(forms(start, False)))
        for _ in range(3)
    ]
    assert set(specs) == {specs[0]}
    assert frb.specs.MultiCategorical(nvec + 1, None, axes, "int16", start) not in specs
    assert frb.specs.MultiCategorical(nvec, None, axes, "int16", start + 1) not in specs
    assert frb.specs.MultiCategorical(nvec, None, axes, "int32", start) not in specs
    mask = np.array([data.draw(st.booleans()) for _ in range(math.prod(axes) * 3)]).reshape(*axes, 3)
    mask[..., 1] = True
    masked = [frb.Categorical(3, data.draw(forms(mask, True)), axes) for _ in range(3)]
    assert set(masked) == {masked[0]}
    assert (frb.Categorical(3, None, axes) == masked[0]) == bool(mask.all())
    mask[..., 0] ^= True
    assert frb.Categorical(3, mask, axes) != masked[0]


def test_masks_of_arrays_of_either_library() -> None:
    import jax.numpy as jnp
    import torch

    for array in (jnp.asarray, torch.tensor, np.asarray, tuple):
        assert frb.specs.OneHot(3, array([True, False, True])) == frb.specs.OneHot(3, [True, False, True])
        assert frb.specs.MultiOneHot(array([1, 2]), array([True, True, True])) == frb.specs.MultiOneHot((1, 2))
        assert frb.specs.MultiCategorical(array([1, 2])).nvec == (1, 2)


def test_bounds_that_broadcast() -> None:
    assert frb.Bounded([[0], [1]], 2, (2, 2)) == frb.Bounded([[0, 0], [1, 1]], 2, (2, 2))
    assert frb.Bounded(np.broadcast_to([0.0, 1.0], (3, 1, 4, 2)).copy(), 2, (3, 1, 4, 2)).low == (0.0, 1.0)
    assert frb.Bounded([0, 1], 5, (2,)).expand(10**9, 2).low == (0.0, 1.0)
    assert frb.Bounded(-1, 1, (0,)) == frb.Bounded(np.zeros((0,)), [], (0,))
    assert frb.specs.MultiCategorical(3, shape=(2, 0)) == frb.specs.MultiCategorical(np.zeros((2, 0), int))


def test_numbers_beyond_int64() -> None:
    top = 2**64 - 1
    for high in ([top, 3], np.array([top, 3], "uint64")):
        assert frb.Bounded([0, 1], high, (2,), "uint64").high == (top, 3)
    assert frb.specs.MultiCategorical([3], dtype="uint64", start=top - 2).domain.high == top
    ends = frb.specs.MultiCategorical([3, 3], dtype="uint64", start=[0, top - 2])
    assert (ends.domain.high, ends[1]) == ((2, top), frb.Categorical(3, dtype="uint64", start=top - 2))
    assert ends.reshape(1, 2)[0] == ends
    with pytest.raises(ValueError, match=f"expected whole numbers from 0 to {top}, as uint64 has them, got {top + 1}"):
        frb.Bounded(0, top + 1, dtype="uint64")
    assert frb.Bounded(0, 2**70, dtype="float64").high == 2.0**70


def test_bounds_beyond_a_dtype_are_infinite() -> None:
    for kind in ("float16", "bfloat16", "float32"):
        assert frb.Bounded(-1e39, 1e39, dtype=kind) == frb.Bounded(-math.inf, math.inf, dtype=kind)


def test_lists_inside_of_specs_do_not_hinder_hashes() -> None:
    for make in (
        frb.Composite,
        lambda a: frb.specs.Sequence(a, 2),
        lambda a: frb.specs.Graph(a, a, 2),
        lambda a: frb.specs.OneOf([a]),
    ):
        assert len({make(a=[U()]), make(a=[U()]), make(a=[U((2,))])}) == 2


def test_short_forms() -> None:
    short = {
        frb.Unbounded(): "Unbounded()",
        frb.Unbounded((3,), "int8"): "Unbounded((3,), 'int8')",
        frb.Binary((), "int8"): "Binary(dtype='int8')",
        frb.Bounded(np.float32(0.1), 1, (2,)): "Bounded(0.1, 1.0, (2,))",
        frb.Bounded(np.array([[0.1, 0.2]] * 3), np.inf, (3, 2)): "Bounded((0.1, 0.2), inf, (3, 2))",
        frb.Categorical(4, start=2): "Categorical(4, start=2)",
        frb.specs.OneHot(4, shape=(2, 4)): "OneHot(4, shape=(2, 4))",
        frb.specs.MultiCategorical([3, 5]): "MultiCategorical((3, 5))",
        frb.specs.MultiCategorical([3, 3]): "MultiCategorical(3, shape=(2,))",
        frb.specs.MultiOneHot([3, 5]): "MultiOneHot((3, 5))",
        frb.specs.Text(8): "Text(8)",
        frb.specs.Text(8, 0, "ba"): "Text(8, 0, 'ab')",
        frb.specs.NonTensor(): "NonTensor()",
        frb.specs.Sequence(frb.Binary(), 3): "Sequence(Binary(), 3)",
        frb.specs.Graph(frb.Binary(), None, 3): "Graph(Binary(), None, 3)",
        frb.specs.OneOf([frb.Binary()]): "OneOf((Binary(),))",
        frb.specs.Stacked([frb.Binary()]): "Stacked((Binary(),))",
        frb.Composite(a=frb.Binary((2,)), batch_shape=(2,)): "Composite({'a': Binary((2,))}, batch_shape=(2,))",
        frb.Composite(p=Pair(frb.Binary(), [])): "Composite({'p': Pair(first=Binary(), second=[])})",
    }
    for spec, text in short.items():
        assert repr(spec) == str(spec) == text
        assert eval(text, NAMESPACE) == spec


LONG = """\
Composite({
    'agents': Stacked(
        (
            Composite({
                'camera': Composite({'rgb': Bounded(0, 255, (84, 84, 3), 'uint8'), 'depth': Unbounded((84, 84))}),
                'goal': Categorical(4),
            }),
            Composite({'goal': Categorical(4)}),
        ),
    ),
    'done': Binary(),
})"""


def test_long_ones_have_several_lines() -> None:
    camera = frb.Composite(rgb=frb.Bounded(0, 255, (84, 84, 3), "uint8"), depth=frb.Unbounded((84, 84)))
    goal = frb.Categorical(4)
    spec = frb.Composite(
        agents=frb.specs.Stacked([frb.Composite(camera=camera, goal=goal), frb.Composite(goal=goal)]), done=frb.Binary()
    )
    assert repr(spec) == LONG
    assert eval(LONG, NAMESPACE) == spec


def test_long_tables_are_short_in_str() -> None:
    bounds = np.arange(84 * 84 * 3).reshape(84, 84, 3) / 7
    spec = frb.Composite(a=frb.Bounded(bounds, 1e6, (84, 84, 3)))
    assert str(spec) == "Composite({'a': Bounded(<84x84x3 numbers from 0.0 to 3023.8572>, 1000000.0, (84, 84, 3))})"
    assert eval(repr(spec), NAMESPACE) == spec
    masked = frb.specs.OneHot(50, np.arange(50) < 20)
    assert f"{masked}" == "OneHot(50, <50 truth values, 20 of them true>)"
