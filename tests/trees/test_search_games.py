"""Searches in games that can be solved, and what is invalid, terminal, finished or full, on both backends."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend, mostly_on_torch
from tests.support.effort import effort
from tests.trees import list_tree
from tests.trees.list_tree import Game
from tests.trees.tic_tac_toe import Table, tic_tac_toe


def tables_of(library: Backend, game: Game) -> dict[str, Any]:
    return {name: library.array(x) for name, x in game.tables().items()}


def of_states(library: Backend, game: Game, states: Any, capacity: int, statistics: Any = ()) -> frb.trees.Tree:
    spec = frb.trees.TreeSpec(
        {"state": frb.Unbounded((), "int32")}, capacity, game.value_shape[1], statistics=statistics
    )
    root = list_tree.expansion(game.tables(), np.asarray(states, np.int32), None, None, 1.0)
    return library.rb.init(spec, items=root)


def step_of(library: Backend, game: Game) -> Any:
    tables = tables_of(library, game)

    def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        before = node["state"]
        return list_tree.expansion(tables, tables["following"][before, action], before, action, game.discount)

    return step


# Long searches: that torch searches as JAX does, is for `test_search_model` to see.
ON_BOTH = ["jax", pytest.param("torch", marks=pytest.mark.long)]


@pytest.mark.parametrize("library", ON_BOTH, indirect=True)
@pytest.mark.parametrize(
    ("policy", "lost"),
    [
        (frb.trees.GumbelMuZero(scale=0.0), 0.0),
        pytest.param(frb.trees.UCB1(scale=(-1.0, 1.0)), 0.02, marks=pytest.mark.long),
    ],
)
def test_tic_tac_toe_never_loses(library: Backend, policy: Any, lost: float) -> None:
    """Against random players, moving first and second, in a batch of games some of which are over before others.

    The value of a node is a mean over what was tried below it, which takes simulations to come near the minimum over
    the replies: of 256 games Gumbel MuZero's policy loses a few with 1,000 of them, and none with 2,000. UCB1 goes on
    to try what is bad, and its values come near the minimum more slowly: one game in a hundred is still lost.
    """
    game, _, _ = tic_tac_toe()
    rb, step, games = library.rb, step_of(library, game), effort(12, 256)
    count = effort(600, 2000)
    numbers = np.random.default_rng(0)
    states, won = np.zeros(games, np.int32), np.zeros(games)
    mine = np.arange(games) % 2 == 0
    search = functools.partial(rb.trees.search, step=step, simulations=count, policy=policy)
    if library.library == "jax":
        import jax

        search = jax.jit(search)
    for turn in range(9):
        tree, proposal = search(of_states(library, game, states, count + 1), rb.key(turn))
        slot = library.numpy(proposal.slot)
        over = game.terminal[states]
        assert (library.numpy(tree.size)[over] == 1).all()
        assert (slot[over] == -1).all()
        for b in np.flatnonzero(~over):
            move = slot[b] if mine[b] else numbers.choice(np.flatnonzero(game.valid[states[b]]))
            assert game.valid[states[b], move]
            won[b] += game.reward[states[b], move] * (1 if mine[b] else -1)
            states[b] = game.following[states[b], move]
        mine = ~mine
    assert game.terminal[states].all()
    assert (won < 0).mean() <= lost
    assert won.sum() > games / 2


def value_iteration(game: Game) -> np.ndarray:
    value = np.zeros(len(game.terminal))
    for _ in range(500):
        q = game.reward + game.discount * value[game.following]
        value = np.where(game.terminal, game.value, np.where(game.valid, q, -np.inf).max(-1))
    return np.where(game.valid, game.reward + game.discount * value[game.following], -np.inf)


@pytest.mark.parametrize("library", ON_BOTH, indirect=True)
def test_values_of_a_small_mdp_converge_to_value_iterations(library: Backend) -> None:
    game = Table(**vars(Game.random(5, 6, 3, 0.5, ties=False)))
    game.valid[:, 0], game.terminal[:] = True, False
    game.value[:], game.prior[:] = 0.0, 0.0
    q = value_iteration(game)
    count = effort(600, 5000)
    tree = of_states(library, game, range(6), count + 1)
    tree, proposal = library.rb.trees.search(
        tree, library.rb.key(0), step_of(library, game), count, frb.trees.UCB1(c=0.5, scale="siblings"), 12
    )
    np.testing.assert_array_equal(library.numpy(proposal.slot), q.argmax(-1))
    np.testing.assert_allclose(library.numpy(tree.summary().value), q.max(-1), atol=0.1)


@mostly_on_torch
def test_what_is_invalid_is_never_visited_at_any_depth(library: Backend) -> None:
    """mctx masks invalid actions at the root alone."""
    game = Table(**vars(Game.random(7, 6, 4, 0.9, ties=True)))
    game.prior[~game.valid] = 50.0  # which a policy that does not know would take at once
    for policy in (frb.trees.MuZero(), frb.trees.GumbelMuZero()):
        tree = of_states(library, game, [0, 1, 2], 30)
        tree, proposal = library.rb.trees.search(tree, library.rb.key(0), step_of(library, game), 29, policy)
        valid, visits = library.numpy(tree.valid), library.numpy(tree.edge_visits)
        assert visits[:, 1:].sum() > 0
        assert not visits[~valid].any()
        assert not library.numpy(proposal.weights)[~valid[:, 0]].any()
        list_tree.check_sums(tree, library.numpy)
        # A terminal node has nothing below it.
        assert (library.numpy(tree.children)[library.numpy(tree.terminal)] == -1).all()


@mostly_on_torch
def test_invalid_slots_beside_the_valid_ones_change_nothing(library: Backend) -> None:
    """A node with three slots, and one with three valid ones of five, are searched alike but for the ties."""
    small = Table(**vars(Game.random(11, 6, 3, 0.9, ties=False)))
    small.valid[:], small.terminal[:] = True, False
    wide = Table(
        **{name: np.pad(x, [(0, 0), (0, 2)][: x.ndim]) for name, x in small.tables().items() if x.ndim == 2},
        **{name: x for name, x in small.tables().items() if x.ndim == 1},
        discount=0.9,
    )
    policy = frb.trees.GumbelMuZero(scale=0.0, considered=3)
    found = []
    for game in (small, wide):
        tree = of_states(library, game, range(6), 20)
        tree, proposal = library.rb.trees.search(tree, library.rb.key(0), step_of(library, game), 24, policy)
        found.append((tree, proposal))
    (tree, proposal), (other, beside) = found
    # Sequential halving: 4 visits each for three slots, then 6 more for two.
    assert (np.sort(library.numpy(tree.summary().visits)) == [4, 10, 10]).all()
    np.testing.assert_array_equal(library.numpy(tree.parent), library.numpy(other.parent))
    np.testing.assert_array_equal(library.numpy(tree.edge_visits), library.numpy(other.edge_visits)[..., :3])
    np.testing.assert_allclose(
        library.numpy(proposal.weights), library.numpy(beside.weights)[:, :3], rtol=1e-4, atol=1e-6
    )


def test_ties_are_broken_by_the_key_evenly(library: Backend) -> None:
    spec, batch = frb.trees.TreeSpec((frb.Unbounded(()),), 2, 5), 2000
    zeros = np.zeros(batch, np.float32)
    valid = np.tile(np.array([True, True, False, True, True]), (batch, 1))
    tree = library.rb.init(
        spec, items=frb.trees.Expansion((zeros,), np.zeros((batch, 5), np.float32), zeros, valid=valid)
    )
    counts = []
    for seed in (0, 1):
        leaf = library.rb.trees.select(tree, library.rb.key(seed))
        again = library.rb.trees.select(tree, library.rb.key(seed))
        slots = library.numpy(leaf.slot)
        np.testing.assert_array_equal(slots, library.numpy(again.slot))
        counts.append(np.bincount(slots, minlength=5))
        # Of 2,000 draws a quarter each, within five standard deviations.
        assert counts[-1][2] == 0
        assert abs(counts[-1][[0, 1, 3, 4]] - batch / 4).max() < 5 * np.sqrt(batch * 3 / 16)
    assert (counts[0] != counts[1]).any()


@mostly_on_torch
def test_reset_begins_some_anew(library: Backend) -> None:
    game = Table(**vars(Game.random(3, 6, 3, 0.9, ties=False)))
    game.valid[:], game.terminal[:] = True, False
    fresh = of_states(library, game, [3, 4, 5], 12)
    tree = of_states(library, game, [0, 1, 2], 12)
    searched, _ = library.rb.trees.search(tree, library.rb.key(0), step_of(library, game), 15)
    root = list_tree.expansion(game.tables(), np.array([3, 4, 5], np.int32), None, None, 1.0)
    after = library.rb.trees.reset(searched, np.array([True, False, True]), root)
    for name in ("size", "refused", "children", "value", "rows", "prior", "low"):
        mixed = library.numpy(getattr(after, name))
        np.testing.assert_array_equal(mixed[[0, 2]], library.numpy(getattr(fresh, name))[[0, 2]])
        np.testing.assert_array_equal(mixed[1], library.numpy(getattr(searched, name))[1])
    assert library.numpy(after.refused).tolist() == [0, 4, 0]
    # The given trees are as they were.
    assert library.numpy(tree.size).tolist() == [1, 1, 1]


def test_actions_may_be_vectors(library: Backend) -> None:
    """Each node has actions of its own, which the step is given."""
    rb = library.rb
    spec = frb.trees.TreeSpec({"x": frb.Unbounded((2,))}, 8, 3, action={"push": frb.Unbounded((2,))})
    x = library.array(np.arange(4, dtype=np.float32).reshape(2, 2))

    def told(x: Any, reward: Any) -> frb.trees.Expansion:
        pushes = x[:, None] * library.array(np.array([[[1.0], [2.0], [3.0]]], np.float32))
        return frb.trees.Expansion({"x": x}, pushes[..., 0] * 0, x[:, 0] * 0, reward, 0.5, actions={"push": pushes})

    def step(node: Any, action: Any, key: Any) -> frb.trees.Expansion:
        return told(node["x"] + action["push"], action["push"][:, 1])

    tree, proposal = rb.trees.search(
        rb.init(spec, items=told(x, 0.0)), rb.key(0), step, 7, frb.trees.UCB1(scale=(0.0, 9.0))
    )
    slot = library.numpy(proposal.slot)
    np.testing.assert_array_equal(
        library.numpy(proposal.action["push"]), library.numpy(x) * (slot[:, None] + 1).astype(np.float32)
    )
    rewards = library.numpy(tree.reward)[:, 0]
    np.testing.assert_array_equal(rewards, library.numpy(x)[:, 1:] * np.array([[1.0, 2.0, 3.0]]))


@mostly_on_torch
def test_a_score_alone_has_no_noise_and_proposes_the_most_visited_slot(library: Backend) -> None:
    game, rows = Table(**vars(Game.random(3, 6, 3, 0.9, ties=False))), np.arange(2)
    tree, step = of_states(library, game, [0, 1], 16), step_of(library, game)
    weights = []
    for seed in range(3):
        _, proposal = library.rb.trees.search(tree, library.rb.key(seed), step, 12, frb.trees.PUCT())
        weights.append(library.numpy(proposal.weights))
        assert (weights[-1][rows, library.numpy(proposal.slot)] == weights[-1].max(1)).all()
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])


def test_errors_name_what_is_wrong(library: Backend) -> None:
    trees, game = library.rb.trees, Table(**vars(Game.random(3, 6, 3, 0.9, ties=False)))
    tree, key = of_states(library, game, [0, 1], 4), library.rb.key(0)
    step = step_of(library, game)
    root = list_tree.expansion(game.tables(), np.array([0, 1], np.int32), None, None, 1.0)
    leaf = trees.select(tree, key)
    with backends.make("torch") as on_torch:  # which compiles nothing
        alone = of_states(on_torch, game, [0, 1], 4).at(0)
    alone = library.rb.from_dlpack(alone, copy=True)
    for function, kind, words in (
        (
            lambda: library.rb.init(tree.spec, items=root._replace(prior=root.prior[:, :2])),
            ValueError,
            r"prior: expected shape \[",
        ),
        (
            lambda: library.rb.init(tree.spec, items=root._replace(value=root.value[:1])),
            ValueError,
            r"value: expected shape \[2\]",
        ),
        (lambda: library.rb.init(tree.spec, items=root._replace(node={})), ValueError, "state"),
        (lambda: library.rb.init(tree.spec, items=root._replace(actions=0)), ValueError, "the spec has no action"),
        (lambda: library.rb.init(tree.spec, items=root.node), TypeError, r"expected a frb\.trees\.Expansion, got dict"),
        (lambda: trees.search(tree, key, step, 0), ValueError, "at least 1 simulation"),
        (lambda: trees.search(tree, key, None, 3), TypeError, "expected step as a function"),
        (lambda: trees.search(tree, key, step, 3, "muzero"), TypeError, "expected a policy"),
        (lambda: trees.search(tree, key, step, 3, frb.trees.EXP3()), ValueError, "statistics='log_weights'"),
        (lambda: trees.search(tree, 3, step, 3), TypeError, "key: expected"),
        (lambda: trees.select(tree, key, frb.trees.MuZero()), TypeError, r"expected a score such as frb\.trees\.PUCT"),
        (lambda: trees.select(tree, key, max_depth=0), ValueError, "max_depth as an int from 1 on"),
        (lambda: trees.subtree(alone, 0), ValueError, "one batch axis"),
        (lambda: alone.summary(), ValueError, "one batch axis"),
        (lambda: trees.expand(tree, None, root), TypeError, "trees.expand: expected a leaf, as rb.trees.select gives"),
        (lambda: trees.backup(tree, (0, 0)), TypeError, "trees.backup: expected a leaf, as .* got tuple"),
        (lambda: trees.backup(tree, leaf._replace(node=None)), TypeError, r"trees\.backup: leaf\.node"),
        (
            lambda: trees.backup(tree, leaf._replace(slot=leaf.slot[:1])),
            ValueError,
            r"leaf\.slot: expected shape \[2\]",
        ),
        (
            lambda: trees.backup(tree, leaf._replace(value=np.zeros(2))),
            TypeError,
            r"leaf\.value.*expected dtype float32",
        ),
        (lambda: trees.reset(tree, np.ones(2, np.int32), root), TypeError, "mask"),
        (lambda: frb.trees.PUCT(scale="all"), ValueError, "expected 'siblings', 'tree'"),
        (lambda: frb.trees.MuZero(temperature=-1), ValueError, r"MuZero\.temperature: expected a number from 0"),
        (lambda: frb.trees.GumbelMuZero(frb.trees.PUCT()), TypeError, r"frb\.CompletedQ"),
    ):
        with pytest.raises(kind, match=words):
            function()


def test_an_edge_that_a_tree_does_not_have_counts_as_none(library: Backend) -> None:
    """Whoever gives a leaf of his own reads and writes nothing outside of the trees."""
    trees, game = library.rb.trees, Table(**vars(Game.random(3, 6, 3, 0.9, ties=False)))
    game.valid[:], game.terminal[:] = True, False
    tree = of_states(library, game, [0, 1], 4)
    root = list_tree.expansion(game.tables(), np.array([2, 3], np.int32), None, None, 1.0)
    leaf = trees.select(tree, library.rb.key(0))
    assert library.numpy(leaf.content["state"]).tolist() == [0, 1]
    for wrong in (
        leaf._replace(node=leaf.node + 99),
        leaf._replace(node=leaf.node + 1),  # not stored yet
        leaf._replace(slot=leaf.slot + 3),
        leaf._replace(slot=leaf.slot - 3),
    ):
        after, ended = trees.expand(tree, wrong, root)
        after = trees.backup(after, ended._replace(node=wrong.node, slot=wrong.slot, child=wrong.child + 50))
        for name in ("size", "children", "edge_visits", "visits", "value"):
            np.testing.assert_array_equal(library.numpy(getattr(after, name)), library.numpy(getattr(tree, name)))
    after, ended = trees.expand(tree, leaf._replace(child=leaf.child + 50), root)
    assert library.numpy(ended.child).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("compiler", "whole"),
    [
        ("eager", False),  # the way down, by its score: the rest of it `test_compiled_by_torch` sees
        *(pytest.param(compiler, True, marks=pytest.mark.long) for compiler in ("eager", "inductor")),
    ],
)
def test_compiled_by_torch_as_one_graph(compiler: str, whole: bool) -> None:
    import torch

    import torch_backend as rb

    game = Table(**vars(Game.random(3, 6, 3, 0.9, ties=False)))
    library = Backend("torch", rb, torch.tensor, lambda x: x.numpy())
    step, policy = (
        step_of(library, game),
        frb.trees.MuZero(frb.trees.UCB1(scale=(-3.0, 3.0), tuned=True), dirichlet_fraction=0.0),
    )
    simulations = 2  # each is traced anew
    tree = of_states(library, game, [0, 1, 2], simulations + 2, "squares")
    if not whole:
        tree, _ = rb.trees.search(tree, rb.key(0), step, 6, policy)
    sizes = tree.size.tolist()

    def search(tree: frb.trees.Tree, key: Any) -> Any:
        if not whole:
            return rb.trees.select(tree, key, policy.score)[:3]
        tree, proposal = rb.trees.search(tree, key, step, simulations, policy)
        tree = rb.trees.subtree(tree, proposal.slot)
        return tree.visits, tree.value, tree.statistics["squares"], tree.low, proposal.slot, proposal.weights

    key = rb.key(1)
    expected = search(tree, key)
    found = torch.compile(search, fullgraph=True, backend=compiler)(tree, key)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert tree.size.tolist() == sizes


def test_mapped_and_scanned_on_jax() -> None:
    import jax

    import jax_backend as rb

    game = Table(**vars(Game.random(3, 6, 3, 0.9, ties=False)))
    game.valid[:], game.terminal[:] = True, False
    library = Backend("jax", rb, jax.numpy.asarray, np.asarray)
    step = step_of(library, game)

    def turn(tree: frb.trees.Tree, key: Any) -> Any:
        tree, proposal = rb.trees.search(tree, key, step, 3, frb.trees.GumbelMuZero())
        return rb.trees.subtree(tree, proposal.slot), proposal.slot

    tree = of_states(library, game, [0, 1], 20)
    keys = rb.split(rb.key(0), 2)
    scanned, slots = jax.jit(lambda tree, keys: jax.lax.scan(turn, tree, keys))(tree, keys)
    one, each = tree, []
    once = jax.jit(turn)
    for key, slot in zip(keys, slots, strict=True):
        one, chosen = once(one, key)
        each.append(chosen)
        np.testing.assert_array_equal(chosen, slot)
    np.testing.assert_array_equal(scanned.visits, one.visits)
    if effort(False, True):
        stacked = jax.tree.map(lambda x: jax.numpy.stack([x, x]), tree)
        mapped, chosen = jax.jit(jax.vmap(turn))(stacked, keys)
        np.testing.assert_array_equal(chosen[0], each[0])
        np.testing.assert_array_equal(mapped.visits[1], once(tree, keys[1])[0].visits)


def test_summaries_of_searches_in_compiled_functions_too(library: Backend) -> None:
    game = Table(**vars(Game.random(3, 6, 3, 0.9, ties=False)))
    with backends.make("torch") as on_torch:  # which compiles nothing
        tree = of_states(on_torch, game, [0, 1], 8)
        tree, _ = on_torch.rb.trees.search(tree, on_torch.rb.key(0), step_of(on_torch, game), 4)
    tree = library.rb.from_dlpack(tree)

    def told(tree: frb.trees.Tree) -> Any:
        return tree.summary()

    expected = told(tree)
    assert library.numpy(expected.visits).sum(1).tolist() == [4, 4]
    np.testing.assert_array_equal(library.numpy(expected.value), library.numpy(tree.value)[:, 0])
    np.testing.assert_array_equal(library.numpy(expected.q), library.numpy(tree.q)[:, 0])
    compiled = jax.jit(told) if library.library == "jax" else torch.compile(told, fullgraph=True, backend="eager")
    for found, one in zip(compiled(tree), expected, strict=True):
        np.testing.assert_allclose(library.numpy(found), library.numpy(one), rtol=1e-6)
