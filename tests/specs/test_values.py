"""Values of specs compiled, kept between calls, tested for containment, and beside torchrl's."""

from __future__ import annotations

from typing import Any

import chex
import numpy as np
import pytest

import functional_rb as frb
from tests.specs import value_model as model
from tests.specs.numpy_values import leaves_of, some
from tests.support.backends import Backend


def test_what_is_kept_of_specs_is_of_these(library: Backend) -> None:
    one, two, flag = frb.Unbounded((1,)), frb.Unbounded((2,)), frb.Binary()
    zeros = library.rb.zeros
    spec: Any = {"a": one, "b": [flag]}
    assert zeros(spec)["a"].shape == (1,)
    spec["a"] = two
    assert zeros(spec)["a"].shape == (2,)
    assert isinstance(zeros({"a": two, "b": (flag,)})["b"], tuple)
    assert set(zeros({"c": two, "b": [flag]})) == {"b", "c"}
    for k in range(600):  # each comes to lie where one before was, unless that is kept
        assert zeros(frb.Composite(x=frb.Unbounded((k % 3,))))["x"].shape == (k % 3,)


# --- compiled -------------------------------------------------------------------------------------------------------


SMALL = {
    "a": frb.Bounded(-1, 1),
    "b": frb.Categorical(4, [True, False, True, True]),
    "c": frb.specs.OneHot(3, [False, True, True]),
    "d": frb.specs.Sequence(frb.Binary(), 2),
}


def rolled(rb: Any, key: Any) -> Any:
    x = rb.rand(SMALL, key, 3)
    far = {**x, "a": x["a"] * 5, "b": x["b"] * 7}
    choices = rb.decode(SMALL["c"], x["c"])
    return x, rb.contains(SMALL, far), rb.project(SMALL, far), choices, rb.encode(SMALL["c"], choices)


def check_rolled(eager: Any, traced: Any) -> None:
    for one, other in zip(leaves_of(eager), leaves_of(traced), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_under_jit_and_vmap_with_one_trace() -> None:
    import jax

    import jax_backend as rb

    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(lambda key: rolled(rb, key), n=1))
    eager = rolled(rb, rb.key(0))
    check_rolled(eager, step(rb.key(0)))
    step(rb.key(1))
    x = eager[0]
    assert jax.vmap(lambda row: rb.contains(SMALL, row))(x).tolist() == [True] * 3
    check_rolled(x, jax.vmap(lambda row: rb.project(SMALL, row))(x))
    keys = rb.split(rb.key(0), 2)
    both = jax.device_get(jax.vmap(lambda key: rb.rand(SMALL, key))(keys))
    for i in range(2):
        check_rolled(rb.rand(SMALL, keys[i]), jax.tree.map(lambda leaf, i=i: leaf[i], both))
    with pytest.raises(TypeError, match=r"decode: leaf 'd': Sequence becomes Python objects, which cannot be traced"):
        jax.jit(lambda x: rb.decode(SMALL, x))(x)


def test_under_torch_compile_and_vmap() -> None:
    import torch

    import torch_backend as rb

    torch._dynamo.reset()
    graphs = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(lambda key: rolled(rb, key), fullgraph=True, backend=keep)
    for seed in (0, 1):
        check_rolled(rolled(rb, rb.key(seed)), step(rb.key(seed)))
    assert len(graphs) == 1
    table = frb.specs.MultiCategorical([[2, 3], [4, 5]])
    look = torch.compile(lambda x: rb.contains(table, x), fullgraph=True, backend="eager")
    assert look(torch.tensor([[[1, 2], [3, 4]], [[0, 3], [0, 0]]], dtype=torch.int32)).tolist() == [True, False]
    x = rb.rand(SMALL, rb.key(0), 3)
    assert torch.func.vmap(lambda row: rb.contains(SMALL, row))(x).tolist() == [True] * 3
    check_rolled(x, torch.func.vmap(lambda row: rb.project(SMALL, row))(x))
    with pytest.raises(TypeError, match=r"decode: leaf 'd': Sequence becomes Python objects, which cannot be traced"):
        torch.func.vmap(lambda row: rb.decode(SMALL, row)["b"])(x)


def test_objects_are_left_alone(library: Backend) -> None:
    spec = {"note": frb.specs.NonTensor(), "x": frb.Bounded(0, 1)}
    notes = np.asarray(["a", {"b": 1}], object)
    value = {"note": notes, "x": np.float32([0.5, 2])}
    assert library.numpy(library.rb.contains(spec, value)).tolist() == [True, False]
    projected = library.rb.project(spec, value)
    assert projected["note"] is notes
    assert library.numpy(projected["x"]).tolist() == [0.5, 1]
    assert library.rb.decode(spec, value)["note"] is notes


