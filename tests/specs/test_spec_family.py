"""The static side of specs: shapes, indexing, equality, how they are shown, what constructors refuse, keys of members.

Changes of shape are compared with what NumPy makes of a table that has an entry for each element.
"""

from __future__ import annotations

import copy
import dataclasses
import decimal
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import functional_rb as frb
from functional_rb.base import dtypes, nest
from functional_rb.specs.composite import members
from tests.support import grammar
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.grammar import ALL, Box, Data, Pair, shapes
from tests.support.spec_model import elements

NAMESPACE = vars(frb) | {"inf": math.inf, "Pair": Pair, "Data": Data, "Box": Box}
many = settings(max_examples=effort(50, 200))


# --- shapes ---------------------------------------------------------------------------------------------------------


def outcome(function: Callable[[], Any], errors: tuple[type[Exception], ...]) -> Any:
    """A result, or the kind of error."""
    try:
        return function()
    except errors as error:
        return next(kind for kind in errors if isinstance(error, kind))


def same(spec: Any, change: Callable[[Any], Any], model: Callable[[np.ndarray], Any], error: type[Exception]) -> None:
    """A spec changes as the table of its elements does, or both are refused."""
    wanted = outcome(lambda: model(elements(spec)), (error,))
    got = outcome(lambda: change(spec), (error, ValueError))
    if got is ValueError and wanted is not error:  # the only reason to refuse what NumPy can do
        with pytest.raises(ValueError, match="with a mask, the last axis"):
            change(spec)
        masked = [leaf for leaf in leaves_of(spec) if isinstance(leaf, frb.MultiCategorical) and leaf.mask is not None]
        assert masked
        assert not isinstance(spec, frb.MultiCategorical) or rows_differ(wanted)
        return
    if wanted is error or got is error:
        assert wanted is got, (spec, wanted, got)
        return
    table = wanted if isinstance(wanted, np.ndarray) else single(wanted)
    assert got.axes == table.shape
    assert elements(got).tolist() == table.tolist()
    for leaf in leaves_of(got):
        assert type(leaf.shape) is tuple
        assert all(type(n) is int for n in leaf.shape)
    assert hash(got) == hash(copy.deepcopy(got))


def single(entry: Any) -> np.ndarray:
    table = np.empty((), object)
    table[()] = entry
    return table


def rows_differ(table: np.ndarray) -> bool:
    """Whether rows of a table of choices have different numbers of them."""
    rows = table.reshape(-1, table.shape[-1]) if table.ndim else table.reshape(1, 1)
    return len({tuple(entry[2] for entry in row) for row in rows.tolist()}) > 1


def leaves_of(spec: Any) -> list[Any]:
    return nest.flatten(spec, lambda x: isinstance(x, frb.ArraySpec | frb.NonTensor))[0]


def test_masked_choices_keep_their_last_axis() -> None:
    spec = frb.MultiCategorical([2, 3], [True, True, True, False, True], (2, 2))
    assert spec.reshape(4).shape == (4,)
    with pytest.raises(ValueError, match=r"with a mask, the last axis of \(2, 2\) has to stay"):
        spec.reshape(4, 1)


@many
@given(st.data())
def test_expand_is_broadcasting(data: st.DataObject) -> None:
    spec = data.draw(ALL.with_axes())
    sizes, full = data.draw(grammar.expansions(spec.axes))
    same(spec, lambda x: x.expand(sizes), lambda x: np.broadcast_to(x, full), ValueError)
    same(spec, lambda x: x.expand(*full), lambda x: np.broadcast_to(x, full), ValueError)


@many
@given(st.data())
def test_expand_refuses_what_does_not_broadcast(data: st.DataObject) -> None:
    spec, sizes = data.draw(ALL.with_axes()), data.draw(st.lists(st.integers(0, 3), max_size=4))
    same(spec, lambda x: x.expand(*sizes), lambda x: np.broadcast_to(x, tuple(sizes)), ValueError)


@many
@given(st.data())
def test_squeeze_and_unsqueeze(data: st.DataObject) -> None:
    spec, axis = data.draw(ALL.with_axes()), data.draw(st.integers(-5, 4))
    if spec.axes:  # of none, NumPy lets 0 be squeezed
        same(spec, lambda x: x.squeeze(axis), lambda x: np.squeeze(x, axis), ValueError)
    same(spec, lambda x: x.squeeze(), np.squeeze, ValueError)
    same(spec, lambda x: x.unsqueeze(axis), lambda x: np.expand_dims(x, axis), ValueError)


@many
@given(st.data())
def test_reshape(data: st.DataObject) -> None:
    spec = data.draw(ALL.with_axes())
    sizes = data.draw(grammar.reshapes(spec.axes))
    # NumPy takes any negative number for -1.
    fits = sizes if all(n >= -1 for n in sizes) else (7, 7)
    same(spec, lambda x: x.reshape(*sizes), lambda x: x.reshape(fits), ValueError)


@settings(max_examples=effort(100, 600))
@given(st.data())
def test_indices_are_numpys(data: st.DataObject) -> None:
    spec = data.draw(ALL.with_axes())
    index = data.draw(grammar.indices(spec.axes))
    same(spec, lambda x: x[index], lambda x: x[index], IndexError)


