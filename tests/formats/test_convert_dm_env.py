"""dm_env's specs and back; the tests need dm_env, which the extra "dev" brings."""

from __future__ import annotations

import sys
from typing import Any

import hypothesis
import numpy as np
import pytest

import functional_rb as frb
from functional_rb.convert import to_library
from tests.support import grammar
from tests.support.grammar import INTEGERS, REAL, Data

specs = pytest.importorskip("dm_env.specs", reason="needs dm-env, which the extra dev brings")

# Specs that have one of their own in dm_env.
SPECS = grammar.Grammar(
    {
        "unbounded": (*REAL, "bool", "complex64"),
        "bounded": REAL,
        "binary": ("bool",),
        "categorical": INTEGERS,
        "object": (),
    },
    nests=("composite", "list", "tuple", "pair"),
    axes=(0, 3, 1),
    single=("categorical", "composite"),
    masks=False,
    starts=False,
)


def same(a: Any, b: Any) -> bool:
    """Whether two nests are the same, class by class: `==` of dm_env takes a `DiscreteArray` for a `BoundedArray`."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@hypothesis.given(SPECS.nests_of(3))
def test_specs_come_back(spec: Any) -> None:
    theirs = to_library(spec, "dm_env")
    back = frb.convert.from_library(theirs, "dm_env")
    assert back == spec
    assert repr(back) == repr(spec)
    assert same(to_library(back, "dm_env"), theirs)


def test_each_kind_has_its_own() -> None:
    pairs = [
        (specs.Array((2,), np.float64), frb.Unbounded((2,), "float64")),
        (specs.Array((), bool), frb.Unbounded((), "bool")),
        (specs.Array((3,), object), frb.specs.NonTensor((3,))),
        (specs.BoundedArray((2,), np.int8, [0, 1], 5), frb.Bounded([0, 1], 5, (2,), "int8")),
        (
            specs.BoundedArray((2,), np.uint64, np.uint64([0, 1]), np.uint64([5, 2**64 - 2])),
            frb.Bounded([0, 1], [5, 2**64 - 2], (2,), "uint64"),
        ),
        (specs.BoundedArray((), bool, False, True), frb.Binary()),
        (specs.DiscreteArray(4, np.int64), frb.Categorical(4, dtype="int64")),
    ]
    for theirs, ours in pairs:
        assert frb.convert.from_library(theirs, "dm_env") == ours
        assert same(to_library(ours, "dm_env"), theirs)
    assert frb.convert.from_library(specs.StringArray((2,)), "dm_env") == frb.specs.NonTensor((2,))
    assert same(to_library(frb.specs.ArraySpec((2,), "int8"), "dm_env"), specs.Array((2,), np.int8))
    assert same(to_library(frb.Binary((), "uint8"), "dm_env"), specs.BoundedArray((), np.uint8, 0, 1))
    assert same(to_library(frb.Categorical(3, start=2), "dm_env"), specs.BoundedArray((), np.int32, 2, 4))
    assert same(to_library(frb.Categorical(3, shape=(2,)), "dm_env"), specs.BoundedArray((2,), np.int32, 0, 2))
    assert same(
        to_library(frb.specs.MultiCategorical([3, 5]), "dm_env"),
        specs.BoundedArray((2,), np.int32, 0, [2, 4]),
    )


def test_names_are_paths() -> None:
    made = to_library({"a": [frb.Binary(), {"b": frb.specs.NonTensor()}], "c": frb.Categorical(2)}, "dm_env")
    assert (made["a"][0].name, made["a"][1]["b"].name, made["c"].name) == ("a/0", "a/1/b", "c")
    assert to_library(frb.Binary(), "dm_env").name is None


def test_narrow_stores_32_bits() -> None:
    wide = [
        (specs.Array((), np.float64), frb.Unbounded()),
        (specs.BoundedArray((), np.float64, -1e300, 0.1), frb.Bounded(-np.inf, 0.1)),
        (specs.BoundedArray((), np.int64, 0, 2**63 - 1), frb.Bounded(0, 2**31 - 1, (), "int32")),
        (specs.DiscreteArray(4, np.int64), frb.Categorical(4)),
    ]
    for theirs, ours in wide:
        assert frb.convert.from_library([{"a": theirs}], "dm_env", narrow=True) == [frb.Composite(a=ours)]
    with pytest.raises(ValueError, match=r"^from_library: leaf '0/a': bounds .* do not fit into int32"):
        frb.convert.from_library([{"a": specs.BoundedArray((), np.int64, 0, 2**40)}], "dm_env", narrow=True)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (np.zeros(3), TypeError, "expected a spec of dm_env"),
        (specs.BoundedArray((), bool, False, False), ValueError, "truth values that are always the same"),
        (specs.Array((), "U5"), TypeError, "cannot be stored"),
        ({3: specs.Array((), int)}, TypeError, "expected names that are strings, got 3"),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_what_is_no_spec_is_refused(spec: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^from_library: leaf 'a/0': .*{message}"):
        frb.convert.from_library({"a": (spec,)}, "dm_env")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (frb.specs.OneHot(3), r"no spec of dm_env has the values of OneHot\(3\); write spec.to_categorical\(\)"),
        (frb.specs.Text(3).expand(2, 3), r"write NonTensor\(\(2, 3\)\)"),
        (frb.specs.Sequence(frb.Binary(), 2), "write a dict, a tuple or a list of its parts"),
        (frb.specs.Stacked([frb.Binary()]), "write a dict, a tuple or a list of its parts"),
        (frb.Composite.like(dict, {}), "write a dict, a tuple or a list of its parts"),
        (Data(frb.Binary(), frb.Binary()), "write a dict, a tuple or a list of its parts"),
        (frb.Categorical(3, [True, False, True]), "no masks; leave it out"),
        (frb.Unbounded((), "bfloat16"), "no dtype bfloat16"),
        (frb.Binary((), "float32"), "zeros and ones alone of dtype float32"),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_specs_that_dm_env_lacks_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^to_library: leaf 'a/0': .*{message}"):
        to_library({"a": (spec,)}, "dm_env")


def test_dm_env_is_needed_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_env.specs", None)
    for call in (
        lambda: frb.convert.from_library(specs.DiscreteArray(2), "dm_env"),
        lambda: to_library(frb.Binary(), "dm_env"),
    ):
        with pytest.raises(ImportError, match=r"_library needs dm_env: pip install dm-env"):
            call()
