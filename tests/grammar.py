"""Specs drawn from a grammar: every kind of leaf, and nests of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

import functional_rb as frb
from functional_rb.specs.composite import members
from functional_rb.values import Outline

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = ("bool", *INTEGERS, *FLOATS, "bfloat16", "complex64")
NAMES = st.text("abc_/.\u00e9", min_size=1, max_size=3)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Data:
    x: Any
    y: Any


class Box:
    """Stands for a container of torch."""


def shapes(most: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    return hnp.array_shapes(min_dims=0, max_dims=most, min_side=1, max_side=3)


@st.composite
def bounded(draw: Any, dtypes: tuple[str, ...] = (*INTEGERS, *FLOATS, "bfloat16")) -> Any:
    """Scalar bounds, or an array of them, finite or not."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(shapes())
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        numbers = st.integers(int(info.min), int(info.max))
    else:
        numbers = st.floats(-100, 100, width=16) | st.sampled_from([-np.inf, np.inf, 0.1, -0.0])
    kind = object if dtype in INTEGERS else float
    bounds = [
        np.array([draw(numbers) for _ in range(int(np.prod(given)))], kind).reshape(given)
        for given in (draw(st.sampled_from([shape, ()])), draw(st.sampled_from([shape, ()])))
    ]
    low, high = (np.broadcast_to(bound, shape) for bound in bounds)
    low, high = np.minimum(low, high), np.maximum(low, high)
    if dtype in INTEGERS:  # an array of Python's numbers is none of numbers
        low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    else:  # between two infinities of one sign there is no number
        low, high = np.where(low == np.inf, 0.0, low), np.where(high == -np.inf, 0.0, high)
    return frb.Bounded(low, high, shape, dtype)


@st.composite
def masks(draw: Any, shape: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    """None, or truth values [*shape, sum(counts)] of which one in each piece is true at least."""
    if draw(st.booleans()):
        return None
    mask = draw(hnp.arrays(bool, (*shape, sum(counts))))
    for end in np.cumsum(counts):
        mask[..., end - 1] = True
    return mask


@st.composite
def categorical(draw: Any, masked: bool = True, shape: Any = None) -> Any:
    n, start = draw(st.integers(1, 5)), draw(st.integers(-3, 3))
    dtype = draw(st.sampled_from([d for d in INTEGERS if start >= 0 or d.startswith("int")]))
    shape = draw(shapes(2)) if shape is None else shape
    return frb.Categorical(n, draw(masks(shape, (n,))) if masked else None, shape, dtype, start)


@st.composite
def one_hot(draw: Any, masked: bool = True) -> Any:
    n, shape, dtype = draw(st.integers(1, 5)), draw(shapes(2)), draw(st.sampled_from(["bool", "int8", "float32"]))
    return frb.OneHot(n, draw(masks(shape, (n,))) if masked else None, (*shape, n), dtype)


@st.composite
def multi_categorical(draw: Any, masked: bool = True) -> Any:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=3))
    dtype = draw(st.sampled_from(INTEGERS))
    if masked and draw(st.booleans()):
        nvec = draw(hnp.arrays("int64", shape[-1:], elements=st.integers(1, 4)))
        mask = draw(masks(shape[:-1], tuple(int(n) for n in nvec)))
        return frb.MultiCategorical(nvec, mask, shape, dtype, draw(st.integers(0, 3)))
    nvec, start = (draw(hnp.arrays("int64", shape, elements=st.integers(low, 4))) for low in (1, 0))
    return frb.MultiCategorical(nvec, None, None, dtype, start)


@st.composite
def multi_one_hot(draw: Any, masked: bool = True) -> Any:
    nvec, shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)), draw(shapes(1))
    dtype = draw(st.sampled_from(["bool", "int8", "float32"]))
    mask = draw(masks(shape, tuple(nvec))) if masked else None
    return frb.MultiOneHot(nvec, mask, (*shape, sum(nvec)), dtype)


@st.composite
def text(draw: Any, shape: Any = None) -> Any:
    most = draw(st.integers(1, 4))
    charset = draw(st.text(st.characters(min_codepoint=1, max_codepoint=300), min_size=1, max_size=5))
    shape = draw(shapes(1)) if shape is None else shape
    return frb.Text(most, draw(st.integers(0, most)), charset, (*shape, most))


def leaves() -> st.SearchStrategy[Any]:
    """A spec of one leaf, of any kind."""
    return st.one_of(
        st.builds(frb.ArraySpec, shapes(), st.sampled_from(NUMBERS)),
        st.builds(frb.Unbounded, shapes(), st.sampled_from(NUMBERS)),
        st.builds(frb.Binary, shapes(), st.sampled_from(NUMBERS[:-1])),
        bounded(),
        categorical(),
        one_hot(),
        multi_categorical(),
        multi_one_hot(),
        text(),
        st.builds(frb.NonTensor, shapes()),
    )


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.dictionaries(NAMES, inner, max_size=3)
    counts, arrays = st.integers(1, 3), inner.filter(of_arrays)
    return st.one_of(
        st.builds(frb.Composite, parts),
        st.builds(lambda parts: frb.Composite.like(Box, parts), parts),
        parts.map(lambda parts: frb.Composite(parts).unsqueeze(0) if expandable(parts) else frb.Composite(parts)),
        st.lists(inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
        st.builds(Pair, inner, inner),
        st.builds(Data, inner, inner),
        st.builds(lambda member: frb.Stacked([frb.Composite(a=member), frb.Composite(b=member)]), inner),
        st.builds(frb.Sequence, arrays, counts, st.booleans(), shapes(1)),
        st.builds(frb.Graph, arrays, st.none() | arrays, counts, counts, shapes(1)),
        st.builds(frb.OneOf, st.lists(arrays, min_size=1, max_size=2), shapes(1)),
    )


def of_arrays(nest: Any) -> bool:
    """Whether there are no objects in it."""
    return all(isinstance(leaf, frb.ArraySpec) for leaf in Outline.of(nest, "grammar").leaves)


def expandable(nest: Any) -> bool:
    """Whether all there is takes a further axis in front."""
    return all(isinstance(leaf, frb.ArraySpec | frb.NonTensor) for _, leaf in members(nest))


def specs(most: int = 6) -> st.SearchStrategy[Any]:
    """A spec, or a nest of them."""
    return st.recursive(leaves(), _containers, max_leaves=most)
