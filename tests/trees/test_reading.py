"""What trees tell that are read on the host, against trees written out and against each other."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import sys
import weakref
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.support.effort import effort
from tests.trees.shapes import SHAPES, SPEC, forest_of, steps, tree_of

FIELDS = [field.name for field in dataclasses.fields(frb.trees.Tree) if field.name != "spec"]


def vertices_at(tree: Any) -> dict[tuple[int, ...], int]:
    return {path: int(tree.vertex[k]) for path, k in tree.vertices(key_type="path").items()}


def test_circles_end_where_they_begin() -> None:
    assert vertices_at(tree_of("cycle")) == {(): 0, (0,): 1, (0, 0): 2, (0, 0, 0): 0}
    assert tree_of("cycle").repeats.tolist() == [False, False, False, True]
    assert vertices_at(tree_of("self-loop")) == {(): 0, (0,): 0, (1,): 1}
    compact = tree_of("cycle", compact=True)
    assert vertices_at(compact) == {(): 0, (0,): 0}
    assert compact.rollout_from_path((0,))["observation"].tolist() == [0, 1, 2]


def test_a_diamond_is_met_on_both_ways() -> None:
    tree = tree_of("diamond")
    assert vertices_at(tree) == {
        (): 0,
        (0,): 1,
        (1,): 2,
        (0, 0): 3,
        (1, 0): 3,
        (0, 0, 0): 4,
        (1, 0, 0): 4,
    }
    assert (tree.num_vertices, len(tree)) == (5, 7)
    assert list(tree.valid_paths()) == [(0, 0, 0), (1, 0, 0)]
    assert tree.edges().tolist() == [[0, 1], [0, 2], [1, 3], [2, 3], [3, 4], [3, 4]]
    assert tree.max_length == 3


def test_a_tree_of_one_node() -> None:
    tree = rb.trees.view(forest_of([(0, 0, 1)]), np.int32(1))
    assert len(tree) == tree.num_vertices == 1
    assert list(tree.valid_paths()) == [()]
    assert tree.edges().shape == (0, 2)
    assert tree.max_length == 0
    assert tree.rollout_from_path(()) is None
    assert (tree.parent[0], tree.branching_action(), tree.selected_actions()) == (-1, None, None)
    assert tree.num_children[0] == 0
    assert tree.to_string() == "1: visits 0, value 0"
    assert len(rb.trees.view(forest_of(SHAPES["cycle"]), np.int32(0), max_depth=0, compact=True)) == 1


def test_what_each_function_tells() -> None:
    tree = tree_of("fork")
    by_path = tree.vertices(key_type="path")
    node = by_path[0, 0, 1]
    assert (tree.parent[node], list(tree.children(2))) == (2, [3, 4])
    assert (tree.num_children[2], tree.visits[2]) == (2, 1)
    assert tree.node_observation(node) == 4
    assert tree.node_observations(node) == {"observation": 4}
    assert tree.selected_actions(2).tolist() == [0, 1]
    assert tree.branching_action(node) == tree.prev_action(node) == 1
    assert tree.vertices(key_type="id")[4] == node
    assert tree.vertices(key_type="hash")[tree.node_hash(node)] == node
    assert tree.num_children[node] == 1
    assert np.int32(6) in tree
    assert np.int32(7) not in tree
    compact = tree_of("fork", compact=True)
    assert vertices_at(compact) == {(): 0, (0,): 2, (0, 0): 3, (0, 1): 6}
    last = compact.vertices(key_type="path")[0, 1]
    assert (compact.branching_action(last), compact.prev_action(last)) == (1, 2)
    for missing in ((1,), (0, 2), (-1,)):
        with pytest.raises(KeyError):
            by_path[missing]
    for key_type in ("id", "hash"):
        with pytest.raises(KeyError):
            tree.vertices(key_type=key_type)[999]
    with pytest.raises(ValueError, match="expected key_type"):
        tree.vertices(key_type="name")


OF_NODES = (
    "children",
    "fully_expanded",
    "branching_action",
    "prev_action",
    "selected_actions",
    "node_observation",
    "node_observations",
    "node_hash",
)


@pytest.mark.parametrize("name", OF_NODES)
def test_a_node_is_one_that_the_tree_has(name: str) -> None:
    tree = tree_of("fork")
    method = getattr(tree, name)
    for node in (-1, len(tree), 2**70):
        with pytest.raises(ValueError, match=rf"trees\.{name}: expected a node from 0 to 6, got {node}"):
            method(node)
    for node in (1.5, "x", None, True, np.array([1, 2])):
        with pytest.raises(TypeError, match=rf"trees\.{name}: expected the number of a node, got"):
            method(node)
    method(np.int32(0))


def test_keys_and_paths_and_observations_of_another_kind() -> None:
    tree = tree_of("fork")
    for key in ("x", None, 1.5, True, (1,), 10**30):
        for key_type in ("id", "hash", "path"):
            assert key == (1,) or key not in tree.vertices(key_type=key_type)
    for path in (5, "01", None, (0.5,), ("a",), (True,)):
        with pytest.raises(TypeError, match=r"trees: (expected a path|path: expected the number of a slot)"):
            tree.rollout_from_path(path)
    with pytest.raises(ValueError, match=r"observation.*expected shape \[\], got \[1\]"):
        assert np.array([4], np.int32) in tree
    with pytest.raises(ValueError, match=r"TreeView\.to_string: max_nodes: expected 1 to"):
        tree.to_string(max_nodes=-1)


def test_rollouts_are_steps_in_ted() -> None:
    rollout = tree_of("fork").rollout_from_path((0, 0, 1, 0, 0))
    frb.ted.check(rollout, time_axis=0)
    assert rollout["observation"].tolist() == [0, 1, 2, 4, 5]
    assert rollout["action"].tolist() == [0, 0, 1, 0, 2]
    assert rollout["next"]["reward"].tolist() == [1, 12, 24, 45, 56]


def test_specs_of_what_is_stored() -> None:
    tree = tree_of("fork")
    specs = tree.full_specs
    assert specs["observation"] == {"observation": SPEC.observation}
    assert specs["action"] == SPEC.action
    assert specs["reward"] == frb.Unbounded(())
    assert list(specs["done"]) == ["done", "terminated", "truncated"]
    assert specs["state"] == {}


@hypothesis.settings(max_examples=effort(40, 1000))
@hypothesis.given(steps, st.integers(0, 5), st.integers(1, 60))
def test_the_ways_of_naming_agree(given: list[tuple[int, int, int]], depth: int, room: int) -> None:
    forest = forest_of(given)
    root = np.int32(given[0][0])
    tree = rb.trees.view(forest, root, max_depth=depth, max_nodes=room)
    n = len(tree)
    assert n <= room
    assert tree.max_length <= depth
    by_path = tree.vertices(key_type="path")
    assert [by_path[path] for path in by_path] == list(by_path.values()) == [k for _, k in by_path.items()]
    assert sorted(by_path.values()) == list(range(n))
    assert all(tree.path(k) == path for path, k in by_path.items())
    assert list(tree.valid_paths()) == sorted(p for p, k in by_path.items() if tree.num_children[k] == 0)
    assert list(by_path) == sorted(by_path)
    # An id and a hash name the same vertex, whatever the order in which they are kept.
    for key, node in tree.vertices(key_type="id").items():
        assert tree.vertex[node] == key
        assert tree.vertices(key_type="hash")[tree.node_hash(node)] == node == tree.vertex.tolist().index(key)
    assert len(tree.vertices()) == tree.num_vertices == len(set(tree.vertex.tolist()))
    whole = rb.trees.view(forest, root, max_depth=depth, max_nodes=10**6)
    left = len(whole) > n or whole.cut.any()
    assert bool(tree.cut.any()) == left
    # Compact, each way is the same, and no node but the root has one child.
    compact = rb.trees.view(forest, root, max_depth=depth, max_nodes=room, compact=True)
    assert (compact.num_children[1:] != 1).all()
    for ours, theirs in zip(compact.valid_paths(), tree.valid_paths(), strict=True):
        one, other = compact.rollout_from_path(ours), tree.rollout_from_path(theirs)
        jax.tree.map(np.testing.assert_array_equal, one, other)


def calls_to_read(n: int) -> int:
    """How many functions are called to read a way of n steps, each of which leads one back as well."""
    spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), n + 1, 2)
    numbers = np.arange(n, dtype=np.int32)
    before, action = np.concatenate([numbers, numbers + 1]), np.repeat(np.array([0, 1], np.int32), n)
    after, done = np.concatenate([numbers + 1, numbers]), np.zeros(2 * n, bool)
    transitions = frb.ted.from_transitions(before, action, np.ones(2 * n, np.float32), after, done)
    forest, calls = rb.add(rb.init(spec), transitions), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        tree = rb.trees.view(forest, np.int32(0))
    finally:
        sys.setprofile(None)
    assert (len(tree), tree.repeats.sum(), tree.max_length) == (2 * n + 1, n, n + 1)
    return calls


def test_ways_that_lead_back_are_read_in_proportion_to_their_length() -> None:
    first, second, third = map(calls_to_read, (100, 200, 300))
    assert third - second < 1.2 * (second - first)


@functools.cache
def pairs(n: int) -> Any:
    """A forest of n vertices, of which every second leads to the next one."""
    numbers = np.arange(0, n, 2, dtype=np.int32)
    done = np.zeros(len(numbers), bool)
    steps = frb.ted.from_transitions(numbers, 0 * numbers, np.ones(len(numbers), np.float32), numbers + 1, done)
    return rb.add(rb.init(frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(3), n, 3)), steps)


@hypothesis.settings(max_examples=effort(40, 400), deadline=None)
@hypothesis.given(st.sampled_from([2, 64, 66, 258, 5000, 20_000]), st.data())
def test_a_vertex_is_a_leaf_where_it_lies_on_the_way_to_itself_and_nowhere_else(n: int, data: st.DataObject) -> None:
    """Whatever the numbers of those between."""
    few = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6))
    some = st.sampled_from(few)
    given = data.draw(
        st.lists(st.tuples(some, st.integers(1, 2), some), min_size=1, max_size=8, unique_by=lambda x: x[:2])
    )
    before, action, after = (np.array(x, np.int32) for x in zip(*given, strict=True))
    reward, done = np.ones(len(given), np.float32), np.zeros(len(given), bool)
    forest = rb.add(pairs(n), frb.ted.from_transitions(before, action, reward, after, done))
    tree = rb.trees.view(forest, before[0], max_nodes=2000)
    above: list[set[int]] = [set()]
    for node in range(1, len(tree)):
        parent = int(tree.parent[node])
        above.append(above[parent] | {int(tree.vertex[parent])})
    assert tree.repeats.tolist() == [vertex in way for vertex, way in zip(tree.vertex.tolist(), above, strict=True)]


def test_vertices_are_told_apart_by_all_of_their_numbers() -> None:
    """Also those that differ in one bit alone: none lies on a way because another one does."""
    for first, last in itertools.permutations([0, 64, 256, 1024, 4096, 16_384], 2):
        before, action, after = (np.array(x, np.int32) for x in ([first, first, 9], [1, 2, 1], [last, 9, last]))
        steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, np.zeros(3, bool))
        tree = rb.trees.view(rb.add(pairs(20_000), steps), np.int32(first))
        assert tree.vertex.tolist().count(last) == 2
        assert not tree.repeats.any()


def test_dense_numbers_are_those_of_the_tree_alone() -> None:
    tree = tree_of("fork", compact=True)
    assert tree.edges().tolist() == [[0, 2], [2, 3], [2, 6]]
    assert tree.edges(dense=True).tolist() == [[0, 1], [1, 2], [1, 3]]
    diamond = tree_of("diamond")
    assert diamond.dense.tolist() == [0, 1, 2, 3, 3, 4, 4]
    assert diamond.num_vertices == diamond.dense.max() + 1


def test_a_long_way_is_read_in_no_recursion() -> None:
    n = 1200  # more than Python's calls may lie in one another
    spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), n + 1, 1)
    numbers = np.arange(n, dtype=np.int32)
    done = np.zeros(n, bool)
    transitions = frb.ted.from_transitions(numbers, numbers % 2, np.ones(n, np.float32), numbers + 1, done)
    forest = rb.add(rb.init(spec), transitions)
    tree = rb.trees.view(forest, np.int32(0))
    assert (tree.max_length, tree.value[0]) == (n, n)
    compact = rb.trees.view(forest, np.int32(0), compact=True)
    assert len(compact) == 2
    assert compact.rollout_from_path((0,))["action"].tolist() == (numbers % 2).tolist()
    assert len(tree.to_string(max_nodes=3).splitlines()) == 4


# --- search trees ---------------------------------------------------------------------------------------------------


def search_tree(parents: list[int], capacity: int = 12, slots: int = 4) -> Any:
    """A tree whose node k + 1 is stored under `parents[k] % (k + 1)`, in its next slot from behind."""
    spec = frb.trees.TreeSpec(frb.Unbounded((2,)), capacity, slots)
    n = len(parents) + 1
    arrays: dict[str, Any] = {
        name: np.zeros((capacity, slots) if name in ("children", "reward") else capacity, np.float32) for name in FIELDS
    }
    for name in ("parent", "slot", "depth", "visits", "terminal"):
        arrays[name] = np.zeros(capacity, np.int32)
    arrays["terminal"] = arrays["terminal"] > 0
    arrays["children"] = np.full((capacity, slots), -1, np.int32)
    arrays["parent"][:] = arrays["slot"][:] = -1
    left = [slots] * n
    size = 1
    for above in parents:
        above %= size
        if left[above]:
            left[above] -= 1
            arrays["parent"][size], arrays["slot"][size] = above, left[above]
            arrays["depth"][size] = arrays["depth"][above] + 1
            arrays["children"][above, left[above]] = size
            size += 1
    arrays |= {"rows": np.arange(2 * capacity, dtype=np.float32).reshape(capacity, 2).view(np.int32), "wide": ()}
    arrays |= {"size": np.int32(size), "reward": np.arange(capacity * slots, dtype=np.float32).reshape(capacity, slots)}
    arrays |= {"action_rows": np.zeros((capacity, slots, 0), np.int32), "action_wide": (), "statistics": {}}
    return frb.trees.Tree(*(arrays[name] for name in FIELDS), spec)


@hypothesis.settings(max_examples=effort(30, 500))
@hypothesis.given(st.lists(st.integers(0, 11), max_size=11))
def test_search_trees_are_read_level_by_level(parents: list[int]) -> None:
    tree = search_tree(parents)
    seen, size = rb.trees.view(tree), int(tree.size)
    assert sorted(seen.vertex.tolist()) == list(range(size))
    assert (np.diff(seen.depth) >= 0).all()
    for node in range(size):
        own = int(seen.vertex[node])
        below = seen.children(node)
        stored = [k for k in range(1, size) if tree.parent[k] == own]
        assert [int(seen.vertex[k]) for k in below] == sorted(stored, key=lambda k: tree.slot[k])
        assert seen.node_observation(node).tolist() == [2 * own, 2 * own + 1]
        if node:
            assert seen.branching_action(node) == tree.slot[own]
            assert seen.steps.reward[node - 1] == tree.reward[tree.parent[own], tree.slot[own]]
            assert seen.vertex[seen.parent[node]] == tree.parent[own]
    assert seen.full_specs["action"] == frb.Categorical(4)
    assert seen.fully_expanded() == (seen.num_children[0] == 4)


def test_a_tree_that_was_read_does_not_outlive_its_last_user() -> None:
    tree = search_tree([0, 0, 1])
    alive, seen = weakref.ref(tree), rb.trees.view(tree)
    del tree
    gc.collect()
    assert alive() is None
    assert seen.branching_action(1) == 2


def test_what_is_no_tree_is_refused() -> None:
    with pytest.raises(TypeError, match=r"trees\.view: expected a Forest made by rb\.init, got list"):
        rb.trees.view([])
    with pytest.raises(TypeError, match=r"trees\.view: expected the observation of the root"):
        rb.trees.view(forest_of([(0, 0, 1)]))
    with pytest.raises(TypeError, match=r"trees\.view: expected a search tree alone"):
        rb.trees.view(search_tree([0, 1]), max_depth=1)
    tree = search_tree([0, 1])
    batch = frb.trees.Tree(
        *(jax.tree.map(lambda x: np.stack([x] * 2), getattr(tree, name)) for name in FIELDS), tree.spec
    )
    with pytest.raises(ValueError, match=r"got a batch \(2,\); give tree\.at\(0\)"):
        rb.trees.view(batch)


# --- text and pictures ----------------------------------------------------------------------------------------------


def test_text_shows_the_shape() -> None:
    assert tree_of("fork").to_string(lambda tree, node: str(tree.vertex[node])).splitlines() == [
        *("0", "`-- 1", "    `-- 2", "        |-- 3", "        `-- 4", "            `-- 5", "                `-- 6"),
    ]
    assert tree_of("fork").to_string(max_nodes=2).splitlines()[-1] == "... and 5 nodes more"
    assert tree_of("cycle").to_string().splitlines()[-1].endswith("0 by 0: visits 1, value 0, repeats")


def test_a_page_is_written(tmp_path: Any) -> None:
    figure = tree_of("fork").plot(tmp_path / "tree.html", labels=lambda tree, node: f"mine {node}")
    assert figure.data[2].text[6] == "mine 6"
    assert "mine 6" in (tmp_path / "tree.html").read_text()


def test_without_plotly_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=r"needs plotly: pip install '\.\[trees\]' in a checkout"):
        tree_of("fork").plot()