def test_an_ellipsis_for_no_axes_tells_arrays_apart() -> None:
    spec = frb.OneHot(3, np.random.default_rng(0).random((4, 2, 2, 3)) < 2, (4, 2, 2, 3))
    assert spec[:, [0], ..., [1]].axes == np.zeros((4, 2, 2))[:, [0], ..., [1]].shape == (1, 4)


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_arrays_of_either_library_are_indices(library: str) -> None:
    import jax.numpy as jnp
    import torch

    array: Any = jnp.asarray if library == "jax" else torch.tensor
    spec = frb.Bounded([0, 1, 2], 5, (2, 3), "int8")
    assert spec[:, array([2, 0])] == frb.Bounded([2, 0], 5, (2, 2), "int8")
    assert spec[array([[True, False, True], [False, True, False]])] == frb.Bounded([0, 2, 1], 5, (3,), "int8")


@many
@given(ALL.with_axes())
def test_iterating_goes_along_the_first_axis(spec: Any) -> None:
    if isinstance(spec, frb.Composite):
        assert list(spec) == list(spec.parts)
        return
    if not spec.axes:
        with pytest.raises(TypeError, match=f"{type(spec).__name__} has no first axis"):
            iter(spec)
        return
    if isinstance(spec, frb.MultiCategorical) and spec.mask is not None and rows_differ(elements(spec)[..., None]):
        return
    assert [elements(one).tolist() for one in spec] == elements(spec).tolist()


def test_huge_batches_take_no_memory() -> None:
    spec = frb.Composite(rgb=frb.Bounded(0, 255, (84, 84, 3), "uint8")).expand(10**9)
    assert spec[5].rgb == frb.Bounded(0, 255, (84, 84, 3), "uint8")
    assert spec.reshape(10**6, -1).unsqueeze(0)[:, 3, ::2].rgb.shape == (1, 500, 84, 84, 3)
    masked = frb.Categorical(2, [True, False], (10**15,))
    assert masked[7] == frb.Categorical(2, [True, False])
    with pytest.raises(ValueError, match="forbids all 2"):
        frb.OneHot(2, [[True, True], [False, False]], (10**15, 2, 2))


# --- members side by side -------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_stacked_is_a_table_too(data: st.DataObject) -> None:
    spec = data.draw(ALL.stacked())
    axis = data.draw(st.integers(-5, 4))
    same(spec, lambda x: x.unsqueeze(axis), lambda x: np.expand_dims(x, axis), ValueError)
    if axis % len(spec.axes) != spec.axis:  # the only member is no array
        same(spec, lambda x: x.squeeze(axis), lambda x: np.squeeze(x, axis), ValueError)
    given_sizes, full = data.draw(grammar.expansions(spec.axes))
    new = len(full) - len(spec.axes)
    if full[new + spec.axis] == len(spec.members):
        same(spec, lambda x: x.expand(given_sizes), lambda x: np.broadcast_to(x, full), ValueError)
    elif given_sizes[new + spec.axis] != -1:
        with pytest.raises(ValueError, match="does not broadcast to"):
            spec.expand(full)


@many
@given(st.data())
def test_stacked_is_indexed_by_numbers_and_slices(data: st.DataObject) -> None:
    spec = data.draw(ALL.stacked())
    index = data.draw(grammar.indices(spec.axes))
    parts = index if isinstance(index, tuple) else (index,)
    if any(not (part is Ellipsis or isinstance(part, int | slice)) or part is True for part in parts):
        with pytest.raises(IndexError):
            spec[index]
        return
    wanted = outcome(lambda: elements(spec)[index], (IndexError,))
    if isinstance(wanted, np.ndarray) and 0 in wanted.shape:  # perhaps no member is left: then it is no spec
        got = outcome(lambda: spec[index], (ValueError,))
        assert got is ValueError or got.axes == wanted.shape
        return
    same(spec, lambda x: x[index], lambda x: x[index], IndexError)


@many
@given(st.data())
def test_stacked_keeps_its_members_apart(data: st.DataObject) -> None:
    spec = data.draw(ALL.stacked())
    sizes = data.draw(grammar.reshapes(spec.axes))
    table = elements(spec)
    full = outcome(lambda: table.reshape(sizes), (ValueError,))
    axes, count = spec.axes, len(spec.members)
    places = [
        i
        for i, n in enumerate(() if full is ValueError else full.shape)
        if n == count
        and math.prod(full.shape[:i]) == math.prod(axes[: spec.axis])
        and math.prod(full.shape[i + 1 :]) == math.prod(axes[spec.axis + 1 :])
        and sizes[i] == n
    ]
    if places and all(n >= -1 for n in sizes):
        same(spec, lambda x: x.reshape(*sizes), lambda x: x.reshape(sizes), ValueError)
    else:
        with pytest.raises(ValueError, match="reshape"):
            spec.reshape(sizes)


AGENTS = frb.Stacked(
    [
        frb.Composite(obs=frb.Unbounded((3,)), id=frb.Categorical(2)),
        frb.Composite(obs=frb.Unbounded((5,)), id=frb.Categorical(2), gps=frb.Unbounded((2,))),
    ]
)


