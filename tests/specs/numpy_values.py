"""Values of specs as the core over NumPy makes them, and what tests of values draw."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np

import functional_rb as frb
from functional_rb.base import nest
from functional_rb.specs import numpy_ops, values
from functional_rb.specs.values import Outline
from tests.specs.value_model import random_words
from tests.support import grammar
from tests.support.grammar import PARTED, REAL

# Rows of the batches that are tested.
N = 4
seeds = st.integers(0, 2**32 - 1)
# What NumPy computes with; `ArraySpec` says nothing of values.
ARRAYS = grammar.leaves_of(("bool", *REAL, "complex64"), "any", "object")
# Of something: of no arrays, no batch is known.
SPECS = grammar.Grammar(ARRAYS, (*PARTED, "stacked", "agents", "dict", "tuple"), axes=(0, 2, 0), least=1).nests_of()


def some(spec: Any, rng: np.random.Generator, n: int = N) -> Any:
    """So many values that are drawn of a spec, some of them by the words at both ends."""
    return drawn(spec, random_words(rng, n, Outline.of(spec, "test").words))


def drawn(spec: Any, words: np.ndarray) -> Any:
    """Values [N, ...] on NumPy."""
    outline = Outline.of(spec, "test")
    leaves = values.draw(numpy_ops, outline, words)
    return nest.unflatten(outline.structure, [leaves[k] for k in range(len(leaves))])


def members(spec: Any, x: Any) -> list[tuple[Any, Any]]:
    """The specs that a nest is made of, each with its part of a nest of values."""
    outline = Outline.of(spec, "test")
    leaves = nest.flatten_as(outline.structure, x)
    return [(member.spec, member.gather(leaves)) for member in outline.members]


def leaves_of(x: Any) -> list[np.ndarray]:
    """In the order of their names."""
    structure = nest.flatten(x, lambda leaf: hasattr(leaf, "dtype"))[1].sorted()
    return nest.flatten_as(structure, x)


def inside(spec: Any, x: Any) -> list[bool]:
    outline = Outline.of(spec, "test")
    found = values.inside(numpy_ops, outline, nest.flatten_as(outline.structure, x))
    return np.all(found, 0).tolist()


def projected(spec: Any, x: Any) -> Any:
    outline = Outline.of(spec, "test")
    leaves = values.nearest(numpy_ops, outline, nest.flatten_as(outline.structure, x))
    return nest.unflatten(outline.structure, [leaves[k] for k in range(len(leaves))])


def assert_same(one: Any, other: Any) -> None:
    """Equal to the bit, but for the sign of a zero."""
    for a, b in zip(leaves_of(one), leaves_of(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# --- the backends ---------------------------------------------------------------------------------------------------


# Everything that both backends have.
MIXED = frb.Composite(
    choice=frb.Categorical(5, [False, True, True, False, True], (2,), "int8", -3),
    each=frb.Categorical(3, [[True, False, True], [False, True, True]], (2,), "uint16", 65000),
    many=frb.specs.MultiCategorical([2, 3], [True, False, False, True, True], (2, 2), "uint32", 2**32 - 3),
    vector=frb.specs.OneHot(4, [False, True, True, False], dtype="float32"),
    vectors=frb.specs.MultiOneHot([2, 3], [False, True, True, False, True], (2, 5), "uint8"),
    text=frb.specs.Text(4, 2, "acz"),
    real=frb.Bounded([-3e38, 0.0, -math.inf, -1.0], [3e38, math.inf, 2.0, -1.0], (4,)),
    half=frb.Bounded(-1, 65504, (2,), "float16"),
    normal=frb.Unbounded((2,)),
    waves=frb.Unbounded((2,), "complex64"),
    whole=frb.Bounded([-(2**31), -7], [2**31 - 1, 5], (2,), "int32"),
    unsigned=frb.Unbounded((), "uint32"),
    byte=frb.Bounded(3, 250, (2,), "uint8"),
    flags=frb.Binary((3,)),
    signs=frb.Binary((), "float16"),
    runs=frb.specs.Sequence({"x": frb.Bounded(1, 2), "in": frb.specs.Sequence(frb.specs.OneHot(3), 2)}, 3),
    web=frb.specs.Graph(frb.Bounded(0, 9, (), "int16"), frb.Binary((), "uint8"), 3, 2, (2,)),
    either=frb.specs.OneOf([frb.Bounded(5, 6, (2,)), frb.specs.Text(2)]),
    agents=frb.specs.Stacked([frb.Unbounded((2,)), frb.Categorical(4, shape=(1,))]),
)


def graph(nodes: Any, edges: Any = None, links: Any = None) -> Any:
    from functional_rb.specs.graph import GraphInstance

    return GraphInstance(np.asarray(nodes, np.float32), edges, links)