# --- contains -------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_not_contained(library: Backend) -> None:
    rb = library.rb
    spec = {"a": frb.Bounded(0, 1, (2,)), "b": frb.Binary()}
    good = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, bool)}
    assert library.numpy(rb.contains(spec, good)).tolist() == [True] * 3
    for bad in (
        {"a": good["a"]},
        {**good, "c": good["b"]},
        {**good, "a": good["a"].astype(np.int32)},
        {**good, "a": np.zeros((3, 3), np.float32)},
        {**good, "b": np.zeros(4, bool)},
        {**good, "b": "no"},
        5,
        (good["a"], good["b"]),
    ):
        assert library.numpy(rb.contains(spec, bad)).tolist() is False
    assert library.numpy(rb.contains(frb.Binary(), True)).tolist() is True
    assert library.numpy(rb.contains(frb.Binary(), 1)).tolist() is False
    assert library.numpy(rb.contains(frb.Categorical(3), 3)).tolist() is False
    for scalar, number in (("int32", 0.5), ("int32", 2**31), ("uint8", -1), ("float32", 1e39), ("float32", 1j)):
        assert library.numpy(rb.contains(frb.Unbounded((), scalar), number)).tolist() is False


def test_the_nearest_character_to_a_number_below_all_is_the_first(library: Backend) -> None:
    given = np.array([[-200, ord("b"), 999, -1], [ord("a"), 0, -200, 3]], np.int32)
    nearest = library.numpy(library.rb.project(frb.specs.Text(4, 1, "abc"), given))
    assert ["".join(map(chr, row[row != 0])) for row in nearest] == ["abca", "a"]


def test_a_graph_has_a_node(library: Backend) -> None:
    rb = library.rb
    spec = frb.specs.Graph(frb.Unbounded(()), frb.Unbounded(()), 3, 2)
    graphs = {name: np.array(library.numpy(part)) for name, part in rb.rand(spec, rb.key(0), 2).items()}
    assert library.numpy(rb.contains(spec, graphs)).tolist() == [True, True]
    graphs["n_nodes"][0], graphs["n_edges"][1] = 0, -1
    assert library.numpy(rb.contains(spec, graphs)).tolist() == [False, False]
    nearest = rb.project(spec, graphs)
    assert library.numpy(nearest["n_nodes"])[0] == 1
    assert library.numpy(nearest["n_edges"])[1] == 0
    assert library.numpy(rb.contains(spec, nearest)).tolist() == [True, True]


# --- torchrl --------------------------------------------------------------------------------------------------------


def pairs_with_torchrl(peer: Any) -> list[tuple[Any, Any]]:
    import torch

    return [
        (frb.Unbounded((2, 3)), peer.Unbounded((2, 3))),
        (frb.Bounded(-1, 2, (3,)), peer.Bounded(-1, 2, (3,), dtype=torch.float32)),
        (frb.Bounded([0, -1], [1, 5], (2,), "int64"), peer.Bounded([0, -1], [1, 5], (2,), dtype=torch.int64)),
        (frb.Binary((4,), "int8"), peer.Binary(4, dtype=torch.int8)),
        (frb.Categorical(5, dtype="int64"), peer.Categorical(5)),
        (frb.Categorical(5, shape=(2,), dtype="int64"), peer.Categorical(5, shape=(2,))),
        (frb.specs.OneHot(4), peer.OneHot(4)),
        (frb.specs.MultiCategorical([3, 5], dtype="int64"), peer.MultiCategorical([3, 5])),
        (frb.specs.MultiOneHot([2, 3]), peer.MultiOneHot([2, 3])),
    ]


def test_torchrl_agrees() -> None:
    """On shapes, dtypes, containment and projection, for what both have.

    Left out, where theirs is another matter: NaN, which their Bounded projects to NaN; their OneHot and MultiOneHot,
    which project what is no one-hot by chance, or to zeros; truth values as numbers, which they round.
    """
    reason = "the peer's specs are compared only where it is installed"
    peer = pytest.importorskip("torchrl.data", reason=reason, exc_type=ImportError)
    import torch
    from tensordict import TensorDict

    import torch_backend as rb

    rng = np.random.default_rng(0)
    pairs = pairs_with_torchrl(peer)
    mine = frb.Composite({f"{i}": {"of": spec} for i, (spec, _) in enumerate(pairs)})
    theirs = peer.Composite({f"{i}": peer.Composite(of=spec) for i, (_, spec) in enumerate(pairs)})
    x = TensorDict(rb.rand(mine, rb.key(0), 4), [4])
    assert theirs.expand(4).is_in(x)
    assert rb.contains(mine, theirs.rand((4,))).all()
    assert (theirs.expand(4).project(x.clone()) == x).all()
    for spec, other in pairs:
        assert tuple(other.shape) == spec.shape
        assert str(other.dtype).removeprefix("torch.") == spec.dtype
        for value in model.spoilt(rng, spec, some(spec, rng, 60), 0.3):
            if (value != value).any():
                continue
            tensor = torch.from_numpy(np.array(value))
            assert bool(rb.contains(spec, tensor)) == bool(other.is_in(tensor)), (spec, value)
            if not isinstance(spec, frb.specs.OneHot | frb.specs.MultiOneHot | frb.Binary):
                assert torch.equal(rb.project(spec, tensor), other.project(tensor)), (spec, value)