def test_members_that_differ() -> None:
    wide = AGENTS.expand(4, 2)
    assert (wide.axis, wide.axes, [m.batch_shape for m in wide.members]) == (1, (4, 2), [(4,), (4,)])
    assert wide[1, 0] == AGENTS[0]
    assert wide[:, 1].obs.shape == (4, 5)
    assert wide[..., 0] == wide.members[0]
    assert wide[1:3].axes == (2, 2)
    assert list(AGENTS) == list(AGENTS.members)
    assert AGENTS.shape == {"obs": (2, -1), "id": (2,)}
    assert AGENTS["id"] == frb.Categorical(2, shape=(2,))
    assert AGENTS["obs"] == frb.Stacked([frb.Unbounded((3,)), frb.Unbounded((5,))])
    uneven = frb.Stacked([frb.Unbounded((3,)), frb.Unbounded((5,))], -1)
    assert (uneven.axis, uneven.axes, uneven[2, 0], uneven[1:].axes) == (1, (-1, 2), frb.Unbounded(), (-1, 2))
    with pytest.raises(IndexError):
        _ = uneven[4]
    with pytest.raises(TypeError, match=r"no first axis to iterate over, its axes are \(-1, 2\)"):
        iter(uneven)
    with pytest.raises(KeyError, match=r"'gps': members \[0\] have no such part; frb.consolidate"):
        _ = AGENTS["gps"]
    with pytest.raises(IndexError):
        _ = AGENTS[2]
    nested = frb.Stacked([AGENTS, AGENTS[::-1]])
    assert nested["id"] == frb.Categorical(2, shape=(2, 2))
    assert nested["obs"][0] == AGENTS["obs"]
    assert nested.common == ("obs", "id")


def test_one_size_to_find_does_not_move_the_members() -> None:
    spec = frb.Stacked([frb.Unbounded((1, 2)), frb.Binary((1, 2))], 2)
    made = spec.reshape(-1, 2, 2)
    assert (made.axis, made.members) == (2, spec.members)
    uneven = frb.Stacked([frb.Unbounded((2, 3)), frb.Unbounded((2, 5))], 1)
    assert [member.axes for member in uneven.reshape(1, 2, 2, -1).members] == [(1, 2, 3), (1, 2, 5)]


def test_members_are_behind_the_batch_of_composites() -> None:
    spec = frb.Composite(agents=AGENTS.expand(4, 2), batch_shape=(4,))
    assert spec[1].agents == AGENTS
    assert spec.expand(3, 4).agents.axes == (3, 4, 2)
    assert spec.reshape(2, 2).agents["id"].shape == (2, 2, 2)
    with pytest.raises(ValueError, match=r"part 'agents'.*batch_shape \(2,\), got \(\)"):
        frb.Composite(agents=AGENTS, batch_shape=(2,))
    behind = frb.Stacked([AGENTS, AGENTS], 1)
    assert behind.leading == ()
    with pytest.raises(ValueError, match=r"part 'x'.*batch_shape \(2,\), got \(\)"):
        frb.Composite(x=behind, batch_shape=(2,))


@many
@given(st.data())
def test_stack_is_one_spec_where_all_are_the_same(data: st.DataObject) -> None:
    one = data.draw(ALL.with_axes(1) | ALL.stacked())
    other = data.draw(st.just(one) | ALL.specs(one.axes))
    axis = data.draw(st.integers(-1, len(one.axes)))
    made = frb.stack([one, other, one], axis)
    assert elements(made).tolist() == np.stack([elements(one), elements(other), elements(one)], axis).tolist()
    assert (type(made) is frb.Stacked and len(made.members) == 3 and made.axis == axis % (len(one.axes) + 1)) == (
        one != other or (type(one) is frb.Stacked and made.members == (one,) * 3)
    )


# --- equality, hashes, text -----------------------------------------------------------------------------------------


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
    wide = dtypes.kind_of(kind) == "int"
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
        frb.MultiCategorical(data.draw(forms(nvec, False)), None, axes, "int16", data.draw(forms(start, False)))
        for _ in range(3)
    ]
    assert set(specs) == {specs[0]}
    assert frb.MultiCategorical(nvec + 1, None, axes, "int16", start) not in specs
    assert frb.MultiCategorical(nvec, None, axes, "int16", start + 1) not in specs
    assert frb.MultiCategorical(nvec, None, axes, "int32", start) not in specs
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
        assert frb.OneHot(3, array([True, False, True])) == frb.OneHot(3, [True, False, True])
        assert frb.MultiOneHot(array([1, 2]), array([True, True, True])) == frb.MultiOneHot((1, 2))
        assert frb.MultiCategorical(array([1, 2])).nvec == (1, 2)


def test_bounds_that_broadcast() -> None:
    assert frb.Bounded([[0], [1]], 2, (2, 2)) == frb.Bounded([[0, 0], [1, 1]], 2, (2, 2))
    assert frb.Bounded(np.broadcast_to([0.0, 1.0], (3, 1, 4, 2)).copy(), 2, (3, 1, 4, 2)).low == (0.0, 1.0)
    assert frb.Bounded([0, 1], 5, (2,)).expand(10**9, 2).low == (0.0, 1.0)
    assert frb.Bounded(-1, 1, (0,)) == frb.Bounded(np.zeros((0,)), [], (0,))
    assert frb.MultiCategorical(3, shape=(2, 0)) == frb.MultiCategorical(np.zeros((2, 0), int))


def test_numbers_beyond_int64() -> None:
    top = 2**64 - 1
    for high in ([top, 3], np.array([top, 3], "uint64")):
        assert frb.Bounded([0, 1], high, (2,), "uint64").high == (top, 3)
    assert frb.MultiCategorical([3], dtype="uint64", start=top - 2).domain.high == top
    ends = frb.MultiCategorical([3, 3], dtype="uint64", start=[0, top - 2])
    assert (ends.domain.high, ends[1]) == ((2, top), frb.Categorical(3, dtype="uint64", start=top - 2))
    assert ends.reshape(1, 2)[0] == ends
    with pytest.raises(ValueError, match=f"expected whole numbers from 0 to {top}, as uint64 has them, got {top + 1}"):
        frb.Bounded(0, top + 1, dtype="uint64")
    assert frb.Bounded(0, 2**70, dtype="float64").high == 2.0**70


