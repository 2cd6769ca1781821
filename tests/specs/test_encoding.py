"""Values of specs as environments have them: encoded and decoded."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest

import functional_rb as frb
from tests.specs import value_model as model
from tests.specs.numpy_values import MIXED, SPECS, N, assert_same, graph, inside, leaves_of, members, seeds, some
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.grammar import limits


@hypothesis.settings(max_examples=effort(40, 200))
@hypothesis.given(spec=SPECS, seed=seeds)
def test_encoding_takes_decoding_back(spec: Any, seed: int) -> None:
    spec = frb.specs.freeze(spec)
    x = some(spec, np.random.default_rng(seed))
    # Behind an axis of no length, lists do not tell how long the others are.
    hypothesis.assume(not any(0 in leaf.shape[1:-2] for leaf in leaves_of(x)))
    for member, part in members(spec, x):
        assert_same(member.from_host(member.to_host(part), (N,)), part)
        one = model.row(member, part, (0,))
        assert_same(member.from_host(member.to_host(one), ()), one)


def test_what_is_decoded_on_a_backend_is_encoded_again(library: Backend) -> None:
    rb = library.rb
    spec = MIXED if library.library == "torch" else MIXED.with_parts({k: MIXED[k] for k in ("vector", "text", "web")})
    for batch in ((), (2,), (2, 2)):
        x = rb.rand(spec, rb.key(0), batch)
        again = rb.encode(spec, rb.decode(spec, x), batch)
        assert_same(*([library.numpy(leaf) for leaf in leaves_of(one)] for one in (again, x)))


def spaces() -> list[tuple[Any, Any]]:
    """Gymnasium's spaces with specs of the same values."""
    from gymnasium import spaces as gym

    box = gym.Box(-1, 1, (2,), np.float32)
    spec = frb.Bounded(-1, 1, (2,))
    return [
        (frb.Categorical(5, dtype="int64", start=-3), gym.Discrete(5, start=-3)),
        (frb.specs.OneHot(5), gym.Discrete(5)),
        (frb.specs.MultiCategorical([2, 3]), gym.MultiDiscrete([2, 3], dtype=np.int32)),
        (frb.Binary((3,), "int8"), gym.MultiBinary(3)),
        (frb.specs.Text(5, 2, "abc"), gym.Text(5, min_length=2, charset="abc")),
        (frb.specs.Sequence(spec, 3), gym.Sequence(box)),
        (frb.specs.Sequence(spec, 3, stack=True), gym.Sequence(box, stack=True)),
        (
            frb.specs.Sequence({"a": spec, "b": (frb.specs.Text(3),)}, 3),
            gym.Sequence(gym.Dict(a=box, b=gym.Tuple([gym.Text(3)]))),
        ),
        (
            frb.specs.Sequence({"a": spec, "b": frb.specs.OneHot(3)}, 3, stack=True),
            gym.Sequence(gym.Dict(a=box, b=gym.Discrete(3)), stack=True),
        ),
        (
            frb.specs.Sequence(frb.specs.Sequence(frb.specs.OneHot(3), 2), 2),
            gym.Sequence(gym.Sequence(gym.Discrete(3))),
        ),
        (frb.specs.Graph(spec, None, 3), gym.Graph(box, None)),
        (frb.specs.Graph(spec, frb.specs.OneHot(3), 3, 2), gym.Graph(box, gym.Discrete(3))),
        (frb.specs.Graph(frb.specs.OneHot(3), spec, 3, 2), gym.Graph(gym.Discrete(3), box)),
        (
            frb.specs.OneOf([frb.specs.OneHot(3), frb.specs.Text(3), spec]),
            gym.OneOf([gym.Discrete(3), gym.Text(3), box]),
        ),
    ]


def test_gymnasium_knows_its_values() -> None:
    """Both ways: what is decoded lies in the space, and what the space samples is encoded."""
    from gymnasium import spaces as gym

    rng = np.random.default_rng(0)
    for spec, space in spaces():
        for value in spec.to_host(some(spec, rng, 40)):
            assert space.contains(value), (spec, value)
        space.seed(0)
        graph = {"num_nodes": 3, "num_edges": 2 if spec.edge else None} if isinstance(space, gym.Graph) else {}
        given = [space.sample(**graph) for _ in range(60)]
        if isinstance(space, gym.Sequence):
            given = [value for value in given if spec_length(spec, value) <= spec.max_length]
        encoded = spec.from_host(given, (len(given),))
        assert len(given) > 5
        assert inside(spec, encoded) == [True] * len(given), spec
        assert same_values(spec.to_host(encoded), given), spec


