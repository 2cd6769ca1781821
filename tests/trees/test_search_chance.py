"""Searches in worlds where chance decides, on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend, mostly_on_torch

TREES = 256
# States: 0.2 for sure, or a coin of one or minus one.
START, SURE, COIN, END = range(4)


def told(library: Backend, state: Any, valid: Any, value: Any = None) -> frb.trees.Expansion:
    prior = library.array(np.zeros((TREES, 2), np.float32))
    value = library.array(np.zeros(TREES, np.float32)) if value is None else value
    return frb.trees.Expansion({"state": state}, prior, value, valid=valid)


def world(library: Backend) -> tuple[frb.trees.Expansion, Any, Any]:
    """Where all begins, what follows from decisions, and what from chance."""
    table = library.array(np.array([[SURE, COIN], [END, END], [END, END], [END, END]], np.int32))
    outcomes = library.array(np.array([[0.2, 0.0], [0.2, 0.0], [1.0, -1.0], [0.0, 0.0]], np.float32))
    valid = library.array(np.array([[True, True], [True, False], [True, True], [False, False]]))

    def act(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        state = table[node["state"], action]
        return told(library, state, valid[state])

    def befall(node: Any, outcome: Any, key: Any) -> frb.trees.Expansion:
        state = 0 * outcome + END
        return told(library, state, valid[state])._replace(reward=outcomes[node["state"], outcome])

    start = library.array(np.zeros(TREES, np.int32))
    return told(library, start, valid[start]), act, befall


SPEC = frb.trees.TreeSpec({"state": frb.Unbounded((), "int32")}, 12, 2, chance=True)


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize(
    "policy",
    [
        frb.trees.MuZero(dirichlet_fraction=0.0, temperature=0.0),
        frb.trees.GumbelMuZero(scale=0.0),
        frb.trees.UCB1(),
    ],
    ids=["muzero", "gumbel", "ucb1"],
)
def test_a_coin_is_worth_its_mean(library: Backend, policy: Any) -> None:
    """An edge that kept its first outcome for good made half of the trees choose the coin."""
    rb, (root, act, befall) = library.rb, world(library)
    tree = rb.init(SPEC, items=root)
    tree, proposal = rb.trees.search(tree, rb.key(0), act, 100, policy, chance_step=befall)
    assert library.numpy(proposal.slot).tolist() == [0] * TREES
    coin = library.numpy(tree.children)[:, 0, 1]
    visits = library.numpy(tree.edge_visits)[np.arange(TREES), coin]
    assert (abs(visits[:, 0] - visits[:, 1]) <= 1).all()
    assert visits.min() > 1


@mostly_on_torch
def test_one_step_may_answer_for_all_nodes(library: Backend) -> None:
    """And the four steps by themselves take outcomes too."""
    rb, (root, act, befall) = library.rb, world(library)

    def step(node: Any, slot: Any, key: Any) -> frb.trees.Expansion:
        by_chance = node["state"] != START
        one, other = befall(node, slot, key), act(node, slot, key)

        def chosen(a: Any, b: Any) -> Any:
            mask = by_chance.reshape(-1, *[1] * (len(b.shape) - 1))
            return a * mask + b * ~mask

        state = chosen(one.node["state"], other.node["state"])
        valid = chosen(one.valid, other.valid)
        return told(library, state, valid)._replace(reward=by_chance * one.reward, chance=~by_chance)

    tree = rb.init(SPEC, items=root)
    policy = frb.trees.MuZero(dirichlet_fraction=0.0, temperature=0.0)
    expected, _ = rb.trees.search(tree, rb.key(0), act, 8, policy, chance_step=befall)
    found, _ = rb.trees.search(tree, rb.key(0), step, 8, policy)
    by_hand = tree
    for key in rb.split(rb.key(1), 8):
        leaf = rb.trees.select(by_hand, key)
        by_hand, leaf = rb.trees.expand(by_hand, leaf, step(leaf.content, leaf.action, key))
        by_hand = rb.trees.backup(by_hand, leaf)
    for name in ("visits", "value", "chance", "rows"):
        np.testing.assert_array_equal(library.numpy(getattr(found, name)), library.numpy(getattr(expected, name)))
    assert (library.numpy(by_hand.chance).sum(1) == 2).all()  # both afterstates


@mostly_on_torch
def test_where_chance_decides_at_the_root_nothing_is_proposed(library: Backend) -> None:
    rb, (root, act, befall) = library.rb, world(library)
    tree, _ = rb.trees.search(rb.init(SPEC, items=root), rb.key(0), act, 8, chance_step=befall)
    tree = rb.trees.subtree(tree, library.array(np.ones(TREES, np.int32)))
    assert library.numpy(tree.chance)[:, 0].all()
    tree, proposal = rb.trees.search(tree, rb.key(1), act, 20, chance_step=befall)
    assert library.numpy(proposal.slot).tolist() == [-1] * TREES
    visits = library.numpy(tree.summary().visits)
    assert (abs(visits[:, 0] - visits[:, 1]) <= 1).all()
    assert visits.min() >= 10


@mostly_on_torch
def test_outcomes_are_visited_by_their_prior(library: Backend) -> None:
    rb, spec = library.rb, frb.trees.TreeSpec((), 8, 3, chance=True)
    shares = np.array([0.5, 0.3, 0.2], np.float32)
    prior = library.array(np.tile(np.log(shares), (TREES, 1)))
    zeros = library.array(np.zeros(TREES, np.float32))
    root = frb.trees.Expansion((), prior, zeros, chance=True)

    def step(node: Any, outcome: Any, key: Any) -> frb.trees.Expansion:
        return frb.trees.Expansion((), prior, zeros, terminal=True)

    tree, _ = rb.trees.search(rb.init(spec, items=root), rb.key(0), step, 100)
    visits = library.numpy(tree.summary().visits)
    assert (abs(visits - 100 * shares) <= 1.01).all()


def test_errors_name_what_is_wrong(library: Backend) -> None:
    rb, (root, act, befall) = library.rb, world(library)
    plain = frb.trees.TreeSpec(SPEC.node, 4, 2)
    tree = rb.init(plain, items=root)
    for function, kind, words in (
        (lambda: frb.trees.TreeSpec((), 4, 2, chance=1), TypeError, r"TreeSpec\.chance: expected True or False, got 1"),
        (
            lambda: rb.trees.search(tree, rb.key(0), act, 3, chance_step=befall),
            ValueError,
            r"chance_step was given, but the spec has no chance nodes; give TreeSpec\(\.\.\., chance=True\)",
        ),
        (
            lambda: rb.init(plain, items=root._replace(chance=True)),
            ValueError,
            r"init: Expansion\.chance was given, but the spec has no chance nodes",
        ),
        (
            lambda: rb.trees.search(rb.init(SPEC, items=root), rb.key(0), act, 3, chance_step=3),
            TypeError,
            "expected chance_step as a function, got int",
        ),
        (
            lambda: rb.trees.search(rb.init(SPEC, items=root), rb.key(0), act, 3, chance_step=lambda *_: None),
            TypeError,
            r"chance_step: expected a frb\.trees\.Expansion, got NoneType",
        ),
    ):
        with pytest.raises(kind, match=words):
            function()