def test_bounds_beyond_a_dtype_are_infinite() -> None:
    for kind in ("float16", "bfloat16", "float32"):
        assert frb.Bounded(-1e39, 1e39, dtype=kind) == frb.Bounded(-math.inf, math.inf, dtype=kind)


def test_lists_inside_of_specs_do_not_hinder_hashes() -> None:
    for make in (frb.Composite, lambda a: frb.Sequence(a, 2), lambda a: frb.Graph(a, a, 2), lambda a: frb.OneOf([a])):
        assert len({make(a=[U()]), make(a=[U()]), make(a=[U((2,))])}) == 2


def test_short_forms() -> None:
    short = {
        frb.Unbounded(): "Unbounded()",
        frb.Unbounded((3,), "int8"): "Unbounded((3,), 'int8')",
        frb.Binary((), "int8"): "Binary(dtype='int8')",
        frb.Bounded(np.float32(0.1), 1, (2,)): "Bounded(0.1, 1.0, (2,))",
        frb.Bounded(np.array([[0.1, 0.2]] * 3), np.inf, (3, 2)): "Bounded((0.1, 0.2), inf, (3, 2))",
        frb.Categorical(4, start=2): "Categorical(4, start=2)",
        frb.OneHot(4, shape=(2, 4)): "OneHot(4, shape=(2, 4))",
        frb.MultiCategorical([3, 5]): "MultiCategorical((3, 5))",
        frb.MultiCategorical([3, 3]): "MultiCategorical(3, shape=(2,))",
        frb.MultiOneHot([3, 5]): "MultiOneHot((3, 5))",
        frb.Text(8): "Text(8)",
        frb.Text(8, 0, "ba"): "Text(8, 0, 'ab')",
        frb.NonTensor(): "NonTensor()",
        frb.Sequence(frb.Binary(), 3): "Sequence(Binary(), 3)",
        frb.Graph(frb.Binary(), None, 3): "Graph(Binary(), None, 3)",
        frb.OneOf([frb.Binary()]): "OneOf((Binary(),))",
        frb.Stacked([frb.Binary()]): "Stacked((Binary(),))",
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
        agents=frb.Stacked([frb.Composite(camera=camera, goal=goal), frb.Composite(goal=goal)]), done=frb.Binary()
    )
    assert repr(spec) == LONG
    assert eval(LONG, NAMESPACE) == spec


def test_long_tables_are_short_in_str() -> None:
    bounds = np.arange(84 * 84 * 3).reshape(84, 84, 3) / 7
    spec = frb.Composite(a=frb.Bounded(bounds, 1e6, (84, 84, 3)))
    assert str(spec) == "Composite({'a': Bounded(<84x84x3 numbers from 0.0 to 3023.8572>, 1000000.0, (84, 84, 3))})"
    assert eval(repr(spec), NAMESPACE) == spec
    masked = frb.OneHot(50, np.arange(50) < 20)
    assert f"{masked}" == "OneHot(50, <50 truth values, 20 of them true>)"


# --- numbers as dtypes have them ------------------------------------------------------------------------------------


def all_of(kind: str) -> np.ndarray:
    values = np.arange(2**15, dtype=np.uint16).view(np.float16 if kind == "float16" else ml_dtypes.bfloat16)
    return values[values.astype("float32") < np.inf]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_are_the_shortest_decimals(kind: str) -> None:
    """All numbers that are not negative, by step: a decimal with one digit less would mean another number."""
    values = all_of(kind)[::3]
    short = [dtypes.canonical(kind, float(value), "low") for value in values]
    assert (np.array(short).astype(values.dtype) == values).all()
    for value, found in zip(values.tolist(), short, strict=True):
        digits = len(decimal.Decimal(repr(found)).normalize().as_tuple().digits)
        if digits > 1:
            near = float(f"{value:.{digits - 2}e}")
            assert dtypes.rounded(kind, near) != value, found
    assert [dtypes.canonical(kind, one, "low") for one in short[::50]] == short[::50]


@settings(max_examples=effort(100, 600))
@given(st.floats(width=32, allow_nan=False))
def test_float32_as_numpy_writes_it(value: float) -> None:
    assert repr(dtypes.canonical("float32", value, "low")) == repr(float(str(np.float32(value))) + 0.0)
    assert dtypes.canonical("float64", value / 3, "low") == value / 3


@settings(max_examples=effort(100, 600))
@given(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False) | st.floats(width=16))
def test_rounding_to_bfloat16_is_the_usual_one(value: float) -> None:
    with np.errstate(over="ignore"):
        wanted = float(np.float32(value).astype(ml_dtypes.bfloat16))
    np.testing.assert_equal(dtypes.rounded("bfloat16", value), wanted)


def test_rounding_between_two_of_bfloat16() -> None:
    bits = np.arange(2**15 - 2**7 - 1, dtype=np.uint32) << 16
    for low in (0x7FFF, 0x8000, 0x8001):
        values = (bits + low).astype(np.uint32).view(np.float32)[::37]
        wanted = values.astype(ml_dtypes.bfloat16).astype(float).tolist()
        assert [dtypes.rounded("bfloat16", float(value)) for value in values] == wanted


# --- what constructors refuse ---------------------------------------------------------------------------------------


def bfloat16(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.bfloat16)


