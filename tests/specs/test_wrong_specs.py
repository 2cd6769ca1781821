"""What constructors and changes of shape refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.specs.spec_examples import AGENTS, U, bfloat16
from tests.support.grammar import Data, Pair

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
    (
        lambda: frb.specs.Sequence(U(), 3, stack="yes"),
        TypeError,
        "Sequence: expected stack as a truth value, got 'yes'",
    ),
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
    (lambda: frb.specs.OneHot(0), ValueError, "OneHot: expected at least 1 choice, got 0"),
    (lambda: frb.specs.OneHot(3.0), TypeError, "OneHot: n: expected a whole number, got 3.0"),
    (lambda: frb.specs.OneHot(3, shape=()), ValueError, r"whose last axis is 3, got \(\); write shape=\(\*axes, 3\)"),
    (lambda: frb.specs.OneHot(3, shape=(3, 2)), ValueError, r"OneHot: .*last axis is 3, got \(3, 2\)"),
    (lambda: frb.specs.MultiCategorical(3), ValueError, r"at least one axis, got shape \(\); write Categorical\(3\)"),
    (lambda: frb.specs.MultiCategorical([3, 0]), ValueError, "MultiCategorical: expected at least 1 choice, got 0"),
    (lambda: frb.specs.MultiCategorical([3, 2.5]), TypeError, "MultiCategorical: expected nvec as whole numbers"),
    (
        lambda: frb.specs.MultiCategorical([3], start=0.5),
        TypeError,
        "MultiCategorical: expected start as whole numbers",
    ),
    (lambda: frb.specs.MultiCategorical([True]), TypeError, "MultiCategorical: expected nvec as whole numbers"),
    (
        lambda: frb.specs.MultiCategorical([3, 4], shape=(3,)),
        ValueError,
        r"nvec of shape \(2,\) does not broadcast to \(3,\)",
    ),
    (
        lambda: frb.specs.MultiCategorical([3, 4], start=[1, 2, 3]),
        ValueError,
        r"start of shape \(3,\) does not broadcast",
    ),
    (lambda: frb.specs.MultiCategorical([3, 4], dtype="bool"), TypeError, "a dtype of integers"),
    (
        lambda: frb.specs.MultiCategorical([[3, 4], [4, 3]], [True] * 7),
        ValueError,
        "a mask needs one vector.*part of an item",
    ),
    (lambda: frb.specs.MultiCategorical([2, 2], [True, True, False, False]), ValueError, "forbids all 2 choices"),
    (lambda: frb.specs.MultiOneHot([]), ValueError, r"expected nvec as a sequence of numbers of choices, got \[\]"),
    (
        lambda: frb.specs.MultiOneHot(3),
        ValueError,
        "MultiOneHot: expected nvec as a sequence of numbers of choices, got 3",
    ),
    (lambda: frb.specs.MultiOneHot([2, 0]), ValueError, "MultiOneHot: expected at least 1 choice, got 0"),
    (lambda: frb.specs.MultiOneHot([2, 1.5]), TypeError, "MultiOneHot: nvec: expected a whole number, got 1.5"),
    (lambda: frb.specs.MultiOneHot([2, 1], shape=(2,)), ValueError, "MultiOneHot: .*last axis is 3"),
    (
        lambda: frb.specs.MultiOneHot([2, 1], [True, True, False]),
        ValueError,
        "MultiOneHot: the mask forbids all 1 choices",
    ),
    (lambda: frb.specs.Text(0), ValueError, "0 <= min_length <= max_length and max_length >= 1, got 1 and 0"),
    (lambda: frb.specs.Text(0, 0), ValueError, "max_length >= 1, got 0 and 0"),
    (lambda: frb.specs.Text(2, 3), ValueError, "got 3 and 2"),
    (lambda: frb.specs.Text(2, -1), ValueError, "got -1 and 2"),
    (lambda: frb.specs.Text(2.0), TypeError, "Text: max_length: expected a whole number, got 2.0"),
    (lambda: frb.specs.Text(2, charset=""), ValueError, "expected a charset of some characters but NUL.*got ''"),
    (lambda: frb.specs.Text(2, charset="a\0"), ValueError, "NUL"),
    (lambda: frb.specs.Text(2, charset=["ab"]), TypeError, "Text: expected charset as characters, got \\['ab'\\]"),
    (lambda: frb.specs.Text(2, charset=3), TypeError, "Text: expected charset as characters, got 3"),
    (lambda: frb.specs.Text(2, shape=(3,)), ValueError, r"last axis is 2, got \(3,\)"),
    (lambda: frb.specs.NonTensor(3), TypeError, r"expected a shape as a tuple, got 3; write \(3,\)"),
    (lambda: frb.Composite(a=3), TypeError, "leaf 'a': expected a spec such as .*, got int; frb.specs.spec_of"),
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
    (lambda: frb.Composite(a=frb.specs.OneHot(4), batch_shape=(4,)), ValueError, r"part 'a'.*\(4,\), got \(\)"),
    (lambda: frb.Composite(a=frb.Composite(), batch_shape=(4,)), ValueError, "part 'a'"),
    (lambda: frb.Composite(a=U((4,)), batch_shape=4), TypeError, r"a shape as a tuple, got 4; write \(4,\)"),
    (lambda: frb.specs.Stacked([]), ValueError, "expected at least one member, got none"),
    (lambda: frb.specs.Stacked([U(), 3]), TypeError, "Stacked: member 1: .*expected a spec.* got int"),
    (lambda: frb.specs.Stacked([U(), (U(),)]), TypeError, "Stacked: member 1: expected a spec.*Composite"),
    (lambda: frb.specs.Stacked([U(), U((2,))]), ValueError, r"same number of axes, got \[\(\), \(2,\)\]; .*unsqueeze"),
    (lambda: frb.specs.Stacked([U(), U()], 1), ValueError, "there is no axis 1 among 1"),
    (lambda: frb.specs.Stacked([U(), U()], -2), ValueError, "there is no axis -2 among 1"),
    (lambda: frb.specs.Stacked([U(), U()], 0.5), TypeError, "Stacked: axis: expected a whole number, got 0.5"),
    (lambda: frb.specs.Stacked(U((3,))), TypeError, "Stacked: expected members as a sequence of specs"),
    (lambda: frb.specs.Stacked({"a": U()}), TypeError, "Stacked: expected members as a sequence of specs"),
    (lambda: frb.specs.Sequence(U(), 0), ValueError, "Sequence: expected max_length >= 1, got 0"),
    (lambda: frb.specs.Sequence(U(), 2.5), TypeError, "Sequence: max_length: expected a whole number, got 2.5"),
    (lambda: frb.specs.Sequence(3, 2), TypeError, "Sequence.element: leaf 'the item': expected a spec.* got int"),
    (lambda: frb.specs.Sequence({"a": 3}, 2), TypeError, "Sequence.element: leaf 'a': expected a spec.* got int"),
    (lambda: frb.specs.Graph(None, None, 2), TypeError, "Graph.node: leaf 'the item': expected a spec.* got NoneType"),
    (lambda: frb.specs.Graph(U(), 1, 2), TypeError, "Graph.edge: leaf 'the item': expected a spec.* got int"),
    (lambda: frb.specs.Graph(U(), U(), 0), ValueError, "Graph: expected max_nodes >= 1, got 0"),
    (lambda: frb.specs.Graph(U(), U(), 1, 0), ValueError, "Graph: expected max_edges >= 1, got 0"),
    (
        lambda: frb.specs.Sequence({"a": frb.specs.NonTensor()}, 2),
        TypeError,
        "Sequence: expected specs of arrays, got NonTensor",
    ),
    (lambda: frb.specs.OneOf([]), ValueError, "OneOf: expected at least one option, got none"),
    (lambda: frb.specs.OneOf(U((3,))), TypeError, "OneOf: expected options as a sequence of specs"),
    (lambda: frb.specs.OneOf([U(), "a"]), TypeError, "OneOf.options: leaf '1': expected a spec.* got str"),
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
