"""Specs as JSON: what is read is what was written, and reading runs nothing."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import subprocess
import sys
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from tensordict import TensorDict, tensorclass

import functional_rb as frb
from tests.support import grammar
from tests.support.children import ROOT, program
from tests.support.grammar import Box, Data, Pair

KNOWN = (Pair, Data, Box)
SOME = dataclasses.replace(grammar.ALL, axes=(0, 3, 1))


def types_of(value: Any) -> Any:
    """A value with the types of all there is in it, spelled out."""
    if isinstance(value, frb.Composite):
        return ("Composite", value._container, value.batch_shape, [(k, types_of(v)) for k, v in value.items()])
    if isinstance(value, dict):
        return (type(value), [(k, types_of(v)) for k, v in value.items()])
    if isinstance(value, (tuple, list)):
        return (type(value), [types_of(v) for v in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), [types_of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init])
    return (type(value), value)


@hypothesis.given(SOME.nests_of(3))
def test_what_is_read_is_what_was_written(spec: Any) -> None:
    text = frb.convert.to_json(spec)
    back = frb.convert.from_json(text, KNOWN)
    assert back == spec
    assert types_of(back) == types_of(spec)
    assert frb.convert.to_json(back) == text
    assert frb.convert.from_json(text.encode(), KNOWN) == spec


@hypothesis.given(SOME.one_leaf(), SOME.one_leaf())
def test_texts_are_equal_where_specs_are(a: Any, b: Any) -> None:
    assert (frb.convert.to_json(a) == frb.convert.to_json(b)) == (a == b)
    assert frb.convert.to_json(copy.deepcopy(a)) == frb.convert.to_json(a)


def test_zero_has_one_text() -> None:
    for made in (lambda zero: frb.Bounded(zero, 1.0), lambda zero: frb.BufferSpec(STEP, 4, frb.Prioritized(zero))):
        assert frb.convert.to_json(made(-0.0)) == frb.convert.to_json(made(0.0))


def reward(achieved: Any, goal: Any) -> Any:
    return (achieved - goal).sum(-1)


GOAL = frb.Unbounded((2,))
STEP = {
    "obs": {"desired_goal": GOAL, "achieved_goal": GOAL},
    "frames": frb.Unbounded((4, 8), "uint8"),
    "action": frb.Categorical(4),
    "next": {
        "obs": {"desired_goal": GOAL, "achieved_goal": GOAL},
        "frames": frb.Unbounded((4, 8), "uint8"),
        "reward": frb.Unbounded(),
        "done": frb.Binary(),
        "terminated": frb.Binary(),
    },
}
# Every sampler, every writer, every transform, every storage.
BUFFERS = {
    "usual": frb.BufferSpec(STEP, 5),
    "prioritized": frb.BufferSpec(STEP, 5, frb.Prioritized(1, 0.5, "ever"), batch_size=3),
    "race": frb.BufferSpec(STEP, 5, frb.Prioritized(replacement=False, max_times_sampled=3)),
    "uniform": frb.BufferSpec(STEP, 5, frb.Uniform(2), frb.Reservoir()),
    "recency": frb.BufferSpec(STEP, 5, frb.Recency(2)),
    "staleness": frb.BufferSpec(STEP, 5, frb.Staleness("action", max_staleness=4)),
    "fifo": frb.BufferSpec(STEP, 5, frb.InOrder(1)),
    "lifo": frb.BufferSpec(STEP, 5, frb.InOrder(newest_first=True)),
    "queue": frb.BufferSpec(STEP, 8, frb.Queue(2), lanes=2),
    "once": frb.BufferSpec(STEP, 5, frb.WithoutReplacement(drop_last=True), frb.StopWhenFull()),
    "slices": frb.BufferSpec(STEP, 8, frb.Slices(2, strict_length=False, span=(True, False)), lanes=2),
    "slices once": frb.BufferSpec(STEP, 8, frb.SlicesWithoutReplacement(2, [("next", "done")], batch="steps")),
    "slices prioritized": frb.BufferSpec(STEP, 8, frb.PrioritizedSlices(2, period=2, flat=True), frb.Immutable()),
    "groups": frb.BufferSpec(STEP, 8, frb.Groups(2, "action", ("next", "reward"), whole=False, take="best")),
    "best": frb.BufferSpec(STEP, 5, writer=frb.MaxValue(("next", "reward"), "mean")),
    "compact": frb.BufferSpec(STEP, 5, compact=frb.Compact(stack={"frames": 4}, axis={"frames": 0}, spare=9)),
    "n-step": frb.BufferSpec(STEP, 5, transforms=frb.n_step(3, 1)),
    "n-step added": frb.BufferSpec(STEP, 5, transforms=frb.n_step(3, 0.9, at="add")),
    "hindsight": frb.BufferSpec(
        STEP,
        5,
        transforms=(
            frb.n_step(2, 0.9),
            frb.her("final", 3, reward=reward, achieved_key=("next", "obs", "achieved_goal")),
        ),
    ),
    "items added": frb.BufferSpec(STEP, 5, transforms=frb.map_items(frb.items.cast("float32", "action"), at="add")),
    "items sampled": frb.BufferSpec(STEP, 5, transforms=frb.map_items(reward, keyed=True)),
    "device": frb.BufferSpec(STEP, 5, storage=frb.Device("cpu")),
    "host": frb.BufferSpec(STEP, 5, storage=frb.Host()),
    "mapped": frb.BufferSpec(STEP, 5, storage=frb.Memmap("somewhere", existsok=True, auto_cleanup=False, shared=True)),
    "objects": frb.BufferSpec(frb.specs.NonTensor(), 5, storage=frb.Host()),
}


@pytest.mark.parametrize("spec", BUFFERS.values(), ids=BUFFERS)
def test_buffers_come_back(spec: frb.BufferSpec) -> None:
    text = frb.convert.to_json(spec)
    back = frb.convert.from_json(text, known=[reward])
    assert back == spec
    assert types_of(back) == types_of(spec)
    assert frb.convert.to_json(back) == text


def test_every_class_of_buffers_is_among_these() -> None:
    """What functions make, such as transforms of texts, is tried by the tests of these."""
    kinds = [getattr(space, name) for space in (frb, frb.specs) for name in space.__all__]
    classes = {kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    parts = [(spec.sampler, spec.writer, spec.storage, *spec.transforms) for spec in BUFFERS.values()]
    used = {type(part) for several in parts for part in several}
    assert {kind for kind in classes - used if not issubclass(kind, frb.specs.ArraySpec)} == {*OTHER_SPECS, *NO_SPECS}


# Of `grammar`, or saved and loaded by checkpoint/test_records.py.
OTHER_SPECS = (
    *(frb.specs.NonTensor, frb.specs.Stacked, frb.specs.Sequence, frb.specs.Graph, frb.specs.OneOf),
    *(frb.BufferSpec, frb.Compact, frb.HashMapSpec),
)
NO_SPECS = (frb.Mixture, frb.Prefetch, frb.Schedule, frb.State)


@tensorclass
class Point:
    x: Any
    y: Any


def test_containers_of_torch_come_back() -> None:
    parts = {"x": frb.Unbounded((2, 3)), "y": frb.Binary((2,))}
    for kind, more in itertools.product((TensorDict, Point), ({}, {"names": ("leg",), "device": True})):
        spec = frb.Composite.like(kind, parts, (2,), **more)
        text = frb.convert.to_json(spec)
        assert frb.convert.from_json(text, known=[TensorDict, Point]) == spec
        with pytest.raises(ValueError, match=rf"names '.*:{kind.__name__}'.*known=\({kind.__name__},\)"):
            frb.convert.from_json(text)


def test_what_is_not_known_is_named() -> None:
    text = frb.convert.to_json(BUFFERS["hindsight"])
    with pytest.raises(ValueError, match=r"transforms/0/reward: .* names '.*test_convert_json:reward'.*known=\(reward"):
        frb.convert.from_json(text, known=[Pair, test_zero_has_one_text])
    text = frb.convert.to_json({"a": [Pair(frb.Binary(), frb.Binary())]})
    with pytest.raises(ValueError, match=r"^from_json: a/0: the text names 'tests.support.grammar:Pair'"):
        frb.convert.from_json(text, known=[Data])
    other = type("Pair", (Data,), {"__module__": "tests.support.grammar", "__qualname__": "Pair"})
    with pytest.raises(ValueError, match=r"several things named 'tests.support.grammar:Pair'"):
        frb.convert.from_json(text, known=[Pair, other])
    with pytest.raises(ValueError, match=r"expected a NamedTuple of \['first', 'second'\], got"):
        frb.convert.from_json(text, known=[other])
    assert frb.convert.from_json(text, known=[Pair, Pair]) == {"a": [Pair(frb.Binary(), frb.Binary())]}


def test_reading_imports_and_runs_nothing() -> None:
    """The text names functions of the standard library, of a module that is loaded, and of one that is not."""
    for name in ("os:system", "builtins:eval", "antigravity:geohash", "functional_rb.convert.json:to_json"):
        for kind in ("function", "namedtuple", "dataclass"):
            node = {"type": kind, "name": name} | ({} if kind == "function" else {"parts": {"command": "exit 1"}})
            with pytest.raises(ValueError, match=f"the text names '{name}'"):
                frb.convert.from_json(json.dumps({"format": "functional_rb.spec", "version": 1, "spec": node}))
    assert "antigravity" not in sys.modules
    subprocess.run(program("numpy_alone", "import"), cwd=ROOT, check=True)


class Objective:
    def __call__(self, achieved: Any, goal: Any) -> Any:
        return reward(achieved, goal)


@pytest.mark.parametrize("function", [lambda achieved, goal: goal, Objective()], ids=["lambda", "object"])
def test_functions_without_a_name_are_refused(function: Any) -> None:
    spec = frb.BufferSpec(STEP, 5, transforms=frb.her(reward=function))
    with pytest.raises(
        ValueError, match=r"transforms/0/reward: expected a class or function with a name.*define it by"
    ):
        frb.convert.to_json(spec)


class Own(frb.Unbounded):
    """A user's subclass, which nobody could make again."""


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (3, "leaf 'the item': expected a spec such as"),
        (None, "leaf 'the item': expected a spec such as"),
        ({"a": (3,)}, "leaf 'a/0': expected a spec such as"),
        ({"a": np.zeros(3)}, "leaf 'a': expected a spec such as"),
        (frb.Uniform(), "expected a spec such as"),
        (frb.Unbounded, "leaf 'the item': expected a spec such as"),
        ({3: frb.Binary()}, "expected names that are strings, got 3"),
        ((Own(),), "0: Own has no form in JSON"),
    ],
)
def test_what_is_no_spec_is_refused(spec: Any, where: str) -> None:
    with pytest.raises(TypeError, match=f"^(to_json|Composite): (.*: )?{where}"):
        frb.convert.to_json(spec)


