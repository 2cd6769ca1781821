"""Search trees against a plain model of lists, on both backends."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.trees.list_tree import Game, ListTree, check_equal, expansion

BATCH, SLOTS, STATES, CAPACITY = 3, 3, 6, 7
SCORES = {
    "puct": frb.trees.PUCT(),
    "puct over the tree": frb.trees.PUCT(scale="tree", c_init=0.5),
    "puct as it is": frb.trees.PUCT(scale=(0.0, 1.0)),
    "ucb1": frb.trees.UCB1(),
    "ucb1 tuned": frb.trees.UCB1(scale=(-4.0, 4.0), tuned=True),
    "exp3": frb.trees.EXP3(gamma=0.3),
    "completed": frb.trees.CompletedQ(),
    "completed without mixing": frb.trees.CompletedQ(rescale=False, mix=False, c_scale=1.0),
}
USUAL = ["puct over the tree", "ucb1", "ucb1 tuned", "exp3", "completed"]


@functools.cache
def functions(library: str, name: str, max_depth: int | None) -> Any:
    """One simulation and a subtree as functions of tables, on JAX compiled once."""
    rb = importlib.import_module(f"{library}_backend")
    score = SCORES[name]

    def simulation(tables: Any, discount: Any, tree: frb.trees.Tree, key: Any) -> tuple[frb.trees.Tree, Any]:
        leaf = rb.trees.select(tree, key, score, max_depth)
        before = leaf.content["state"]
        found = expansion(tables, tables["following"][before, leaf.action], before, leaf.action, discount)
        tree, after = rb.trees.expand(tree, leaf, found)
        return rb.trees.backup(tree, after, score), leaf

    if library == "torch":
        return simulation, rb.trees.subtree
    import jax

    return jax.jit(simulation), jax.jit(rb.trees.subtree)


def begun(library: Backend, game: Game, states: list[int], score: Any) -> frb.trees.Tree:
    node = {"state": frb.Unbounded((), "int32")}
    spec = frb.trees.TreeSpec(node, CAPACITY, SLOTS, statistics=score.statistics, chance=game.chance is not None)
    return library.rb.init(spec, items=expansion(game.tables(), np.array(states, np.int32), None, None, 1.0))


def simulate(
    library: Backend, name: str, game: Game, tree: frb.trees.Tree, models: list[ListTree], count: int, depth: int | None
) -> frb.trees.Tree:
    """Simulations by the library, each of which the model finds allowed, and carries out."""
    simulation, _ = functions(library.library, name, depth)
    tables = {name: library.array(x) for name, x in game.tables().items()}
    discount = library.array(np.full(BATCH, game.discount, np.float32))
    for key in library.rb.split(library.rb.key(game.value.view(np.int32)[0]), count):
        tree, leaf = simulation(tables, discount, tree, key)
        for b, model in enumerate(models):
            node, slot, child = (int(library.numpy(x)[b]) for x in leaf[:3])
            assert (node >= 0) == model.searchable
            if model.searchable:
                model.check_path(node, slot, child, SCORES[name], depth or 2**31 - 1)
                model.simulated(node, slot, SCORES[name])
    return tree


@pytest.mark.few_on_jax(3)
@pytest.mark.parametrize(
    ("name", "depth", "chance"),
    [
        *((name, None, False) for name in effort(USUAL, [*SCORES])),
        ("puct", 2, False),
        *((name, None, True) for name in effort(["puct"], ["puct", "puct over the tree", "completed"])),
    ],
)
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_search_subtree_and_search_again_equal_the_model(
    library: str, name: str, depth: int | None, chance: bool
) -> None:
    # At first one value alone is known in this tree, and it was computed in two places.
    @example(seed=1, states=[0, 0, 0], discount=0.9, ties=False, bad=False, slots=[0, 0, 0])
    @example(seed=2, states=[0, 1, 2], discount=-1.0, ties=False, bad=True, slots=[0, 1, 2])
    @settings(max_examples=effort(3, 200))
    @given(
        st.integers(0, 2**31),
        st.lists(st.integers(0, STATES - 1), min_size=BATCH, max_size=BATCH),
        st.sampled_from([-1.0, 0.9]),
        st.booleans(),
        st.booleans(),
        st.lists(st.integers(-1, SLOTS - 1), min_size=BATCH, max_size=BATCH),
    )
    def search(seed: int, states: list[int], discount: float, ties: bool, bad: bool, slots: list[int]) -> None:
        game = Game.random(seed, STATES, SLOTS, discount, ties, bad, chance)
        models = [ListTree(game, state, CAPACITY) for state in states]
        tree = begun(made, game, states, SCORES[name])
        tree = simulate(made, name, game, tree, models, 10, depth)
        for b, model in enumerate(models):
            check_equal(tree, made.numpy, b, model)
        tree = functions(library, name, depth)[1](tree, made.array(np.array(slots, np.int32)))
        for b, (model, slot) in enumerate(zip(models, slots, strict=True)):
            model.subtree(slot)
            check_equal(tree, made.numpy, b, model)
        tree = simulate(made, name, game, tree, models, 5, depth)
        for b, model in enumerate(models):
            check_equal(tree, made.numpy, b, model)

    with backends.make(library) as made:
        search()


def test_no_derivative_comes_out_of_a_search(library: Backend) -> None:
    """What it proposes is a target to learn, though root and model depend on parameters."""
    rb = library.rb
    spec = frb.trees.TreeSpec({"state": frb.Unbounded((), "int32")}, CAPACITY, SLOTS)
    prior, value = (library.array(np.zeros(shape, np.float32)) for shape in ((BATCH, SLOTS), BATCH))
    root = {"state": library.array(np.zeros(BATCH, np.int32))}

    def loss(x: Any) -> Any:
        def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
            return frb.trees.Expansion(node, prior + x, value + x, value + x, 0.9)

        tree = rb.init(spec, items=frb.trees.Expansion(root, prior + x, value + x))
        _, proposal = rb.trees.search(tree, rb.key(0), step, 2, frb.trees.GumbelMuZero())
        return x * proposal.weights.sum()

    if library.library == "jax":
        import jax

        derivative = jax.jit(jax.grad(loss))(1.0)  # operation by operation XLA would compile each
    else:
        import torch

        x = torch.ones((), requires_grad=True)
        (derivative,) = torch.autograd.grad(loss(x), x)
    np.testing.assert_allclose(library.numpy(derivative), BATCH, rtol=1e-6)
