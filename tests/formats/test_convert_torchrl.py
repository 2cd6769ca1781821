"""torchrl's specs and back; the tests need torchrl, which the extra "bench" brings."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from tensordict import TensorDict, tensorclass

import functional_rb as frb
import torch_backend as rb
from functional_rb.convert import to_library
from tests.support import grammar
from tests.support.grammar import INTEGERS, REAL, Data

data = pytest.importorskip("torchrl.data", reason="needs torchrl, which the extra bench brings")

NUMBERS = (*REAL, "bfloat16")


VECTORS = ("bool", "int8", "float32")
# Specs that have one of their own in torchrl.
SPECS = grammar.Grammar(
    {
        "unbounded": (*NUMBERS, "bool"),
        "bounded": NUMBERS,
        "binary": ("bool", "int8", "uint8", "float32"),
        "categorical": INTEGERS,
        "multi_categorical": INTEGERS,
        "one_hot": VECTORS,
        "multi_one_hot": VECTORS,
        "object": (),
    },
    nests=("composite", "agents", "uneven"),
    axes=(0, 3, 1),
    starts=False,
    names=("a", "b", "c_"),  # theirs refuses names such as shape
)


@hypothesis.given(SPECS.nests_of(3))
def test_specs_come_back(spec: Any) -> None:
    theirs = to_library(spec, "torchrl")
    back = frb.convert.from_library(theirs, "torchrl")
    assert back == spec
    assert repr(back) == repr(spec)
    assert to_library(back, "torchrl") == theirs


MASK = torch.tensor([True, False, True])
THEIRS = {
    "OneHot": data.OneHot(3, mask=MASK),
    "Binary": data.Binary(4),
    "Binary without axes": data.Binary(shape=()),
    "Categorical": data.Categorical(3, (2,), mask=MASK),
    "Categorical of bools": data.Categorical(2, dtype=torch.bool),
    "MultiCategorical": data.MultiCategorical(torch.tensor([[1, 2], [3, 4]])),
    "MultiOneHot": data.MultiOneHot([2, 1], mask=MASK),
    "NonTensor": data.NonTensor((2,)),
    "UnboundedDiscrete": data.Unbounded((2,), dtype=torch.uint8),
    "UnboundedContinuous": data.UnboundedContinuous((2,)),
    "BoundedContinuous": data.Bounded(-1, torch.tensor([1.0, torch.inf])),
    "BoundedDiscrete": data.Bounded(0, 3, (2,), dtype=torch.int16),
    "Composite": data.Composite({"a": data.Composite(b=data.Categorical(3, (2, 4)), shape=(2, 4))}, shape=(2,)),
    "StackedComposite": torch.stack([data.Composite(a=data.OneHot(3)), data.Composite(a=data.OneHot(4))], 0),
    "Stacked": data.Stacked(data.Unbounded((3,)), data.Unbounded((4,)), dim=1),
}


@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
def test_theirs_come_back(theirs: Any) -> None:
    ours = frb.convert.from_library(theirs, "torchrl")
    assert to_library(ours, "torchrl") == theirs
    if not isinstance(ours, frb.specs.Stacked):
        assert tuple(theirs.shape) == (ours.batch_shape if isinstance(ours, frb.Composite) else ours.shape)


SINGLE = {
    "of one": data.MultiCategorical([5]),
    "of one, by shape": data.MultiCategorical(torch.tensor([5]), shape=(1,), dtype=torch.int8),
    "of one with its axis": data.MultiCategorical([5], remove_singleton=False),
    "of one in a row": data.MultiCategorical([5], shape=(3, 1)),
    "of one with a mask": data.MultiCategorical([3], mask=MASK),
    "in a composite": data.Composite(a=data.MultiCategorical([5]), b=data.MultiCategorical([5, 2])),
    "in a batch": data.Composite(a=data.MultiCategorical([5], shape=(2, 1)), shape=(2,)),
}
UNSTACKED = {name: spec for name, spec in THEIRS.items() if "Stacked" not in name}  # those may be drawn one by one


@pytest.mark.parametrize("theirs", (UNSTACKED | SINGLE).values(), ids=UNSTACKED | SINGLE)
def test_values_of_theirs_fit_ours_and_ours_theirs(theirs: Any) -> None:
    ours = frb.convert.from_library(theirs, "torchrl")
    if theirs is not THEIRS["NonTensor"]:
        state = rb.add(rb.init(frb.BufferSpec({"x": ours}, 4)), {"x": theirs.rand((4,))}, validate=True)
        assert int(rb.size(state)) == 4
        assert theirs.is_in(rb.rand(ours, rb.key(0)))
    back = frb.convert.from_library(to_library(ours, "torchrl"), "torchrl")
    assert (back, repr(back)) == (ours, repr(ours))


@tensorclass
class Agent:
    x: Any


def test_containers_are_kept() -> None:
    for kind in (Agent, TensorDict):
        ours = frb.Composite.like(kind, {"x": frb.Unbounded((2, 3))}, (2,))
        assert to_library(ours, "torchrl").data_cls is kind
        assert frb.convert.from_library(to_library(ours, "torchrl"), "torchrl") == ours


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (data.Choice([data.Binary(2), data.Binary(2)]), TypeError, r"does not say which.*OneOf\(\[...\]\)"),
        (data.Categorical(-1), ValueError, "the number of choices is not known"),
        (data.Unbounded((-1, 2)), ValueError, "expected a shape of sizes >= 0"),
        (data.Bounded(0, 0, (2,), dtype=torch.bool), TypeError, "Bounded: expected a dtype of integers or real"),
        (None, TypeError, "expected a spec of torchrl, got None"),
    ],
    ids=lambda x: repr(x)[:30],
)
def test_what_has_no_counterpart_is_refused(spec: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^from_library: leaf 'a/b': .*{message}"):
        frb.convert.from_library(data.Composite(a=data.Composite(b=spec)), "torchrl")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (frb.specs.Text(3), r"no spec of torchrl has the values of Text\(3\); write NonTensor\(\(\)\)"),
        (frb.specs.Sequence(frb.Binary(), 2), "write a Composite of what is stored: spec.parts"),
        ((frb.Binary(),), "write a dict of its parts"),
        (Data(frb.Binary(), frb.Binary()), "write a dict of its parts"),
        (frb.Categorical(3, start=1), "numbered from 0 on, not from 1; write start=0"),
        (frb.specs.MultiCategorical([3], start=1), "numbered from 0 on, not from 1"),
        (frb.Unbounded((), "complex64"), "no spec of torchrl has complex numbers"),
        (frb.specs.Stacked([frb.Binary((2,)), frb.Unbounded((2,))]), "specs of one kind side by side"),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_specs_that_torchrl_lacks_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^to_library: leaf 'a/b': .*{message}"):
        to_library({"a": {"b": spec}}, "torchrl")


PLAIN = ("int8", "int32", "int64", "uint8", "float32", "float64")


def masked(spec: Any) -> bool:
    return getattr(spec, "mask", None) is not None


def compared() -> st.SearchStrategy[Any]:
    """Specs of dtypes that torch computes with, in a composite."""
    dtypes = {
        kind: tuple(dtype for dtype in known if dtype in ("bool", *PLAIN)) for kind, known in SPECS.leaves.items()
    }
    some = dataclasses.replace(SPECS, leaves={kind: known for kind, known in dtypes.items() if known})
    # Theirs looks at masked vectors of bools only.
    leaf = some.one_leaf().filter(lambda spec: not masked(spec) or spec.dtype == "bool" or spec.shape == spec.axes)
    return st.builds(frb.Composite, st.dictionaries(st.sampled_from("abc"), leaf, min_size=1, max_size=3))


@hypothesis.given(compared())
def test_shapes_and_containment_agree(spec: Any) -> None:
    theirs = to_library(spec, "torchrl")
    value = rb.rand(spec, rb.key(0))
    assert theirs.is_in(TensorDict(value, []))
    assert {name: tuple(part.shape) for name, part in theirs.zero().items()} == spec.shape
    for name, part in spec.items():
        x = value[name]
        outside = ~x if x.dtype == torch.bool else torch.full_like(x, 77)  # more than any bound but an infinite one
        # Theirs takes what other rows allow, and with a mask fails for a number outside, or takes a vector.
        if x.numel() and not isinstance(part, frb.specs.MultiCategorical) and not masked(part):
            assert bool(rb.contains(part, outside)) == bool(theirs[name].is_in(outside)), (part, outside)


NUMERIC = dataclasses.replace(
    SPECS, leaves={"bounded": PLAIN, "categorical": ("int8", "int32", "int64", "uint8")}, masks=False
)


@hypothesis.given(NUMERIC.one_leaf(), st.integers(0, 2**31 - 1))
def test_projections_agree(spec: Any, seed: int) -> None:
    """Of numbers; where choices are masked, or vectors, theirs draws one by chance."""
    noise = torch.randn(spec.shape, generator=torch.Generator().manual_seed(seed)) * 40
    x = noise.to(getattr(torch, spec.dtype))
    assert torch.equal(rb.project(spec, x), to_library(spec, "torchrl").project(x.clone()))


def test_torchrl_is_needed_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrl.data.tensor_specs", None)
    for call in (
        lambda: frb.convert.from_library(THEIRS["Binary"], "torchrl"),
        lambda: to_library(frb.Binary(), "torchrl"),
    ):
        with pytest.raises(ImportError, match=r"_library needs torchrl: pip install torchrl"):
            call()