def spec_length(spec: Any, value: Any) -> int:
    """How long a Gymnasium sequence is, or 99 if one inside of it is too long."""
    if not spec.stack:
        inner = [spec_length(spec.element, v) for v in value] if isinstance(spec.element, frb.specs.Sequence) else []
        return 99 if any(n > 2 for n in inner) else len(value)
    part = value
    while isinstance(part, dict):
        part = next(iter(part.values()))
    return len(part)


def same_values(one: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return all(same_values(one[k], other[k]) for k in other)
    if isinstance(other, tuple | list):
        return len(one) == len(other) and all(same_values(a, b) for a, b in zip(one, other, strict=True))
    return one is other if other is None else bool(np.all(one == other))


EDGE = frb.Binary((), "int8")


GRAPH = frb.specs.Graph(frb.Unbounded(), EDGE, 2, 2)


REFUSED: list[tuple[Any, Any, Any, type[Exception], str]] = [
    (frb.specs.OneHot(3), 3, (), ValueError, r"leaf 'the item': expected choices below 3, got 3"),
    (frb.specs.OneHot(3), -1, (), ValueError, r"got -1"),
    (frb.specs.OneHot(3, [True, False, True]), [0, 1], (), ValueError, r"that the mask allows, got 1"),
    (frb.specs.OneHot(3), 1.0, (), TypeError, r"expected numbers that dtype int64 has, got float64"),
    (
        frb.specs.OneHot(3, shape=(2, 3)),
        [1, 2, 0],
        (),
        ValueError,
        r"expected choices of shape \('...', 2\), got \(3,\)",
    ),
    (frb.specs.OneHot(3), [1, 2, 0], (2,), ValueError, r"expected shape \(2, 3\), got \(3, 3\)"),
    (frb.specs.MultiOneHot([2, 3]), [1, 3], (), ValueError, r"expected choices below \(2, 3\), got 3"),
    (frb.specs.Text(3), "abcd", (), ValueError, r"expected 1 to 3 characters, got 4: 'abcd'"),
    (frb.specs.Text(3), "", (), ValueError, r"expected 1 to 3 characters, got 0"),
    (frb.specs.Text(3, charset="ab"), "axb", (), ValueError, r"expected characters of the charset, got 'x' in 'axb'"),
    (frb.specs.Text(3), 5, (), TypeError, r"expected a str, got int"),
    (frb.specs.Text(3), ["a", "b"], (3,), ValueError, r"expected texts in axes \(3,\), got \(2,\)"),
    (frb.specs.Text(3, shape=(2, 3)), ["a", "b", "c"], (), ValueError, r"expected texts in axes \(2,\), got \(3,\)"),
    (
        {"t": frb.specs.Sequence(EDGE, 2)},
        {"t": (1, 0, 1)},
        (),
        ValueError,
        r"leaf 't': expected 0 to 2 elements, got 3",
    ),
    (
        frb.specs.Sequence(EDGE, 2),
        [(1,), (0,)],
        (3,),
        ValueError,
        r"expected a sequence of 3 values, got 2; tell the batch",
    ),
    (frb.specs.Sequence(EDGE, 2), 7, (3,), ValueError, r"expected a sequence of 3 values, got a int"),
    (frb.specs.Sequence(EDGE, 2), 7, (), TypeError, r"expected a tuple of elements, got int"),
    (
        frb.specs.Sequence({"a": EDGE}, 2),
        ({"b": 1},),
        (),
        ValueError,
        r"expected values with the keys of .* without 'a'",
    ),
    (frb.specs.Sequence({"a": EDGE}, 2, True), {"b": [1]}, (), ValueError, r"expected stacked values of"),
    (
        frb.specs.Sequence((EDGE, EDGE), 2, True),
        ([1], [1, 0]),
        (),
        ValueError,
        r"expected parts of one length, got \[1, 2\]",
    ),
    (GRAPH, graph([]), (), ValueError, r"expected 1 to 2 nodes, got 0; give the spec another max_nodes"),
    (GRAPH, graph([1, 2, 3]), (), ValueError, r"expected 1 to 2 nodes, got 3"),
    (GRAPH, graph([1], [1, 0, 1], np.zeros((3, 2), int)), (), ValueError, r"expected 0 to 2 edges, got 3"),
    (
        GRAPH,
        graph([1], [1], np.zeros((2, 2), int)),
        (),
        ValueError,
        r"expected edge_links of 1 edges, of shape \(1, 2\)",
    ),
    (GRAPH, graph([1], [1], [[0.5, 1]]), (), TypeError, r"expected numbers that dtype int32 has"),
    (GRAPH, {"nodes": [1]}, (), TypeError, r"expected a value with \('nodes', 'edges', 'edge_links'\), got dict"),
    (frb.specs.OneOf([EDGE, GRAPH]), (2, 1), (), ValueError, r"expected the number of one of 2 options, got 2"),
    (frb.specs.OneOf([EDGE, GRAPH]), 5, (), TypeError, r"expected a pair \(option, value\), got 5"),
]


@pytest.mark.parametrize(("spec", "value", "batch", "error", "told"), REFUSED)
def test_values_that_do_not_fit_are_refused(spec: Any, value: Any, batch: Any, error: Any, told: str) -> None:
    import torch_backend

    with pytest.raises(error, match=told):
        torch_backend.encode(spec, value, batch)


def test_what_is_no_value_is_not_decoded(library: Backend) -> None:
    one = np.int32(1)
    cases = [
        (frb.specs.Text(2), np.array([97, -1], np.int32), "expected code points of characters"),
        (
            frb.specs.Sequence(EDGE, 1),
            {"elements": np.zeros(1, np.int8), "length": np.int32(2)},
            "0 to 1 elements, got 2",
        ),
        (frb.specs.OneOf([EDGE]), {"choice": one, "options": (np.int8(1),)}, "one of 1 options, got 1"),
        (
            frb.specs.Graph(EDGE, None, 1),
            {"nodes": np.zeros(1, np.int8), "n_nodes": np.int32(2)},
            "0 to 1 nodes, got 2",
        ),
    ]
    for spec, x, told in cases:
        with pytest.raises(ValueError, match=f"decode: leaf 'a': .*{told}"):
            library.rb.decode({"a": spec}, {"a": x})


def test_a_buffer_that_is_not_full_is_decoded(library: Backend) -> None:
    rb = library.rb
    item = {"graph": frb.specs.Graph(EDGE, EDGE, 2, 3), "text": frb.specs.Text(3), "either": frb.specs.OneOf([EDGE])}
    state = rb.add(rb.init(frb.BufferSpec(item, capacity=3)), rb.rand(item, rb.key(0), 2))
    decoded = rb.decode(item, rb.items(state))
    assert [len(graph.nodes) > 0 for graph in decoded["graph"]] == [True, True, False]
    assert decoded["graph"][2].edge_links.shape == (0, 2)


def test_objects_do_not_vary() -> None:
    for make in (
        lambda: frb.specs.Sequence(frb.specs.NonTensor(), 2),
        lambda: frb.specs.Graph({"a": frb.specs.NonTensor()}, None, 2),
        lambda: frb.specs.Graph(EDGE, frb.specs.NonTensor(), 2),
        lambda: frb.specs.OneOf([EDGE, frb.specs.NonTensor()]),
    ):
        with pytest.raises(TypeError, match=r"expected specs of arrays, got NonTensor"):
            make()


def test_complex_numbers_are_no_choices() -> None:
    for make in (
        lambda: frb.Binary((), "complex64"),
        lambda: frb.specs.OneHot(3, dtype="complex64"),
        lambda: frb.specs.MultiOneHot([3], dtype="complex64"),
    ):
        with pytest.raises(TypeError, match="got complex64"):
            make()


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int32"])
def test_arrays_of_choices_are_clamped(library: Backend, dtype: str) -> None:
    spec = frb.specs.MultiOneHot([3, 300], np.arange(303) % 3 == 1, (2, 303))
    least, most = limits(dtype)
    given = np.array([[[1, 1], [0, 2]], [[2, 7], [least, most]], [[1, 100], [most, 3]]], dtype)
    made = library.numpy(library.rb.encode(spec, library.array(given)))
    allowed = model.allowed_choices(spec)
    for at in np.ndindex(3, 2, 2):
        wanted = int(given[at])
        best = min(allowed[at[1:]], key=lambda k: (abs(k - wanted), k))
        start, end = ((0, 3), (3, 303))[at[2]]
        assert np.flatnonzero(made[at[:2]][start:end]).tolist() == [best]
    with pytest.raises(TypeError, match="expected choices as whole numbers, got dtype float32"):
        library.rb.encode(spec, library.array(given.astype(np.float32)))
    with pytest.raises(ValueError, match=r"expected choices of shape \('...', 2, 2\), got \(2,\)"):
        library.rb.encode(spec, library.array(given[0, 0]))
