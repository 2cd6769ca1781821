"""How many values specs have, and listing all of them, against looking at every array there could be."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest

import functional_rb as frb
from tests.support import grammar
from tests.support.backends import Backend

MOST = 600
WHOLE = grammar.leaves_of(("bool", "int8", "uint8"), "any", "object", "unbounded", "bounded")
SPECS = grammar.Grammar(WHOLE, ("composite", "stacked", "dict", "tuple"), axes=(0, 1, 0), least=1).nests_of()
FLOATS = ("float16", "bfloat16", "float32", "float64")


def rows(library: Backend, x: Any, n: int) -> list[bytes]:
    """Each of n values as bytes, of all its leaves."""
    leaves = jax.tree.leaves(x)
    parts = [np.ascontiguousarray(library.numpy(leaf)) for leaf in leaves]
    return [b"|".join(part[i].tobytes() for part in parts) for i in range(n)]


def cardinality(nest: Any) -> int | float:
    return frb.Composite(nest=nest).cardinality()


@hypothesis.given(SPECS)
@hypothesis.settings(max_examples=40)
@hypothesis.example({"flag": frb.Binary((2,)), "move": frb.Categorical(3, mask=[True, False, True])})
@hypothesis.example(frb.specs.MultiOneHot([2, 3], mask=[True, True, False, True, True], shape=(2, 5)))
@hypothesis.example(frb.specs.Text(3, 0, "ab"))
@hypothesis.example((frb.Bounded([-1, 3], [1, 3], (2,), "int8"), frb.Binary((), "float32")))
def test_all_values_are_listed_once(spec: Any) -> None:
    from tests.support.backends import make

    n = cardinality(spec)
    hypothesis.assume(n <= MOST)
    with make("torch") as library:
        rb = library.rb
        listed = rb.enumerate(spec)
        found = rows(library, listed, int(n))
        assert len(set(found)) == n
        assert library.numpy(rb.contains(spec, listed)).reshape(int(n), -1).all()
        assert set(rows(library, rb.rand(spec, rb.key(0), 50), 50)) <= set(found)


def test_both_backends_list_the_same() -> None:
    import jax_backend
    import torch_backend

    spec = {"b": (frb.Categorical(3, dtype="float32"), frb.specs.Text(2, 1, "xy")), "a": frb.Binary((2,))}
    by_jax, by_torch = jax_backend.enumerate(spec), torch_backend.enumerate(spec)
    for x, y in ((by_jax["a"], by_torch["a"]), *zip(by_jax["b"], by_torch["b"], strict=True)):
        np.testing.assert_array_equal(np.asarray(x), y.numpy())
        assert str(x.dtype) == str(y.dtype).removeprefix("torch.")
    # The last element of the leaf whose name is the last one changes fastest.
    assert by_torch["b"][1][:6].tolist() == [[120, 0], [121, 0], [120, 120], [120, 121], [121, 120], [121, 121]]
    assert by_torch["a"][:: 3 * 6].tolist() == [[False, False], [False, True], [True, False], [True, True]]


def test_a_cardinality_counts_what_can_be_told_apart(library: Backend) -> None:
    """What varies is counted by its decoded values, over all arrays that it may be stored as."""
    rb = library.rb
    specs = [
        frb.specs.Sequence(frb.Binary(()), 3),
        frb.specs.OneOf([frb.Binary(()), frb.Categorical(3)]),
        frb.specs.Graph(frb.Binary(()), frb.Categorical(2), max_nodes=2, max_edges=1),
        frb.specs.Graph(frb.Categorical(2), None, max_nodes=3),
    ]
    for spec in specs:
        stored = rb.enumerate(spec.parts)
        good = np.flatnonzero(library.numpy(rb.contains(spec, stored)))
        decoded = rb.decode(spec, stored)
        assert len({repr(decoded[i]) for i in good}) == spec.cardinality(), spec


def test_cardinalities() -> None:
    expected = {
        frb.Unbounded(()): math.inf,
        frb.Unbounded((), "int8"): 256,
        frb.Unbounded((2,), "uint64"): 2**128,
        frb.Unbounded((0,)): 1,
        frb.Bounded(0, 1, (2,)): math.inf,
        frb.Bounded([2, 3], [2, 3], (2,)): 1,
        frb.Bounded([0, -5], [1, 5], (2,), "int16"): 22,
        frb.Unbounded((), "complex64"): math.inf,
        frb.Binary((3, 2)): 64,
        frb.Categorical(5, shape=(3,)): 125,
        frb.Categorical(3, [[True, False, True], [True, True, True]], (2,)): 6,
        frb.specs.OneHot(4, [True, True, False, True]): 3,
        frb.specs.NonTensor(()): math.inf,
        frb.specs.Text(2, charset="abc"): 12,
        frb.specs.Stacked([frb.Binary(()), frb.Categorical(3)]): 6,
        frb.specs.Sequence(frb.Unbounded(()), 2): math.inf,
        frb.Composite(a=frb.Binary((8,)), b=frb.Categorical(7)): 2**8 * 7,
    }
    assert {spec: spec.cardinality() for spec in expected} == expected
    assert cardinality({}) == cardinality(()) == 1


def test_more_values_than_a_float_has_and_infinitely_many_together() -> None:
    huge, real = frb.Binary((3000,)), frb.Unbounded(())
    assert huge.cardinality() == 2**3000
    for both in (
        frb.Composite(huge=huge, real=real),
        frb.specs.Stacked([huge, frb.Unbounded((1,))]),
        frb.specs.OneOf([huge, real]),
        frb.specs.Graph(huge, real, max_nodes=2),
    ):
        assert both.cardinality() == math.inf


def test_too_many_are_refused_by_name(library: Backend) -> None:
    rb = library.rb
    for spec, kind, message in (
        (frb.Unbounded(()), ValueError, "leaf 'x' has inf values, which makes inf of all, and at most 16777216"),
        (frb.Binary((25,)), ValueError, "leaf 'x' has 33554432 values"),
        (
            frb.specs.Sequence(frb.Binary(()), 2),
            TypeError,
            "leaf 'x': the values of a Sequence are no arrays of one shape",
        ),
        (frb.specs.NonTensor(()), TypeError, "leaf 'x': the values of a NonTensor are no arrays"),
    ):
        with pytest.raises(kind, match=f"^enumerate: {message}"):
            rb.enumerate({"a": frb.Binary(()), "x": spec})


# -- choices numbered by floats


@pytest.mark.few_on_jax(3)
@pytest.mark.parametrize("dtype", FLOATS[:3])
@pytest.mark.parametrize(
    "kind",
    [
        lambda dtype: frb.Categorical(5, dtype=dtype),
        lambda dtype: frb.Categorical(5, [True, False, True, False, True], dtype=dtype, start=-2),
        lambda dtype: frb.specs.MultiCategorical([2, 4], dtype=dtype, start=[-1, 0]),
    ],
)
def test_choices_may_be_floats(library: Backend, kind: Any, dtype: str) -> None:
    rb, spec = library.rb, kind(dtype)
    listed = rb.enumerate(spec)
    choices = library.numpy(listed).astype(np.float64).reshape(spec.cardinality(), -1)
    assert len(np.unique(choices, axis=0)) == len(choices)
    drawn = library.numpy(rb.rand(spec, rb.key(3), 200)).astype(np.float64).reshape(200, -1)
    assert {tuple(row) for row in drawn.tolist()} == {tuple(row) for row in choices.tolist()}
    line = [
        -math.inf,
        -9,
        -2.5,
        -2,
        -1.25,
        -0.75,
        -0.5,
        0,
        0.25,
        0.5,
        0.75,
        1,
        1.25,
        1.5,
        2.5,
        3,
        7,
        math.inf,
        math.nan,
    ]
    width = choices.shape[1]
    given = np.array(list(itertools.product(line, repeat=width)))
    x = library.array(given.astype(np.float32).reshape(-1, *spec.shape))
    x = rb.project(frb.Unbounded(spec.shape), x) if dtype == "float32" else as_dtype(library, x, dtype)
    inside = library.numpy(rb.contains(spec, x))
    known = {tuple(row) for row in choices.tolist()}
    given = library.numpy(x).astype(np.float64).reshape(len(given), -1)
    assert inside.tolist() == [tuple(row) in known for row in given.tolist()]
    near = library.numpy(rb.project(spec, x)).astype(np.float64).reshape(len(given), -1)
    for row, got in zip(np.nan_to_num(given, nan=0.0, posinf=99, neginf=-99).tolist(), near.tolist(), strict=True):
        # Column by column, of two that are as near the lower.
        assert got == [min({c[k] for c in known}, key=lambda c, v=row[k]: (abs(c - v), c)) for k in range(width)]


def as_dtype(library: Backend, x: Any, dtype: str) -> Any:
    if library.library == "jax":
        return x.astype(dtype)
    import torch

    return x.to(getattr(torch, dtype))


def test_floats_as_choices_are_numbers_that_the_dtype_has() -> None:
    assert frb.Categorical(2**24, dtype="float32").n == 2**24
    with pytest.raises(ValueError, match=r"choices from 0 to 2049.* fit into float16 \(-2048 to 2048\); give a wider"):
        frb.Categorical(2**11 + 2, dtype="float16")
    spec = frb.Categorical(3, dtype="float32")
    assert frb.convert.from_json(frb.convert.to_json(spec)) == spec
    for library in ("gymnasium", "dm_env"):
        with pytest.raises(TypeError, match=r"has choices as float32; write Categorical\(\.\.\., dtype='int32'\)"):
            frb.convert.to_library(spec, library)