def told(node: Any) -> str:
    return json.dumps({"format": "functional_rb.spec", "version": 1, "spec": node})


UNBOUNDED = {"type": "Unbounded", "shape": [2], "dtype": "float32"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON text"),
        ("{", "expected JSON text"),
        (b"\xff", "expected JSON text.*utf-8"),
        ("[]", r"expected \{\"format\": \"functional_rb.spec\""),
        (told(UNBOUNDED).replace('"version": 1', '"version": 3'), "expected format version 1, got 3.*another version"),
        (told(UNBOUNDED).replace('"version": 1', '"version": true'), "expected format version 1, got True"),
        (told(UNBOUNDED)[:-1] + ', "more": 1}', "expected format, version and spec"),
        (told(UNBOUNDED).replace("[2]", "[NaN]"), "NaN is not JSON"),
        (told(UNBOUNDED).replace('"shape"', '"dtype": "int8", "shape"'), "expected JSON text.*a name comes twice"),
        (told(3), "leaf 'the item': expected a spec such as .*got int"),
        (told([UNBOUNDED, [True]]), "leaf '1/0': expected a spec such as .*got bool"),
        (told({"shape": [2]}), r'expected an object with a "type", got the names \[\'shape\'\]'),
        (told({"type": ["Unbounded"]}), 'expected an object with a "type"'),
        (told({"type": "Path", "args": ["/"]}), "there is no type 'Path'; expected one of"),
        (told({"type": "Unbounded", "shape": [2]}), r"expected Unbounded with \['type', 'shape', 'dtype'\]"),
        (told([UNBOUNDED | {"more": 1}]), "0: expected Unbounded with"),
        (told([UNBOUNDED | {"dtype": "float33"}]), "0: dtype 'float33' cannot be stored"),
        (told([UNBOUNDED | {"shape": ["a"]}]), "0: expected a shape as a tuple of ints"),
        (told([UNBOUNDED | {"shape": {"type": "list"}}]), "0/shape: expected list with"),
        (told({"type": "list", "parts": {}}), "expected parts as an array"),
        (told({"type": "dict", "parts": []}), "expected parts as an object"),
        (told({"type": "float", "value": "nan"}), "expected 'inf' or '-inf', got 'nan'"),
        (told({"type": "Composite", "parts": {"a": UNBOUNDED}, "batch_shape": [3]}), "part 'a': expected axes that"),
        (told({"type": "Composite", "parts": {"a": 3}, "batch_shape": []}), "leaf 'a': expected a spec such as"),
        (told({"type": "function", "name": ["os"]}), r"names \['os'\]"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_texts_say_what(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frb.convert.from_json(text)


def test_texts_from_before_a_setting_was_there_have_its_default() -> None:
    spec = frb.BufferSpec(STEP, 5, frb.Slices(2))
    whole = json.loads(frb.convert.to_json(spec))
    del whole["spec"]["sampler"]["fresh_first"]
    del whole["spec"]["storage"]
    assert frb.convert.from_json(json.dumps(whole)) == spec
    del whole["spec"]["sampler"]["length"]
    with pytest.raises(ValueError, match=r"expected Slices with \['type', 'length'\], got the names"):
        frb.convert.from_json(json.dumps(whole))


TEXTS = [frb.convert.to_json(spec) for spec in BUFFERS.values()]


@hypothesis.given(st.sampled_from(TEXTS), st.data())
def test_damaged_texts_are_refused_or_mean_something(text: str, data: st.DataObject) -> None:
    """Another value somewhere in the text, or a piece less: a ValueError, or a spec that has a text again."""
    whole = json.loads(text)
    node, key = whole, "spec"
    for _ in range(data.draw(st.integers(0, 6))):
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        node, key = inner, data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    if data.draw(st.booleans()):
        del node[key]
    else:
        node[key] = data.draw(
            st.sampled_from(
                [None, True, -1, 2**70, 1.5, "", "a", [], [[]], {}, {"type": "list", "parts": []}, UNBOUNDED]
            )
        )
    refusal = "from_json: "
    try:
        spec = frb.convert.from_json(json.dumps(whole), [reward])
        assert frb.convert.from_json(frb.convert.to_json(spec), [reward]) == spec
    except ValueError as error:
        refusal = str(error)
    assert refusal.startswith("from_json: ")


@hypothesis.given(st.sampled_from(TEXTS), st.data())
def test_cut_texts_are_refused(text: str, data: st.DataObject) -> None:
    with pytest.raises(ValueError, match=r"^from_json: expected JSON text"):
        frb.convert.from_json(text[: data.draw(st.integers(0, len(text) - 1))], [reward])
