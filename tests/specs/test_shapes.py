"""Changes of shape, indices and stacks of specs, against what NumPy makes of a table with an entry for each element."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import functional_rb as frb
from tests.specs.spec_examples import AGENTS, leaves_of, many
from tests.specs.spec_model import elements
from tests.support import grammar
from tests.support.effort import effort
from tests.support.grammar import ALL


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
        masked = [
            leaf for leaf in leaves_of(spec) if isinstance(leaf, frb.specs.MultiCategorical) and leaf.mask is not None
        ]
        assert masked
        assert not isinstance(spec, frb.specs.MultiCategorical) or rows_differ(wanted)
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


def test_masked_choices_keep_their_last_axis() -> None:
    spec = frb.specs.MultiCategorical([2, 3], [True, True, True, False, True], (2, 2))
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
    spec = frb.specs.OneHot(3, np.random.default_rng(0).random((4, 2, 2, 3)) < 2, (4, 2, 2, 3))
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
    if (
        isinstance(spec, frb.specs.MultiCategorical)
        and spec.mask is not None
        and rows_differ(elements(spec)[..., None])
    ):
        return
    assert [elements(one).tolist() for one in spec] == elements(spec).tolist()


def test_huge_batches_take_no_memory() -> None:
    spec = frb.Composite(rgb=frb.Bounded(0, 255, (84, 84, 3), "uint8")).expand(10**9)
    assert spec[5].rgb == frb.Bounded(0, 255, (84, 84, 3), "uint8")
    assert spec.reshape(10**6, -1).unsqueeze(0)[:, 3, ::2].rgb.shape == (1, 500, 84, 84, 3)
    masked = frb.Categorical(2, [True, False], (10**15,))
    assert masked[7] == frb.Categorical(2, [True, False])
    with pytest.raises(ValueError, match="forbids all 2"):
        frb.specs.OneHot(2, [[True, True], [False, False]], (10**15, 2, 2))


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
    assert AGENTS["obs"] == frb.specs.Stacked([frb.Unbounded((3,)), frb.Unbounded((5,))])
    uneven = frb.specs.Stacked([frb.Unbounded((3,)), frb.Unbounded((5,))], -1)
    assert (uneven.axis, uneven.axes, uneven[2, 0], uneven[1:].axes) == (1, (-1, 2), frb.Unbounded(), (-1, 2))
    with pytest.raises(IndexError):
        _ = uneven[4]
    with pytest.raises(TypeError, match=r"no first axis to iterate over, its axes are \(-1, 2\)"):
        iter(uneven)
    with pytest.raises(KeyError, match=r"'gps': members \[0\] have no such part; spec.consolidate"):
        _ = AGENTS["gps"]
    with pytest.raises(IndexError):
        _ = AGENTS[2]
    nested = frb.specs.Stacked([AGENTS, AGENTS[::-1]])
    assert nested["id"] == frb.Categorical(2, shape=(2, 2))
    assert nested["obs"][0] == AGENTS["obs"]
    assert nested.common == ("obs", "id")


def test_one_size_to_find_does_not_move_the_members() -> None:
    spec = frb.specs.Stacked([frb.Unbounded((1, 2)), frb.Binary((1, 2))], 2)
    made = spec.reshape(-1, 2, 2)
    assert (made.axis, made.members) == (2, spec.members)
    uneven = frb.specs.Stacked([frb.Unbounded((2, 3)), frb.Unbounded((2, 5))], 1)
    assert [member.axes for member in uneven.reshape(1, 2, 2, -1).members] == [(1, 2, 3), (1, 2, 5)]


def test_members_are_behind_the_batch_of_composites() -> None:
    spec = frb.Composite(agents=AGENTS.expand(4, 2), batch_shape=(4,))
    assert spec[1].agents == AGENTS
    assert spec.expand(3, 4).agents.axes == (3, 4, 2)
    assert spec.reshape(2, 2).agents["id"].shape == (2, 2, 2)
    with pytest.raises(ValueError, match=r"part 'agents'.*batch_shape \(2,\), got \(\)"):
        frb.Composite(agents=AGENTS, batch_shape=(2,))
    behind = frb.specs.Stacked([AGENTS, AGENTS], 1)
    assert behind.leading == ()
    with pytest.raises(ValueError, match=r"part 'x'.*batch_shape \(2,\), got \(\)"):
        frb.Composite(x=behind, batch_shape=(2,))


@many
@given(st.data())
def test_stack_is_one_spec_where_all_are_the_same(data: st.DataObject) -> None:
    one = data.draw(ALL.with_axes(1) | ALL.stacked())
    other = data.draw(st.just(one) | ALL.specs(one.axes))
    axis = data.draw(st.integers(-1, len(one.axes)))
    made = frb.specs.stack([one, other, one], axis)
    assert elements(made).tolist() == np.stack([elements(one), elements(other), elements(one)], axis).tolist()
    assert (type(made) is frb.specs.Stacked and len(made.members) == 3 and made.axis == axis % (len(one.axes) + 1)) == (
        one != other or (type(one) is frb.specs.Stacked and made.members == (one,) * 3)
    )
