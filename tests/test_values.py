"""Values of specs: drawing, containment, projection, encoding, against a model in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import chex
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from functional_rb import nest, values
from functional_rb.specs import draws, numpy_ops
from functional_rb.values import Outline
from tests import spec_strategies as model
from tests.backends import Backend

N = 4
"""Rows of the batches that are tested."""
seeds = st.integers(0, 2**32 - 1)


def drawn(spec: Any, words: np.ndarray) -> Any:
    """Values [N, ...] on NumPy."""
    outline = Outline.of(spec, "test")
    leaves = values.draw(numpy_ops, outline, words)
    return nest.unflatten(outline.structure, [leaves[k] for k in range(len(leaves))], as_dict)


def as_dict(container: Any, parts: dict[str, Any], batch_shape: tuple[int, ...]) -> dict[str, Any]:
    return parts


def leaves_of(x: Any) -> list[np.ndarray]:
    return nest.flatten(x, lambda leaf: hasattr(leaf, "dtype"))[0]


def inside(spec: Any, x: Any) -> list[bool]:
    outline = Outline.of(spec, "test")
    found = values.inside(numpy_ops, outline, nest.flatten_as(outline.structure, x))
    return np.all(found, 0).tolist()


def projected(spec: Any, x: Any) -> Any:
    outline = Outline.of(spec, "test")
    leaves = values.nearest(numpy_ops, outline, nest.flatten_as(outline.structure, x))
    return nest.unflatten(outline.structure, [leaves[k] for k in range(len(leaves))], as_dict)


def assert_same(one: Any, other: Any) -> None:
    """Equal to the bit, but for the sign of a zero."""
    for a, b in zip(leaves_of(one), leaves_of(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# --- the core on NumPy, every kind of spec --------------------------------------------------------------------------


@hypothesis.settings(max_examples=250)
@hypothesis.given(spec=model.nests(), seed=seeds)
def test_draws_lie_inside_and_stay_where_they_are(spec: Any, seed: int) -> None:
    spec = frb.specs.freeze(spec)
    rng = np.random.default_rng(seed)
    x = drawn(spec, model.random_words(rng, N, Outline.of(spec, "test").words))
    for leaf, expected in zip(leaves_of(x), Outline.of(spec, "test").leaves, strict=True):
        assert leaf.shape == (N, *expected.shape)
        assert leaf.dtype == expected.dtype
    assert all(model.allows(spec, model.row(spec, x, (i,))) for i in range(N))
    assert inside(spec, x) == [True] * N
    assert_same(projected(spec, x), x)


@hypothesis.settings(max_examples=400)
@hypothesis.given(spec=model.nests(), seed=seeds, share=st.sampled_from([0.02, 0.1, 0.5]))
def test_what_is_inside_and_what_is_nearest(spec: Any, seed: int, share: float) -> None:
    spec = frb.specs.freeze(spec)
    rng = np.random.default_rng(seed)
    x = drawn(spec, model.random_words(rng, N, Outline.of(spec, "test").words))
    x = model.spoilt(rng, spec, x, share)
    assert inside(spec, x) == [model.allows(spec, model.row(spec, x, (i,))) for i in range(N)]
    near = projected(spec, x)
    assert inside(spec, near) == [True] * N
    assert_same(projected(spec, near), near)
    for i in range(N):
        assert_same(model.row(spec, near, (i,)), model.nearest(spec, model.row(spec, x, (i,))))


# --- the backends ---------------------------------------------------------------------------------------------------

MIXED = frb.Composite(
    choice=frb.Categorical(5, [False, True, True, False, True], (2,), "int8", -3),
    each=frb.Categorical(3, [[True, False, True], [False, True, True]], (2,), "uint16", 65000),
    many=frb.MultiCategorical([2, 3], [True, False, False, True, True], (2, 2), "uint32", 2**32 - 3),
    vector=frb.OneHot(4, [False, True, True, False], dtype="float32"),
    vectors=frb.MultiOneHot([2, 3], [False, True, True, False, True], (2, 5), "uint8"),
    text=frb.Text(4, 2, "acz"),
    real=frb.Bounded([-3e38, 0.0, -math.inf, -1.0], [3e38, math.inf, 2.0, -1.0], (4,)),
    half=frb.Bounded(-1, 65504, (2,), "float16"),
    normal=frb.Unbounded((2,)),
    waves=frb.Unbounded((2,), "complex64"),
    whole=frb.Bounded([-(2**31), -7], [2**31 - 1, 5], (2,), "int32"),
    unsigned=frb.Unbounded((), "uint32"),
    byte=frb.Bounded(3, 250, (2,), "uint8"),
    flags=frb.Binary((3,)),
    signs=frb.Binary((), "float16"),
    runs=frb.Sequence({"x": frb.Bounded(1, 2), "in": frb.Sequence(frb.OneHot(3), 2)}, 3),
    web=frb.Graph(frb.Bounded(0, 9, (), "int16"), frb.Binary((), "uint8"), 3, 2, (2,)),
    either=frb.OneOf([frb.Bounded(5, 6, (2,)), frb.Text(2)]),
    agents=frb.Stacked([frb.Unbounded((2,)), frb.Categorical(4, shape=(1,))]),
)
"""Everything that both backends have."""


def ops_of(library: Backend) -> Any:
    if library.library == "jax":
        from jax_backend import ops as jax_ops

        return jax_ops
    from torch_backend import ops as torch_ops

    return torch_ops


def on(library: Backend, function: Any, spec: Any, *arrays: Any) -> list[np.ndarray]:
    """What a function of `values` makes on a backend, as NumPy arrays."""
    outline, ops = Outline.of(spec, "test"), ops_of(library)
    if library.library == "jax":
        import jax

        made = jax.jit(lambda *given: function(ops, outline, *given))(*arrays)
    else:
        made = function(ops, outline, *library.tree(arrays))
    found = made if isinstance(made, list) else [made[k] for k in range(len(made))]
    return [library.numpy(x) for x in found]


def assert_agree(spec: Any, library: Backend, rng: np.random.Generator, n: int) -> None:
    """That a backend makes of words and values what NumPy makes of them."""
    outline = Outline.of(spec, "test")
    words = model.random_words(rng, n, outline.words)
    x = drawn(spec, words)
    for leaf, mine, theirs in zip(outline.leaves, leaves_of(x), on(library, values.draw, spec, words), strict=True):
        assert mine.dtype == theirs.dtype
        if mine.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, theirs)
        else:  # logarithms and sums are rounded as the libraries please
            scale = 1e-2 if leaf.dtype == "float16" else 1e-5
            np.testing.assert_allclose(theirs, mine, rtol=scale, atol=scale)
    x = model.spoilt(rng, spec, x, 0.2)
    leaves = nest.flatten_as(outline.structure, x)
    assert np.all(on(library, values.inside, spec, leaves), 0).tolist() == inside(spec, x)
    assert_same(on(library, values.nearest, spec, leaves), leaves_of(projected(spec, x)))


def test_a_backend_makes_of_words_what_numpy_makes_of_them(library: Backend) -> None:
    assert_agree(MIXED, library, np.random.default_rng(0), 64)


@hypothesis.settings(max_examples=60)
@hypothesis.given(spec=model.nests(), seed=seeds)
def test_torch_makes_of_words_what_numpy_makes_of_them(spec: Any, seed: int) -> None:
    from tests import backends

    with backends.make("torch") as library:
        assert_agree(frb.specs.freeze(spec), library, np.random.default_rng(seed), N)


@pytest.mark.parametrize("batch", [(), 3, (2, 0), (2, 3)])
def test_values_of_any_batch(library: Backend, batch: Any) -> None:
    spec = MIXED if library.library == "torch" else {"a": MIXED.many, "b": MIXED.text}
    rb, lead = library.rb, (batch,) if isinstance(batch, int) else batch
    x = rb.rand(spec, rb.key(0), batch)
    expected = nest.flatten(frb.specs.freeze(spec), values.is_leaf)[0]
    for leaf, unit in zip(leaves_of(x), expected, strict=True):
        assert tuple(leaf.shape) == (*lead, *unit.shape)
        assert str(leaf.dtype).removeprefix("torch.") == unit.dtype
    found = library.numpy(rb.contains(spec, x))
    assert found.shape == lead
    assert found.all()
    assert_same(library_numpy(library, rb.project(spec, x)), library_numpy(library, x))
    zeros = rb.zeros(spec, batch)
    for leaf, other in zip(leaves_of(zeros), leaves_of(x), strict=True):
        assert leaf.shape == other.shape
        assert leaf.dtype == other.dtype
        assert not library.numpy(leaf).any()


def library_numpy(library: Backend, x: Any) -> list[np.ndarray]:
    return [library.numpy(leaf) for leaf in leaves_of(x)]


def test_a_key_draws_the_same_values(library: Backend) -> None:
    rb, spec = library.rb, frb.Unbounded((50,), "int32")
    one, again, other = (library.numpy(rb.rand(spec, rb.key(k))) for k in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()
