"""Searches on JAX beside mctx's: the same draws give the same trees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from functional_rb.trees import search as core
from functional_rb.trees.api import Leaf, callers
from functional_rb.trees.lib import Search
from functional_rb.trees.policies import Root
from jax_backend import trees
from jax_backend.arrays import ops

BATCH, SLOTS, SIMULATIONS = 4, 5, 40


def model(x: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
    """A world of three numbers: the next ones, logits, value and reward."""
    x = jnp.sin(0.3 * x + 1.7 * (action[:, None] + 1) * jnp.arange(1.0, 4.0))  # rounding does not grow
    return x, 2 * jnp.sin(x[:, :1] * jnp.arange(3.0, 3.0 + SLOTS)), jnp.sin(5 * x[:, 1]), 0.5 * x[:, 2]


@jax.jit  # as all here that would be compiled operation by operation
def start() -> tuple[jax.Array, ...]:
    return model(jnp.linspace(-1, 1, 3 * BATCH).reshape(BATCH, 3), jnp.zeros(BATCH))


def mctx_step(params: Any, key: jax.Array, action: jax.Array, x: jax.Array) -> Any:
    x, prior, value, reward = model(x, action)
    told = mctx.RecurrentFnOutput(reward=reward, discount=0.9 + 0 * reward, prior_logits=prior, value=value)
    return told, x


def step(node: Any, action: jax.Array, key: jax.Array) -> frb.trees.Expansion:
    x, prior, value, reward = model(node["x"], action)
    return frb.trees.Expansion({"x": x}, prior, value, reward, 0.9)


def ours(policy: Any, noise: jax.Array, valid: np.ndarray | None, max_depth: int | None = None) -> tuple[Any, ...]:
    """A search whose policy is given its noise."""

    class Given(type(policy)):  # type: ignore[misc]  # the class is known when it runs
        def begin(self, ops: Any, edges: Any, bits: Any) -> Root:
            gumbel = isinstance(policy, frb.trees.GumbelMuZero)
            return Root(edges.visits, noise if gumbel else self.noisy(ops, edges, noise))

    given = Given(**vars(policy))
    x, prior, value, _ = start()
    spec = frb.trees.TreeSpec({"x": frb.Unbounded((3,))}, SIMULATIONS + 1, SLOTS)
    tree = rb.init(spec, items=frb.trees.Expansion({"x": x}, prior, value, valid=valid))
    return rb.trees.search(tree, rb.key(0), step, SIMULATIONS, given, max_depth)


def check_same(tree: frb.trees.Tree, theirs: Any) -> None:
    """mctx has a place for each simulation, and ours are numbered as they were stored: here that is the same."""
    for name, other in (
        ("parent", theirs.parents),
        ("slot", theirs.action_from_parent),
        ("visits", theirs.node_visits),
        ("children", theirs.children_index),
        ("edge_visits", theirs.children_visits),
    ):
        np.testing.assert_array_equal(getattr(tree, name), other, err_msg=name)
    for name, other in (
        ("value", theirs.node_values),
        ("edge_value", theirs.children_values),
        ("prediction", theirs.raw_values),
        ("reward", theirs.children_rewards),
    ):
        np.testing.assert_allclose(getattr(tree, name), other, atol=1e-5, err_msg=name)
    summary, told = (jax.jit(lambda made: made.summary())(made) for made in (tree, theirs))
    np.testing.assert_array_equal(summary.visits, told.visit_counts)
    np.testing.assert_allclose(summary.probabilities, told.visit_probs, atol=1e-6)
    np.testing.assert_allclose(summary.value, told.value, atol=1e-5)
    np.testing.assert_allclose(summary.q, told.qvalues, atol=1e-5)


def invalid_at_the_root() -> np.ndarray:
    valid = np.ones((BATCH, SLOTS), bool)
    valid[1, 2:], valid[2, 0] = False, False
    return valid


def root() -> mctx.RootFnOutput:
    x, prior, value, _ = start()
    return mctx.RootFnOutput(prior_logits=prior, value=value, embedding=x)


def compiled(policy: Any, *args: Any, **settings: Any) -> Any:
    """What one of mctx's policies gives, as one program: XLA would compile each operation by itself."""
    return jax.jit(lambda key, root: policy((), key, root, *args, **settings))(jax.random.key(1), root())


def test_muzero_equals_mctx(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = jnp.asarray(np.random.default_rng(5).dirichlet(np.full(SLOTS, 0.3), BATCH), jnp.float32)
    monkeypatch.setattr(jax.random, "dirichlet", lambda *_, **__: noise)  # mctx's draw
    theirs = compiled(mctx.muzero_policy, mctx_step, SIMULATIONS)
    tree, proposal = ours(frb.trees.MuZero(), noise, None)
    # The noise is in mctx's prior of the root, and beside it in ours.
    check_same(tree, theirs.search_tree)
    np.testing.assert_allclose(proposal.weights, theirs.action_weights, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"rescale": False, "mix": False}])