U = frb.Unbounded
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: frb.Bounded(0, 300, dtype="uint8"),
        ValueError,
        "high: expected whole numbers from 0 to 255, as uint8 .*300",
    ),
    (lambda: frb.Bounded(0, 1, dtype="bool"), TypeError, r"real numbers, got bool; write Binary\(shape\)"),
    (lambda: frb.Bounded(0, 1, dtype="complex64"), TypeError, r"got complex64; write Unbounded\(shape, dtype\)"),
    (lambda: frb.Bounded(0, 1j), TypeError, "expected high as a number or an array of them, got 1j"),
    (lambda: frb.Bounded(0, np.array([1j])), TypeError, "expected high as a number"),
    (lambda: frb.Bounded(0, [1, None], (2,)), TypeError, "expected high as a number"),
    (lambda: frb.Bounded(0, frb.Unbounded()), TypeError, "expected high as a number"),
    (lambda: frb.Bounded(0, [[1], [1, 2]], (2, 2)), ValueError, "expected high as a number.*inhomogeneous"),
    (lambda: frb.Bounded(0, 1.5, dtype="int8"), ValueError, "as int8 has them, got 1.5; round it"),
    (lambda: frb.Bounded([0, 0.5], 1, (2,), "int8"), ValueError, "low: expected whole numbers.* got 0.5"),
    (lambda: frb.Bounded(0, math.inf, dtype="int8"), ValueError, "got inf; Unbounded has no bounds"),
    (lambda: frb.Bounded(-math.inf, 0, dtype="int8"), ValueError, "low: expected whole numbers.* got -inf"),
    (lambda: frb.Bounded(math.nan, 0, dtype="int8"), ValueError, "got nan"),
    (lambda: frb.Bounded(math.nan, 1), ValueError, "low <= high everywhere, got low=nan.* write -inf or inf"),
    (lambda: frb.Bounded(0, [1, math.nan], (2,), "bfloat16"), ValueError, "expected low <= high everywhere"),
    (lambda: frb.Bounded(1, 0), ValueError, "expected low <= high everywhere, got low=1, high=0"),
    (lambda: frb.Bounded(math.inf, math.inf), ValueError, "low < inf and high > -inf.*leaves no number"),
    (lambda: frb.Bounded(-math.inf, [0, -math.inf], (2,)), ValueError, "expected low < inf and high > -inf"),
    (lambda: frb.Bounded([0, 2], 1, (2,)), ValueError, r"low <= high everywhere, got low=\[0, 2\]"),
    (lambda: frb.Bounded([0, 0, 0], 1, (2,)), ValueError, r"low of shape \(3,\) does not broadcast to \(2,\)"),
    (lambda: frb.Bounded(0, bfloat16([1, 2, 3]), (2,)), ValueError, r"high of shape \(3,\) does not"),
    (lambda: frb.Sequence(U(), 3, stack="yes"), TypeError, "Sequence: expected stack as a truth value, got 'yes'"),
    (lambda: frb.Categorical(0), ValueError, "Categorical: expected at least 1 choice, got 0"),
    (lambda: frb.Categorical(2.5), TypeError, "Categorical: n: expected a whole number, got 2.5"),
    (lambda: frb.Categorical(True), TypeError, "Categorical: n: expected a whole number, got True"),
    (lambda: frb.Categorical("3"), TypeError, "Categorical: n: expected a whole number, got '3'"),
    (lambda: frb.Categorical(3, start=0.5), TypeError, "Categorical: start: expected a whole number, got 0.5"),
    (lambda: frb.Categorical(3, dtype="complex64"), TypeError, "Categorical: expected a dtype of integers.*complex64"),
    (
        lambda: frb.Categorical(258, dtype="bfloat16"),
        ValueError,
        r"from 0 to 257 do not fit into bfloat16 \(-256 to 256",
    ),
    (lambda: frb.Categorical(3, dtype="bool"), TypeError, "Categorical: expected a dtype of integers.*bool"),
    (lambda: frb.Categorical(200, dtype="int8"), ValueError, "from 0 to 199 do not fit into int8.*give a wider dtype"),
    (lambda: frb.Categorical(2, start=-1, dtype="uint8"), ValueError, "from -1 to 0 do not fit into uint8"),
    (lambda: frb.Categorical(2**31, dtype="int64"), ValueError, "fewer than 2\\^31 choices, got 2147483648"),
    (lambda: frb.Categorical(3, [False] * 3), ValueError, "Categorical: the mask forbids all 3 choices; leave one"),
    (lambda: frb.Categorical(2, [[1 > 0, 1 > 0], [0 > 1, 0 > 1]], (2,)), ValueError, "the mask forbids all 2"),
    (lambda: frb.Categorical(3, [True, True]), ValueError, r"mask of shape \(2,\) does not broadcast to \(3,\)"),
    (lambda: frb.Categorical(3, [[True] * 3] * 2), ValueError, r"mask of shape \(2, 3\) does not broadcast to \(3,\)"),
    (lambda: frb.Categorical(3, [1, 0, 1]), TypeError, "Categorical: expected mask as truth values, got int64; write"),
    (lambda: frb.Categorical(3, "abc"), TypeError, "Categorical: expected mask as a number or an array"),
    (lambda: frb.OneHot(0), ValueError, "OneHot: expected at least 1 choice, got 0"),
    (lambda: frb.OneHot(3.0), TypeError, "OneHot: n: expected a whole number, got 3.0"),
    (lambda: frb.OneHot(3, shape=()), ValueError, r"whose last axis is 3, got \(\); write shape=\(\*axes, 3\)"),
    (lambda: frb.OneHot(3, shape=(3, 2)), ValueError, r"OneHot: .*last axis is 3, got \(3, 2\)"),
    (lambda: frb.MultiCategorical(3), ValueError, r"at least one axis, got shape \(\); write Categorical\(3\)"),
    (lambda: frb.MultiCategorical([3, 0]), ValueError, "MultiCategorical: expected at least 1 choice, got 0"),
    (lambda: frb.MultiCategorical([3, 2.5]), TypeError, "MultiCategorical: expected nvec as whole numbers"),
    (lambda: frb.MultiCategorical([3], start=0.5), TypeError, "MultiCategorical: expected start as whole numbers"),
    (lambda: frb.MultiCategorical([True]), TypeError, "MultiCategorical: expected nvec as whole numbers"),
    (
        lambda: frb.MultiCategorical([3, 4], shape=(3,)),
        ValueError,
        r"nvec of shape \(2,\) does not broadcast to \(3,\)",
    ),
    (lambda: frb.MultiCategorical([3, 4], start=[1, 2, 3]), ValueError, r"start of shape \(3,\) does not broadcast"),
    (lambda: frb.MultiCategorical([3, 4], dtype="bool"), TypeError, "a dtype of integers"),
    (
        lambda: frb.MultiCategorical([[3, 4], [4, 3]], [True] * 7),
        ValueError,
        "a mask needs one vector.*part of an item",
    ),
    (lambda: frb.MultiCategorical([2, 2], [True, True, False, False]), ValueError, "forbids all 2 choices"),
    (lambda: frb.MultiOneHot([]), ValueError, r"expected nvec as a sequence of numbers of choices, got \[\]"),
    (lambda: frb.MultiOneHot(3), ValueError, "MultiOneHot: expected nvec as a sequence of numbers of choices, got 3"),
    (lambda: frb.MultiOneHot([2, 0]), ValueError, "MultiOneHot: expected at least 1 choice, got 0"),
    (lambda: frb.MultiOneHot([2, 1.5]), TypeError, "MultiOneHot: nvec: expected a whole number, got 1.5"),
    (lambda: frb.MultiOneHot([2, 1], shape=(2,)), ValueError, "MultiOneHot: .*last axis is 3"),
    (lambda: frb.MultiOneHot([2, 1], [True, True, False]), ValueError, "MultiOneHot: the mask forbids all 1 choices"),
    (lambda: frb.Text(0), ValueError, "0 <= min_length <= max_length and max_length >= 1, got 1 and 0"),
    (lambda: frb.Text(0, 0), ValueError, "max_length >= 1, got 0 and 0"),
    (lambda: frb.Text(2, 3), ValueError, "got 3 and 2"),
    (lambda: frb.Text(2, -1), ValueError, "got -1 and 2"),
    (lambda: frb.Text(2.0), TypeError, "Text: max_length: expected a whole number, got 2.0"),
    (lambda: frb.Text(2, charset=""), ValueError, "expected a charset of some characters but NUL.*got ''"),
    (lambda: frb.Text(2, charset="a\0"), ValueError, "NUL"),
    (lambda: frb.Text(2, charset=["ab"]), TypeError, "Text: expected charset as characters, got \\['ab'\\]"),
    (lambda: frb.Text(2, charset=3), TypeError, "Text: expected charset as characters, got 3"),
    (lambda: frb.Text(2, shape=(3,)), ValueError, r"last axis is 2, got \(3,\)"),
    (lambda: frb.NonTensor(3), TypeError, r"expected a shape as a tuple, got 3; write \(3,\)"),
    (lambda: frb.Composite(a=3), TypeError, "leaf 'a': expected a spec such as .*, got int; frb.spec_of"),
    (lambda: frb.Composite(a={"b": (U(), 3)}), TypeError, "leaf 'a/b/1': expected a spec.* got int"),
    (lambda: frb.Composite(a=Pair(U(), np.zeros(3))), TypeError, "leaf 'a/second': expected a spec.* got ndarray"),
    (lambda: frb.Composite(a=Data(U(), 1)), TypeError, "leaf 'a/y': expected a spec.* got int"),
    (lambda: frb.Composite(a=frb.Unbounded), TypeError, "leaf 'a': expected a spec .* got the class Unbounded"),
    (lambda: frb.Composite({3: U()}), TypeError, "expected names that are strings, got 3"),
    (lambda: frb.Composite({("a", "b"): U()}), TypeError, "names that are strings"),
    (
        lambda: frb.Composite(a=U((4, 3)), b={"c": U((3,))}, batch_shape=(4,)),
        ValueError,
        r"part '(b/)?c'.*\(4,\), got \(3,",
    ),
    (lambda: frb.Composite(a=(U(),), batch_shape=(4,)), ValueError, r"part 'a/0'.*got \(\); write spec.expand\(4, "),
    (lambda: frb.Composite(a=frb.OneHot(4), batch_shape=(4,)), ValueError, r"part 'a'.*\(4,\), got \(\)"),
    (lambda: frb.Composite(a=frb.Composite(), batch_shape=(4,)), ValueError, "part 'a'"),
    (lambda: frb.Composite(a=U((4,)), batch_shape=4), TypeError, r"a shape as a tuple, got 4; write \(4,\)"),
    (lambda: frb.Stacked([]), ValueError, "expected at least one member, got none"),
    (lambda: frb.Stacked([U(), 3]), TypeError, "Stacked: member 1: .*expected a spec.* got int"),
    (lambda: frb.Stacked([U(), (U(),)]), TypeError, "Stacked: member 1: expected a spec.*Composite"),
    (lambda: frb.Stacked([U(), U((2,))]), ValueError, r"same number of axes, got \[\(\), \(2,\)\]; .*unsqueeze"),
    (lambda: frb.Stacked([U(), U()], 1), ValueError, "there is no axis 1 among 1"),
    (lambda: frb.Stacked([U(), U()], -2), ValueError, "there is no axis -2 among 1"),
    (lambda: frb.Stacked([U(), U()], 0.5), TypeError, "Stacked: axis: expected a whole number, got 0.5"),
    (lambda: frb.Stacked(U((3,))), TypeError, "Stacked: expected members as a sequence of specs"),
    (lambda: frb.Stacked({"a": U()}), TypeError, "Stacked: expected members as a sequence of specs"),
    (lambda: frb.Sequence(U(), 0), ValueError, "Sequence: expected max_length >= 1, got 0"),
    (lambda: frb.Sequence(U(), 2.5), TypeError, "Sequence: max_length: expected a whole number, got 2.5"),
    (lambda: frb.Sequence(3, 2), TypeError, "Sequence.element: leaf 'the item': expected a spec.* got int"),
    (lambda: frb.Sequence({"a": 3}, 2), TypeError, "Sequence.element: leaf 'a': expected a spec.* got int"),
    (lambda: frb.Graph(None, None, 2), TypeError, "Graph.node: leaf 'the item': expected a spec.* got NoneType"),
    (lambda: frb.Graph(U(), 1, 2), TypeError, "Graph.edge: leaf 'the item': expected a spec.* got int"),
    (lambda: frb.Graph(U(), U(), 0), ValueError, "Graph: expected max_nodes >= 1, got 0"),
    (lambda: frb.Graph(U(), U(), 1, 0), ValueError, "Graph: expected max_edges >= 1, got 0"),
    (lambda: frb.Sequence({"a": frb.NonTensor()}, 2), TypeError, "Sequence: expected specs of arrays, got NonTensor"),
    (lambda: frb.OneOf([]), ValueError, "OneOf: expected at least one option, got none"),
    (lambda: frb.OneOf(U((3,))), TypeError, "OneOf: expected options as a sequence of specs"),
    (lambda: frb.OneOf([U(), "a"]), TypeError, "OneOf.options: leaf '1': expected a spec.* got str"),
]


