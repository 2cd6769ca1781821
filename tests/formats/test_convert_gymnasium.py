"""Gymnasium's spaces as specs and back: identities, and refusals that say what to do."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from packaging.version import Version

import functional_rb as frb
from tests.support import grammar
from tests.support.grammar import FLOATS, INTEGERS, NAMES, REAL, Data, Pair, shapes

LIMITS = {"max_length": 3, "max_edges": 4}
ANY_NODES = Version(gym.__version__) >= Version("1.4")


@st.composite
def boxes(draw: Any) -> Any:
    """Bounds for each element: finite, infinite, or the limits of the dtype."""
    dtype = draw(st.sampled_from([*INTEGERS, *FLOATS, "bool"]))
    shape = draw(shapes(0, 3, 1))
    if dtype == "bool":
        return spaces.Box(0, 1, shape, np.bool_)
    if dtype in FLOATS:
        numbers = st.floats(-100, 100, width=16) | st.sampled_from([-np.inf, np.inf, 0.125])
    else:
        info = np.iinfo(dtype)
        numbers = st.integers(int(info.min), int(info.max)) | st.sampled_from([int(info.min), int(info.max)])
    low, high = (draw(hnp.arrays(dtype, shape, elements=numbers, fill=st.nothing())) for _ in range(2))
    if draw(st.booleans()):
        low, high = (np.broadcast_to(bound.flat[0], shape) for bound in (low, high))
    low, high = np.minimum(low, high) + 0, np.maximum(low, high) + 0  # no -0.0, which shows and means nothing
    if dtype in FLOATS:  # between two infinities of one sign there is no number
        low, high = np.where(np.isposinf(low), 0, low).astype(dtype), np.where(np.isneginf(high), 0, high).astype(dtype)
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


@st.composite
def discretes(draw: Any) -> Any:
    dtype, start = draw(st.sampled_from(INTEGERS)), draw(st.integers(-3, 3))
    start = abs(start) if dtype.startswith("u") else start
    return spaces.Discrete(draw(st.integers(1, 9)), start=start, dtype=np.dtype(dtype).type)


@st.composite
def multi_discretes(draw: Any) -> Any:
    shape, dtype = draw(hnp.array_shapes(max_dims=2, max_side=3)), draw(st.sampled_from(INTEGERS))
    nvec, start = (draw(hnp.arrays(dtype, shape, elements=st.integers(low, 5))) for low in (1, 0))
    return spaces.MultiDiscrete(nvec, dtype=np.dtype(dtype).type, start=start)


@st.composite
def texts(draw: Any) -> Any:
    most = draw(st.integers(1, 4))
    charset = draw(st.sets(st.characters(min_codepoint=1, max_codepoint=300), min_size=1, max_size=4))
    return spaces.Text(most, min_length=draw(st.integers(0, most)), charset=frozenset(charset))


def multi_binaries() -> st.SearchStrategy[Any]:
    several = hnp.array_shapes(min_dims=0, max_dims=3, max_side=3).filter(lambda shape: len(shape) != 1)
    return (st.integers(1, 5) | several).map(spaces.MultiBinary)


def all_spaces() -> st.SearchStrategy[Any]:
    plain = st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries(), texts())
    graphs = st.builds(spaces.Graph, boxes() | discretes(), st.none() | boxes() | discretes())
    return st.recursive(
        plain | graphs,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from(NAMES), inner, max_size=3).map(spaces.Dict),
            st.lists(inner, max_size=3).map(spaces.Tuple),
            st.builds(lambda space: spaces.Sequence(space), inner),
            st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf),
        ),
        max_leaves=5,
    )


@hypothesis.given(all_spaces())
def test_spaces_come_back(space: Any) -> None:
    spec = frb.convert.from_library(space, "gymnasium", **LIMITS)
    back = frb.convert.to_library(spec, "gymnasium")
    assert back == space
    assert repr(back) == repr(space) or "Text" in repr(space)  # the order of names, and dtypes that == lets pass
    assert frb.convert.from_library(back, "gymnasium", **LIMITS) == spec


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.Dict(a=spaces.Discrete(2))])
def test_stacked_sequences_come_back(space: Any) -> None:
    sequence = spaces.Sequence(space, stack=True)
    spec = frb.convert.from_library(sequence, "gymnasium", max_length=5)
    assert spec == frb.specs.Sequence(frb.convert.from_library(space, "gymnasium"), 5, stack=True)
    assert frb.convert.to_library(spec, "gymnasium") == sequence


# Specs that have a space of their own.
SPECS = grammar.Grammar(
    {
        "unbounded": REAL,
        "bounded": REAL,
        "binary": ("bool", "int8"),
        "categorical": INTEGERS,
        "multi_categorical": INTEGERS,
        "text": (),
    },
    nests=("composite", "tuple", "sequence", "one of"),
    axes=(0, 3, 1),
    single=("categorical", "text", "composite", "sequence", "one of"),
    masks=False,
    sequences=((LIMITS["max_length"], False),),
)


@hypothesis.given(SPECS.nests_of(3))
def test_specs_come_back(spec: Any) -> None:
    back = frb.convert.from_library(frb.convert.to_library(spec, "gymnasium"), "gymnasium", **LIMITS)
    assert back == spec
    assert repr(back) == repr(spec)


SAME_VALUES = [
    (frb.specs.ArraySpec((2,), "int16"), frb.Unbounded((2,), "int16")),
    (frb.Unbounded((2,), "bool"), frb.Binary((2,))),
    (frb.Categorical(3, shape=(2,), start=1), frb.specs.MultiCategorical(3, shape=(2,), start=1)),
    (frb.Binary((2,), "uint8"), frb.Bounded(0, 1, (2,), "uint8")),
    (
        frb.specs.Stacked([frb.Binary((2,)), frb.Categorical(3).expand(3)]),
        (frb.Binary((2,)), frb.specs.MultiCategorical([3] * 3)),
    ),
    (frb.Composite({"a": frb.Binary((2,))}, batch_shape=(2,)), frb.Composite({"a": frb.Binary((2,))})),
]


@pytest.mark.parametrize(("spec", "back"), SAME_VALUES, ids=lambda spec: repr(spec)[:30])
def test_specs_with_the_space_of_another(spec: Any, back: Any) -> None:
    assert frb.convert.from_library(frb.convert.to_library(spec, "gymnasium"), "gymnasium") == back


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), frb.Bounded(-1, 1, (2,))),
        (spaces.Box(-np.inf, np.inf, (), np.float64), frb.Unbounded()),
        (spaces.Box(-1e300, 1e300, (), np.float64), frb.Unbounded()),
        (spaces.Box(-np.inf, np.inf, (2,), np.int64), frb.Unbounded((2,), "int32")),
        (spaces.Box(0, 2**64 - 1, (2,), np.uint64), frb.Unbounded((2,), "uint32")),
        (spaces.Box(0, np.inf, (2,), np.int64), frb.Bounded(0, 2**31 - 1, (2,), "int32")),
        (spaces.Box(-7, 7, (2,), np.int64), frb.Bounded(-7, 7, (2,), "int32")),
        (spaces.Box(-7, 7, (2,), np.int16), frb.Bounded(-7, 7, (2,), "int16")),
        (spaces.Discrete(4, start=-1), frb.Categorical(4, start=-1)),
        (spaces.MultiDiscrete([3, 4]), frb.specs.MultiCategorical([3, 4])),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(4))]), (frb.specs.Sequence(frb.Categorical(4), 3),)),
    ],
    ids=repr,
)
def test_narrow_stores_32_bits(space: Any, spec: Any) -> None:
    assert frb.convert.from_library(space, "gymnasium", narrow=True, max_length=3) == spec


class Odd(spaces.Space[Any]):
    """A kind of space that somebody made."""


def below(space: Any) -> Any:
    return spaces.Dict(a=spaces.Tuple([space]))


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (below(Odd((), np.float32)), TypeError, r"leaf 'a/0': expected a space of Gymnasium \(Box, .*wrap the env"),
        (below(spaces.Box(0, 0, (2,), np.bool_)), ValueError, "leaf 'a/0': truth values that are always the same"),
        (below(spaces.Box(0, 1, (2,), np.longdouble)), TypeError, "leaf 'a/0': dtype .* cannot be stored"),
        (below(spaces.Sequence(spaces.Discrete(2))), ValueError, r"leaf 'a/0': .*how many elements.*give max_length="),
        (below(spaces.Graph(spaces.Discrete(2), None)), ValueError, r"leaf 'a/0': .*how many nodes.*give max_length="),
        (spaces.Dict({3: spaces.Discrete(2)}), TypeError, "the whole: expected names that are strings, got 3"),
        (below(spaces.Discrete(2**40)), ValueError, r"leaf 'a/0': Categorical: expected fewer than 2\^31"),
        (below(spaces.Text(3, charset="a\0")), ValueError, "leaf 'a/0': Text: expected a charset"),
        ("Discrete(2)", TypeError, "the whole: expected a space of Gymnasium"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_spaces_without_a_spec_are_refused(space: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^from_library: {message}"):
        frb.convert.from_library(space, "gymnasium")


def test_what_does_not_fit_into_32_bits_is_refused() -> None:
    for space in (spaces.Box(-(2**40), 0, (2,), np.int64), spaces.Box(0, 2**40, (2,), np.int64)):
        with pytest.raises(ValueError, match=r"leaf 'a/0': bounds .* do not fit into int32; leave narrow=True out"):
            frb.convert.from_library(below(space), "gymnasium", narrow=True)
    with pytest.raises(ValueError, match=r"leaf 'a/0': Categorical: choices from .* do not fit into int32"):
        frb.convert.from_library(below(spaces.Discrete(2, start=2**40)), "gymnasium", narrow=True)
    graph = spaces.Graph(spaces.Discrete(2), spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"how many edges.*give max_edges="):
        frb.convert.from_library(graph, "gymnasium", max_length=3)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (frb.specs.OneHot(3), TypeError, r"no space has the values of OneHot\(3\); write spec.to_categorical\(\)"),
        (frb.specs.MultiOneHot([3]), TypeError, r"write spec.to_categorical\(\)"),
        (frb.specs.NonTensor(), TypeError, "leave it out"),
        ([frb.Binary()], TypeError, "write a tuple"),
        (Pair(frb.Binary(), frb.Binary()), TypeError, "write a dict or a tuple"),
        (Data(frb.Binary(), frb.Binary()), TypeError, "write a dict or a tuple"),
        (frb.Composite.like(dict, {}), TypeError, "a space has no dict"),
        (frb.Categorical(3, [True, False, True]), TypeError, r"no masks; leave it out, and give it to space.sample"),
        (frb.specs.MultiCategorical([2], [True, False]), TypeError, "no masks"),
        (frb.specs.Text(3).expand(2), TypeError, r"one text, not \(2,\) of them; write a tuple"),
        (frb.specs.Sequence(frb.Binary(), 2, batch_shape=(2,)), TypeError, r"one value, not \(2,\) of them; index"),
        (frb.Unbounded((), "bfloat16"), TypeError, "no space has the dtype bfloat16"),
        (frb.Unbounded((), "complex64"), TypeError, "no space has the dtype complex64"),
        (frb.Binary((), "float32"), TypeError, r"no space has zeros and ones alone of dtype float32; write Binary"),
        (frb.Categorical(256, dtype="uint8"), ValueError, "keeps the 256 choices as uint8; give the spec a wider"),
        (
            frb.specs.MultiCategorical([256], dtype="uint8"),
            ValueError,
            "keeps the 256 choices as uint8; give the spec a w",
        ),
        pytest.param(
            *(frb.specs.Graph(frb.specs.MultiCategorical([2]), None, 3), ValueError, "node_space should be"),
            marks=pytest.mark.skipif(ANY_NODES, reason="since Gymnasium 1.4 nodes may be of any space"),
        ),
        (None, TypeError, "no space has the values of None"),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_specs_without_a_space_are_refused(spec: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^to_library: leaf 'a/0': .*{message}"):
        frb.convert.to_library({"a": (spec,)}, "gymnasium")


def test_choices_change_their_form() -> None:
    pairs = [
        (frb.Categorical(3), frb.specs.OneHot(3)),
        (frb.Categorical(3, [True, False, True], (2,)), frb.specs.OneHot(3, [True, False, True], (2, 3))),
        (frb.specs.MultiCategorical([3, 2]), frb.specs.MultiOneHot([3, 2])),
        (
            frb.specs.MultiCategorical([1, 2], [True, True, False], (4, 2)),
            frb.specs.MultiOneHot([1, 2], [True, True, False], (4, 3)),
        ),
    ]
    for numbers, vectors in pairs:
        assert numbers.to_one_hot() == vectors
        assert vectors.to_categorical() == numbers
        assert numbers.to_one_hot("int8").dtype == "int8"
        assert vectors.to_categorical("int64", start=0).dtype == "int64"
    assert frb.specs.OneHot(3).to_categorical(start=2).domain == (2, 4, True)
    assert frb.specs.MultiCategorical(3, shape=(2, 2)).to_one_hot() == frb.specs.MultiOneHot([3, 3], shape=(2, 6))
    with pytest.raises(ValueError, match=r"same numbers of choices in all rows.*a part of an item for each"):
        frb.specs.MultiCategorical([[1, 2], [3, 4]]).to_one_hot()
    assert frb.convert.to_library(frb.specs.OneHot(3).to_categorical("int64"), "gymnasium") == spaces.Discrete(3)


VECTORS = grammar.Grammar(dict.fromkeys(("one_hot", "multi_one_hot"), ("bool", "int8", "float32")), axes=(0, 2, 1))


@hypothesis.given(VECTORS.one_leaf())
def test_vectors_come_back(spec: Any) -> None:
    assert spec.to_categorical().to_one_hot(spec.dtype) == spec


def test_gymnasium_is_needed_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for call in (
        lambda: frb.convert.from_library(gym.spaces.Discrete(2), "gymnasium"),
        lambda: frb.convert.to_library(frb.Binary(), "gymnasium"),
    ):
        with pytest.raises(ImportError, match=r"_library needs gymnasium: pip install gymnasium"):
            call()


def test_options_and_libraries_that_are_none() -> None:
    with pytest.raises(TypeError, match="from_library: specs of torchrl have no use for narrow; leave it out"):
        frb.convert.from_library(None, "torchrl", narrow=True)
    with pytest.raises(ValueError, match=r"expected library as one of \['dm_env', 'gymnasium', 'torchrl'\], got 'gym'"):
        frb.convert.to_library(frb.Binary(), "gym")  # type: ignore[arg-type]  # refused