def test_gumbel_muzero_equals_mctx(settings: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    noise = jnp.asarray(np.random.default_rng(6).gumbel(size=(BATCH, SLOTS)), jnp.float32)
    monkeypatch.setattr(jax.random, "gumbel", lambda *_, **__: noise)  # mctx's draw
    valid = invalid_at_the_root() if settings else None  # mctx rescales by what is invalid, too
    theirs = compiled(
        mctx.gumbel_muzero_policy,
        mctx_step,
        SIMULATIONS,
        None if valid is None else ~valid,
        max_num_considered_actions=4,
        qtransform=lambda tree, node: mctx.qtransform_completed_by_mix_value(
            tree,
            node,
            rescale_values=settings.get("rescale", True),
            use_mixed_value=settings.get("mix", True),
        ),
    )
    policy = frb.trees.GumbelMuZero(frb.trees.CompletedQ(**settings), considered=4)
    tree, proposal = ours(policy, noise, valid)
    check_same(tree, theirs.search_tree)
    np.testing.assert_array_equal(proposal.slot, theirs.action)
    np.testing.assert_allclose(proposal.weights, theirs.action_weights, atol=1e-5)


@pytest.mark.long
def test_a_largest_depth_is_mctxs() -> None:
    theirs = compiled(mctx.muzero_policy, mctx_step, SIMULATIONS, max_depth=2, dirichlet_fraction=0.0).search_tree
    tree, _ = ours(frb.trees.MuZero(dirichlet_fraction=0.0), jnp.zeros((BATCH, SLOTS)), None, max_depth=2)
    np.testing.assert_array_equal(tree.summary().visits, theirs.summary().visit_counts)
    np.testing.assert_allclose(tree.summary().q, theirs.summary().qvalues, atol=1e-5)
    assert int(tree.depth.max()) == 2


def test_stochastic_muzero_equals_mctx() -> None:
    """Afterstates and outcomes: mctx has slots for actions and for outcomes at each node, here they are the same."""
    outcomes = 3

    def after(x: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        x = jnp.cos(0.4 * x + 1.1 * (action[:, None] + 1) * jnp.arange(1.0, 4.0))
        return x, 2 * jnp.sin(x[:, :1] * jnp.arange(3.0, 3.0 + outcomes)), jnp.sin(3 * x[:, 1])

    def decided(params: Any, key: Any, action: jax.Array, x: jax.Array) -> Any:
        x, prior, value = after(x, action)
        return mctx.DecisionRecurrentFnOutput(chance_logits=prior, afterstate_value=value), x

    def befell(params: Any, key: Any, outcome: jax.Array, x: jax.Array) -> Any:
        x, prior, value, reward = model(x, outcome)
        return mctx.ChanceRecurrentFnOutput(
            action_logits=prior, value=value, reward=reward, discount=0.9 + 0 * value
        ), x

    theirs = compiled(mctx.stochastic_muzero_policy, decided, befell, 2 * SIMULATIONS, dirichlet_fraction=0.0)

    def act(node: Any, action: jax.Array, key: jax.Array) -> frb.trees.Expansion:
        x, prior, value = after(node["x"], action)
        nothing = jnp.zeros((BATCH, SLOTS - outcomes))
        valid = jnp.tile(jnp.arange(SLOTS) < outcomes, (BATCH, 1))
        return frb.trees.Expansion({"x": x}, jnp.concatenate([prior, nothing], 1), value, valid=valid)

    x, prior, value, _ = start()
    spec = frb.trees.TreeSpec({"x": frb.Unbounded((3,))}, 2 * SIMULATIONS + 1, SLOTS, chance=True)
    tree = rb.init(spec, items=frb.trees.Expansion({"x": x}, prior, value))
    policy = frb.trees.MuZero(dirichlet_fraction=0.0)
    tree, proposal = rb.trees.search(tree, rb.key(0), act, 2 * SIMULATIONS, policy, chance_step=step)
    np.testing.assert_allclose(proposal.weights, theirs.action_weights, atol=1e-6)
    for name, other in (("parent", theirs.search_tree.parents), ("visits", theirs.search_tree.node_visits)):
        np.testing.assert_array_equal(getattr(tree, name), other, err_msg=name)
    np.testing.assert_allclose(tree.value, theirs.search_tree.node_values, atol=1e-5)
    np.testing.assert_array_equal(tree.chance, tree.depth % 2 == 1)


def test_a_search_is_its_simulations() -> None:
    """`search` is `select`, `step`, `expand` and `backup` one after the other, bit for bit.

    The model's numbers are on a grid: XLA may round a model itself otherwise in another program.
    """
    x, prior, value, _ = start()

    def step(node: Any, action: jax.Array, key: jax.Array) -> frb.trees.Expansion:
        x, prior, value, reward = (jnp.round(64 * y) / 64 for y in model(node["x"], action))
        return frb.trees.Expansion({"x": x}, prior, value, reward, 0.5)

    spec = frb.trees.TreeSpec({"x": frb.Unbounded((3,))}, 6, SLOTS)
    first = rb.init(spec, items=frb.trees.Expansion({"x": x}, prior, value))
    policy = frb.trees.MuZero(frb.trees.PUCT(), dirichlet_fraction=0.0, temperature=0.0)
    ties = rb.rand(frb.Bounded(0, 2**31 - 1, (BATCH,), "int32"), rb.key(2), batch=9)
    draws = core.Draws(jnp.zeros((BATCH, SLOTS, 0), jnp.int32), ties, ties[0], rb.split(rb.key(3), 9))

    evaluated, _ = callers(trees.LIB, first, Search(step, 9, policy, 100, None))
    searched = jax.jit(lambda tree: core.search(ops, tree, draws, evaluated, policy, 9, 100)[0])(first)
    tree = first

    @jax.jit
    def once(tree: frb.trees.Tree, bits: jax.Array) -> frb.trees.Tree:
        edge = core.select_by(ops, tree, policy.score, bits, 100)
        (state,), action = core.content_of(ops, tree, edge)
        leaf = Leaf(*edge, {"x": state}, action)
        tree, leaf = rb.trees.expand(tree, leaf, step(leaf.content, action, None))
        return rb.trees.backup(tree, leaf)

    for bits in ties:
        tree = once(tree, bits)
    assert int(tree.refused.min()) == 4
    for a, b in zip(jax.tree.leaves(searched), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(a, b)