@pytest.mark.parametrize(("make", "kind", "message"), WRONG, ids=[message[:60] for *_, message in WRONG])
def test_constructors_say_what_is_wrong(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_changes_of_shape_say_what_is_wrong() -> None:
    spec = frb.Composite(obs=U((2, 3)), batch_shape=(2,))
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: spec.expand(3), ValueError, r"expand: \(2,\) does not broadcast to \(3,\); only axes of size 1"),
        (lambda: spec.expand(-1, 2), ValueError, r"expand: \(2,\) does not broadcast to \(-1, 2\)"),
        (lambda: spec.squeeze(0), ValueError, r"squeeze: axis 0 of \(2,\) has another size than 1"),
        (lambda: spec.squeeze(1), ValueError, "squeeze: there is no axis 1 among 1"),
        (lambda: spec.unsqueeze(2), ValueError, "unsqueeze: there is no axis 2 among 2"),
        (lambda: spec.reshape(3), ValueError, r"reshape: \(2,\) has 2 elements, which do not fill \(3,\)"),
        (lambda: spec[0, 1], IndexError, r"Composite has 1 axes to index, \(2,\), got \(0, 1\)"),
        (lambda: spec[5], IndexError, r"Composite: 5 is no index of its axes \(2,\): .*index 5 is out of bounds"),
        (
            lambda: U((2, 3, 4))[2, :, [0, 1]],
            IndexError,
            r"torch reads in another way where a number and a list .* spec\[0\]\[:, \[0, 1\]\]",
        ),
        (lambda: spec[1.5], IndexError, "valid indices"),
        (lambda: U((2,))["a"], IndexError, "valid indices"),
        (lambda: 3 in U((2,)), TypeError, r"write rb.contains\(spec, value\)"),
        (lambda: AGENTS[None], IndexError, "by numbers and slices"),
        (lambda: AGENTS[[0, 1]], IndexError, "by numbers and slices"),
        (lambda: AGENTS[5:], ValueError, "at least one member"),
        (lambda: AGENTS.reshape(4), ValueError, r"reshape: \(2,\) has 2 different members along axis 0"),
        (lambda: AGENTS.expand(3), ValueError, "there are 2 members"),
        (lambda: AGENTS.squeeze(0), ValueError, r"squeeze: axis 0 of \(2,\)"),
    ]
    for make, kind, message in cases:
        with pytest.raises(kind, match=message):
            make()


