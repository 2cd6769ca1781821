"""Specs of trees, and trees as values: pytrees on both backends."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend, mostly_on_torch
from tests.support.effort import effort

SPEC = frb.trees.TreeSpec(
    node={"obs": frb.Unbounded((2,)), "image": frb.Unbounded((1100,), "uint8")},
    capacity=3,
    children=2,
    action=frb.Unbounded((4,)),
    statistics=("squares",),
)


def make(library: Backend, batch: tuple[int, ...] = (2,)) -> frb.trees.Tree:
    """A tree whose arrays are all different."""
    words = SPEC.action_content.layout.row_words
    nodes, edges = (*batch, 3), (*batch, 3, 2)
    shapes = {
        **dict.fromkeys(("parent", "slot", "depth", "visits", "value", "prediction", "terminal", "chance"), nodes),
        **dict.fromkeys(("children", "edge_visits", "edge_value", "reward", "discount", "prior", "valid"), edges),
        "rows": (*nodes, 2),
        "wide": ((*nodes, 1100),),
        "action_rows": (*edges, words),
        "action_wide": (),
        "statistics": {"squares": edges},
        **dict.fromkeys(("low", "high", "size", "refused", "rejected"), batch),
    }

    def array(shape: Any) -> Any:
        if isinstance(shape, dict):
            return {name: array(x) for name, x in shape.items()}
        if (shape and isinstance(shape[0], tuple)) or shape == ():
            return tuple(map(array, shape))
        return library.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))

    return frb.trees.Tree(**{name: array(shape) for name, shape in shapes.items()}, spec=SPEC)


def test_bytes_of_a_node_are_those_of_its_arrays(library: Backend) -> None:
    assert SPEC.node_bytes == 26 + 8 + 1100 + 2 * (25 + 16 + 4)


def test_specs_are_equal_by_what_they_say() -> None:
    again = frb.trees.TreeSpec(SPEC.node, 3, 2, SPEC.action, "squares")
    assert again == SPEC
    assert hash(again) == hash(SPEC)
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert frb.trees.TreeSpec(SPEC.node, 3, 2) != SPEC


def test_bad_specs_are_refused() -> None:
    obs = frb.Unbounded(())
    with pytest.raises(ValueError, match=r"TreeSpec\.capacity: expected 1 to 2147483647, got 0"):
        frb.trees.TreeSpec(obs, 0, 2)
    with pytest.raises(TypeError, match=r"TreeSpec\.children: expected an int, got 2\.0"):
        frb.trees.TreeSpec(obs, 1, 2.0)
    with pytest.raises(ValueError, match=r"at most 2\^31 - 1 edges"):
        frb.trees.TreeSpec(obs, 2**20, 2**20)
    with pytest.raises(ValueError, match=r"TreeSpec\.statistics: expected some of"):
        frb.trees.TreeSpec(obs, 1, 2, statistics="cubes")
    with pytest.raises(TypeError, match=r"TreeSpec\.node: leaf 'the item': expected a spec of an array, got NonTensor"):
        frb.trees.TreeSpec(frb.specs.NonTensor(), 1, 2)
    with pytest.raises(TypeError, match=r"TreeSpec\.action"):
        frb.trees.TreeSpec(obs, 1, 2, action=3)


def test_trees_are_pytrees(library: Backend) -> None:
    tree = make(library)
    if library.library == "jax":
        import jax

        leaves, structure = jax.tree.flatten(tree)
        again = jax.tree.unflatten(structure, leaves)
    else:
        from torch.utils import _pytree as pytree

        leaves, structure = pytree.tree_flatten(tree)
        again = pytree.tree_unflatten(leaves, structure)
    assert len(leaves) == 24
    assert again.spec == SPEC
    assert all(getattr(again, name) is getattr(tree, name) for name in ("parent", "children", "low"))
    assert repr(tree) == f"Tree({SPEC!r}, batch=(2,))"


def test_one_tree_of_a_batch(library: Backend) -> None:
    tree = make(library, (2, 3))
    one = tree.at(1, 2)
    assert (one.batch, one.wide[0].shape, one.statistics["squares"].shape) == ((), (3, 1100), (3, 2))
    np.testing.assert_array_equal(library.numpy(one.prior), library.numpy(tree.prior)[1, 2])


def test_trees_cross_between_backends() -> None:
    import jax.numpy as jnp
    import torch

    import jax_backend
    import torch_backend

    tree = make(Backend("jax", jax_backend, jnp.asarray, np.asarray))
    there = torch_backend.from_dlpack(tree)
    back = jax_backend.from_dlpack(there, copy=True)
    assert isinstance(there.children, torch.Tensor)
    for one in (there, back):
        assert (type(one), one.spec) == (frb.trees.Tree, SPEC)
        np.testing.assert_array_equal(np.asarray(one.wide[0]), np.asarray(tree.wide[0]))
        np.testing.assert_array_equal(np.asarray(one.statistics["squares"]), np.asarray(tree.statistics["squares"]))


@pytest.mark.usefixtures("tensors_of_the_cpu")
def test_a_root_on_several_devices_goes_where_its_prior_or_the_tree_is() -> None:
    """On the device without data every operation works, but for those of tensors of two devices."""
    import torch

    import torch_backend as rb

    spec = frb.trees.TreeSpec(node={"x": frb.Unbounded((2,))}, capacity=3, children=2)
    node, prior, value = {"x": np.zeros((1, 2), np.float32)}, torch.zeros(1, 2), torch.zeros(1)
    there = rb.init(spec, items=frb.trees.Expansion(node, prior.to("meta"), value, reward=value))
    mixed = frb.trees.Expansion(node, prior, value.to("meta"))
    for tree in (
        there,
        rb.init(spec, items=mixed, device="meta"),
        rb.trees.reset(there, np.array([True]), mixed),
        rb.trees.reset(there, torch.ones(1, dtype=torch.bool), frb.trees.Expansion(node, prior, value)),
    ):
        assert {getattr(tree, name).device.type for name in ("size", "rows", "value", "prior", "reward")} == {"meta"}


@mostly_on_torch  # that JAX searches nodes without content, is for what is said of half precision to see
def test_nodes_may_have_no_content(library: Backend) -> None:
    """What a model needs may be the path alone, or nothing, as in a bandit."""
    rb, spec = library.rb, frb.trees.TreeSpec(node=(), capacity=5, children=2, action=())
    zeros, prior = np.zeros(3, np.float32), np.zeros((3, 2), np.float32)
    root = frb.trees.Expansion((), library.array(prior), library.array(zeros), actions=())
    tree = rb.init(spec, items=root)
    asked = []

    def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        asked.append((node, action))
        return root

    tree, proposal = rb.trees.search(tree, rb.key(0), step, 4)
    assert set(asked) == {((), ())}
    assert (proposal.action, library.numpy(tree.size).tolist()) == ((), [5, 5, 5])
    assert library.numpy(rb.trees.subtree(tree, proposal.slot).size).min() > 0


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_half_precision_are_widened(library: Backend, dtype: str) -> None:
    """As models give them that compute in it."""
    rb, spec = library.rb, frb.trees.TreeSpec(node=(), capacity=5, children=2)
    prior, value = (rb.zeros(frb.Unbounded(shape, dtype), batch=3) + 1.5 for shape in ((2,), ()))

    def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        return frb.trees.Expansion((), prior, value, reward=value, discount=value - 1)

    tree = rb.init(spec, items=frb.trees.Expansion((), prior, value))
    tree, _ = rb.trees.search(tree, rb.key(0), step, 2, frb.trees.GumbelMuZero())
    assert library.numpy(tree.prediction)[0, :3].tolist() == [1.5, 1.5, 1.5]
    assert library.numpy(tree.value)[0, 0] == 1.5 + 0.5 * 1.5 - 0.25  # mean of 1.5 and twice 2.25
    with pytest.raises(TypeError, match="float64"):
        rb.init(spec, items=frb.trees.Expansion((), np.zeros((3, 2)), value))


def test_a_model_that_gives_nothing_but_nan_is_searched_and_told_of(library: Backend) -> None:
    rb, spec = library.rb, frb.trees.TreeSpec(node=(), capacity=9, children=2)
    nan = library.array(np.full(3, np.nan, np.float32))
    told = frb.trees.Expansion((), library.array(np.full((3, 2), np.inf, np.float32)), nan, nan, nan)
    tree = rb.init(spec, items=told._replace(reward=0.0, discount=1.0))
    assert library.numpy(tree.rejected).tolist() == [3, 3, 3]
    policies = [frb.trees.GumbelMuZero(), frb.trees.MuZero()]
    for policy in policies[: effort(1, 2)] if library.library == "jax" else policies:  # JAX compiles each
        searched, proposal = rb.trees.search(tree, rb.key(0), lambda *_: told, 4, policy)
        assert library.numpy(searched.rejected).tolist() == [3 + 4 * 5] * 3
        np.testing.assert_allclose(library.numpy(proposal.weights).sum(-1), 1, rtol=1e-6)
        assert np.isfinite(library.numpy(searched.value)).all()
    assert library.numpy(rb.trees.subtree(searched, proposal.slot).rejected).tolist() == [0, 0, 0]
    leaf = rb.trees.select(searched, rb.key(1))
    after = rb.trees.backup(searched, leaf._replace(value=nan))
    assert library.numpy(after.rejected).tolist() == [3 + 4 * 5 + 1] * 3
    assert library.numpy(after.visits)[:, 0].tolist() == [6, 6, 6]
    np.testing.assert_allclose(library.numpy(after.value)[:, 0], library.numpy(searched.value)[:, 0], atol=1e-6)