# --- composites -----------------------------------------------------------------------------------------------------


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
    for made in (spec[0], spec.expand(2, 3), spec.reshape(1, 3), frb.consolidate(spec), copy.deepcopy(spec)):
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
        return frb.Stacked(parts)
    kind, inner = skeleton
    made = spec_from(inner)
    return {"sequence": frb.Sequence(made, 2), "tuple": (made,), "one of": frb.OneOf([made])}[kind]


def walk(spec: Any) -> list[Any]:
    """All specs there are in one, by hand."""
    if isinstance(spec, tuple):
        return [found for part in spec for found in walk(part)]
    below = {
        frb.Composite: lambda: tuple(spec.values()),
        frb.Stacked: lambda: spec.members,
        frb.Sequence: lambda: (spec.element,),
        frb.OneOf: lambda: spec.options,
    }.get(type(spec), tuple)()
    return [spec, *walk(below)]


def lacks(parts: list[Any]) -> bool:
    """Whether a list of specs side by side has composites of which one has a name that another lacks."""
    while parts and all(isinstance(part, frb.Stacked) for part in parts):
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
    spec = spec_from(skeleton)
    found = [one for one in walk(spec) if isinstance(one, frb.Stacked)]
    assert frb.has_stacked(spec) == bool(found)
    assert frb.has_exclusive_keys(spec) == any(lacks(list(one.members)) for one in found)
    whole = frb.consolidate(spec)
    assert not frb.has_exclusive_keys(whole)
    assert frb.consolidate(whole) == whole
    assert frb.has_stacked(whole) == frb.has_stacked(spec)
    if not frb.has_exclusive_keys(spec):
        assert whole == spec
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
                assert all(0 in leaf.shape for leaf in leaves_of(part))
                assert all(leaf.leading[: len(after.batch_shape)] == after.batch_shape for _, leaf in members(part))
    elif isinstance(before, frb.Stacked):
        assert (before.axis, len(before.members)) == (after.axis, len(after.members))
        for one, other in zip(before.members, after.members, strict=True):
            compare(one, other)
    elif isinstance(before, tuple):
        for one, other in zip(before, after, strict=True):
            compare(one, other)
    elif isinstance(before, frb.Sequence):
        assert dataclasses.replace(after, element=before.element) == before
        compare(before.element, after.element)
    elif isinstance(before, frb.OneOf):
        compare(before.options, after.options)
    else:
        assert before == after


def test_consolidate_by_example() -> None:
    agents = frb.Stacked(
        [
            frb.Composite(obs=U((4, 3)), info=frb.Composite(a=U((4,)), batch_shape=(4,)), batch_shape=(4,)),
            frb.Composite(
                text=frb.Text(5, shape=(4, 5)),
                talk=frb.Sequence(frb.Unbounded((2,), "int8"), 3, batch_shape=(4,)),
                team=frb.Stacked([U((4, 2)), frb.Binary((4, 3))], 2),
                note=frb.NonTensor((4,)),
                info=frb.Composite(
                    b=frb.Binary((4, 7, 7)), duo=frb.Stacked([U((4, 7)), U((4, 7), "int8")], 2), batch_shape=(4, 7)
                ),
                batch_shape=(4,),
            ),
        ],
        1,
    )
    whole = frb.consolidate(agents)
    first, second = whole.members
    assert list(first) == list(second) == ["obs", "info", "text", "talk", "team", "note"]
    assert first == frb.Composite(
        obs=U((4, 3)),
        info=frb.Composite(
            a=U((4,)),
            b=frb.ArraySpec((4, 0), "bool"),
            duo=frb.Stacked([frb.ArraySpec((4, 0)), frb.ArraySpec((4, 0), "int8")], 1),
            batch_shape=(4,),
        ),
        text=frb.ArraySpec((4, 0), "int32"),
        talk=frb.Composite(
            elements=frb.ArraySpec((4, 0, 0), "int8"), length=frb.ArraySpec((4, 0), "int32"), batch_shape=(4,)
        ),
        team=frb.Stacked([frb.ArraySpec((4, 0)), frb.ArraySpec((4, 0), "bool")], 2),
        note=frb.NonTensor((4, 0)),
        batch_shape=(4,),
    )
    assert second.obs == frb.ArraySpec((4, 0))
    assert second.info.a == frb.ArraySpec((4, 7, 0))
    assert second.talk == agents[:, 1].talk
    assert frb.consolidate({"agents": agents, "t": (agents,)})["t"] == (whole,)


# --- in buffers -----------------------------------------------------------------------------------------------------

ITEM: Any = {
    "leaves": {
        "c": frb.Categorical(5, start=2),
        "o": frb.OneHot(3, [True, False, True], (2, 3)),
        "mc": frb.MultiCategorical([[2, 3], [4, 5]], dtype="uint8"),
        "mo": frb.MultiOneHot([2, 3], dtype="float32"),
        "t": (frb.Text(4), [frb.Text(3, shape=(2, 3))]),
        "b": frb.Bounded([0, 1], 2, (2,), "bfloat16"),
    },
    "varying": {
        "s": frb.Sequence(frb.Composite(x=U((2,)), y=frb.Binary()), 3),
        "g": frb.Graph(U((2,)), frb.Categorical(4, dtype="uint8"), 3, 2),
        "one": frb.OneOf([U((2,), "int8"), frb.Sequence(frb.Text(2), 2)], (2,)),
    },
    "agents": {"agents": frb.consolidate(AGENTS), "raw": AGENTS.expand(2, 2), "pair": Pair(U(), Data(U(), AGENTS))},
    "batched": frb.Composite(a=U((2, 3)), inner={"b": frb.OneHot(3, shape=(2, 3))}, batch_shape=(2,)),
    "sequence": frb.Sequence(AGENTS, 2),
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
    sequence = frb.Sequence(U((2,)), 3)
    assert frb.BufferSpec(sequence, 4) == frb.BufferSpec(copy.deepcopy(sequence), 4)
    assert frb.BufferSpec(sequence, 4) != frb.BufferSpec(dict(sequence.parts), 4)
