"""Forests against dicts and lists in Python, on both backends."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as hnp

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.backends import Backend
from tests.support.children import ROOT
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.xla_options import AS_USERS

# One size of batch, so that JAX compiles once for a spec.
BATCH = 12


class Listed:
    """The law of a forest: what each step adds, one after another."""

    def __init__(self, capacity: int, most: int, results: int | None = None) -> None:
        self.capacity, self.most = capacity, most
        self.room = most if results is None else results
        self.nodes: dict[Any, int] = {}
        self.edges: dict[tuple[int, Any], int] = {}
        self.results: dict[tuple[int, int], int] = {}
        self.visits, self.terminations = [0] * capacity, [0] * capacity
        self.counts, self.sums = ([0] * most, [0] * self.room), ([0.0] * most, [0.0] * self.room)
        self.refused = 0

    def add(self, before: Any, action: Any, reward: float, after: Any, terminated: bool) -> None:
        start, end = (self._found(self.nodes, x, self.capacity) for x in (before, after))
        if start is None or end is None:
            self.refused += 1
            return
        edge = self._found(self.edges, (start, action), self.most)
        if edge is None:
            self.refused += 1
            return
        self.counts[0][edge] += 1
        result = self._found(self.results, (edge, end), self.room)
        if result is None:
            self.refused += 1
            return
        self.counts[1][result] += 1
        self.visits[start] += 1
        self.terminations[end] += terminated
        self.sums[0][edge] += reward
        self.sums[1][result] += reward

    @staticmethod
    def _found(known: dict[Any, int], key: Any, most: int) -> int | None:
        return known.setdefault(key, len(known)) if key in known or len(known) < most else None

    def children(self, node: int) -> list[tuple[int, int]]:
        """The edges and ends of a node's results, by edge and then in the order of their coming."""
        starts = [start for start, _ in self.edges]
        return [(edge, end) for edge, end in sorted(self.results, key=lambda x: x[0]) if starts[edge] == node]

    def unrolled(self, node: int, depth: int, above: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
        """The vertex at each path from a node, so many steps deep."""
        found = {(): node}
        if node not in above and depth:
            for k, (_, end) in enumerate(self.children(node)):
                below = self.unrolled(end, depth - 1, (*above, node))
                found |= {(k, *path): vertex for path, vertex in below.items()}
        return found


def steps_of(rows: np.ndarray) -> Any:
    """Steps [B] of rows int32 [B, 5]: before, action, reward, after, terminated."""
    before, action, reward, after, terminated = rows.T
    observations = [{"at": x.astype(np.int32), "sign": x > 2} for x in (before, after)]
    return frb.ted.from_transitions(
        observations[0], action.astype(np.int32), reward.astype(np.float32), observations[1], terminated > 0
    )


OBSERVATION = {"at": frb.Unbounded((), "int32"), "sign": frb.Binary()}
ROOMY = frb.trees.ForestSpec(OBSERVATION, frb.Categorical(3), capacity=8, children=9, hash_bits=2)
RANDOM = frb.trees.ForestSpec(OBSERVATION, frb.Categorical(3), capacity=6, children=2, outcomes=4, hash_bits=3)
TIGHT = frb.trees.ForestSpec(OBSERVATION, frb.Categorical(3), capacity=4, children=1, seed=3)
ROWS = hnp.arrays(np.int32, (BATCH, 5), elements=st.integers(0, 5), fill=st.nothing()).map(
    lambda rows: rows % np.array([6, 3, 4, 6, 2], np.int32)
)


def check_arrays(arrays: Any, law: Listed, numpy: Any) -> None:
    """The arrays of a forest are what the law has."""
    for made, known in zip(arrays[:3], (law.nodes, law.edges, law.results), strict=True):
        assert numpy(made.counters)[0] == len(known)
    keys = numpy(arrays.edges.keys)[: len(law.edges)]
    assert [tuple(row) for row in keys.tolist()] == list(law.edges)
    assert [tuple(row) for row in numpy(arrays.results.keys)[: len(law.results)].tolist()] == list(law.results)
    assert numpy(arrays.visits).tolist() == law.visits
    assert numpy(arrays.terminations).tolist() == law.terminations
    assert [numpy(arrays.edges.counts).tolist(), numpy(arrays.results.counts).tolist()] == list(law.counts)
    assert [numpy(arrays.edge_rewards).tolist(), numpy(arrays.result_rewards).tolist()] == list(law.sums)
    assert int(arrays.refused) == law.refused


@pytest.mark.parametrize("spec", [ROOMY, TIGHT, RANDOM], ids=["roomy", "tight", "random"])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "core"])
def test_extending_is_taking_in_steps_one_by_one(library: Backend, spec: Any, kernels: bool) -> None:
    if library.library == "jax" and not kernels and spec is not effort(RANDOM, spec):
        pytest.skip("a long search: make test-all")
    rb = library.rb

    @hypothesis.settings(max_examples=effort(10, 300))
    @hypothesis.given(st.lists(st.tuples(ROWS, hnp.arrays(bool, BATCH)), min_size=1, max_size=3))
    def check(batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
        law, forest = Listed(spec.capacity, spec.edges.capacity, spec.results.capacity), rb.init(spec)
        for rows, mask in batches:
            forest = rb.add(forest, steps_of(rows), mask=mask)
            for before, action, reward, after, terminated in rows[mask].tolist():
                law.add(before, action, reward, after, bool(terminated))
        check_arrays(forest.arrays, law, library.numpy)
        for before, node in law.nodes.items():
            tree = rb.trees.view(forest, {"at": np.int32(before), "sign": np.bool_(before > 2)}, max_depth=3)
            paths = law.unrolled(node, 3)
            found = tree.vertices(key_type="path")
            assert {path: int(tree.vertex[k]) for path, k in found.items()} == paths
            assert len(tree) == len(paths)
            assert tree.num_vertices == len(set(paths.values()))

    with frb.kernels(kernels):
        check()


LARGE = frb.trees.ForestSpec(OBSERVATION, frb.Categorical(3), capacity=9, children=9, outcomes=10, seed=1)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "core"])
def test_forests_that_grow_and_merge_are_those_of_all_steps(library: Backend, kernels: bool) -> None:
    """A forest that was full takes in what comes later; two forests are one of the steps of both."""
    if library.library == "jax" and not effort(kernels, True):  # XLA takes ten seconds
        pytest.skip("a long search: make test-all")
    rb = library.rb

    def law_of(spec: Any, *parts: np.ndarray) -> Listed:
        law = Listed(spec.capacity, spec.edges.capacity, spec.results.capacity)
        for before, action, reward, after, terminated in np.concatenate(parts).tolist():
            law.add(before, action, reward, after, bool(terminated))
        return law

    @hypothesis.settings(max_examples=effort(6, 200))
    @hypothesis.given(ROWS, ROWS)
    def check(first: np.ndarray, second: np.ndarray) -> None:
        one, other = (rb.add(rb.init(ROOMY), steps_of(rows)) for rows in (first, second))
        before = jax.tree.map(lambda x: np.array(library.numpy(x)), one.arrays)
        check_arrays(one.merge(other).arrays, law_of(ROOMY, first, second), library.numpy)
        larger = rb.with_spec(one, LARGE)
        check_arrays(larger.arrays, law_of(LARGE, first), library.numpy)
        check_arrays(larger.merge(other).arrays, law_of(LARGE, first, second), library.numpy)
        larger = rb.add_(larger, steps_of(second))  # in memory of its own
        check_arrays(larger.arrays, law_of(LARGE, first, second), library.numpy)
        jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(library.numpy, one.arrays))
        back = rb.with_spec(larger, ROOMY)
        check_arrays(back.arrays, law_of(ROOMY, first, second), library.numpy)

    with frb.kernels(kernels):
        check()


def test_what_two_forests_have_no_room_for_is_refused_and_counted(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    law = Listed(4, 4)
    full = np.array([[0, 1, 2, 1, 0], [1, 0, 3, 0, 0], [0, 1, 1, 2, 1], [2, 0, 1, 3, 1]], np.int32)
    for before, action, reward, after, terminated in full.tolist():
        law.add(before, action, reward, after, bool(terminated))
    one = rb.add(rb.init(TIGHT), steps_of(full))
    later = np.array([[0, 1, 5, 1, 0]] * 2 + [[4, 0, 1, 5, 1], [0, 0, 1, 2, 0]], np.int32)
    other = rb.add(rb.init(ROOMY), steps_of(later))
    law.add(0, 1, 5, 1, False)
    law.add(0, 1, 5, 1, False)
    law.refused += 1
    law.add(0, 0, 1, 2, False)  # for its edge there is room, and for its result none
    made = one.merge(other)
    check_arrays(made.arrays, law, library.numpy)
    for sound in (made, rb.with_spec(made, LARGE)):
        frb.save(sound, tmp_path)
        loaded = frb.load(tmp_path, rb).arrays  # which refuses what no forest is
        jax.tree.map(np.testing.assert_array_equal, *(jax.tree.map(library.numpy, x) for x in (loaded, sound.arrays)))


def test_growing_and_merging_compiled(library: Backend) -> None:
    rb, steps = library.rb, steps_of(FULL)
    one = rb.add(rb.init(ROOMY), library.tree(steps))

    def run(forest: Any) -> Any:
        return rb.with_spec(forest, LARGE).merge(forest)

    eager = run(one)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager") if library.library == "torch" else jax.jit(run)
    for ours, theirs in zip(jax.tree.leaves(compiled(one).arrays), jax.tree.leaves(eager.arrays), strict=True):
        np.testing.assert_array_equal(library.numpy(ours), library.numpy(theirs))
    if library.library == "jax":
        with pytest.raises(ValueError, match="expected room for 8 nodes, got a spec for 4"):
            jax.jit(lambda forest: rb.with_spec(forest, TIGHT))(one)


def test_forests_of_other_things_are_refused(library: Backend) -> None:
    rb = library.rb
    one, small = rb.add(rb.init(ROOMY), steps_of(FULL)), dataclasses.replace(ROOMY, capacity=2, children=1)
    with pytest.raises(ValueError, match=r"with_spec: expected room for 4 nodes, got a spec for 2; give more"):
        rb.with_spec(one, small)
    with pytest.raises(TypeError, match=r"with_spec: expected a ForestSpec, got HashMapSpec"):
        rb.with_spec(one, frb.HashMapSpec(frb.Unbounded(()), 4))
    other = frb.trees.ForestSpec(OBSERVATION, frb.Categorical(2), capacity=8, children=9)
    for use in (lambda: rb.with_spec(one, other), lambda: one.merge(rb.init(other))):
        with pytest.raises(ValueError, match="expected the same actions"):
            use()
    with pytest.raises(ValueError, match="outcomes: expected 1 to"):
        dataclasses.replace(ROOMY, outcomes=0)


FULL = np.array([[0, 1, 2, 1, 0], [1, 0, 3, 0, 0], [0, 1, 1, 2, 1], [0, 2, 1, 3, 1]], np.int32)


def test_steps_come_in_any_shape(library: Backend) -> None:
    """Lanes [T, E], the items of a buffer, trajectories with a mask, and single steps make the same forest."""
    rb = library.rb
    steps = steps_of(FULL)
    grid = jax.tree.map(lambda x: x.reshape(2, 2), steps)
    column = {**steps, "next": {**steps["next"], "reward": steps["next"]["reward"][:, None]}}
    item = frb.specs.spec_of(jax.tree.map(lambda x: x[0], steps))
    buffer = rb.add(rb.init(frb.BufferSpec(item, 6)), steps)
    single = rb.init(ROOMY)
    for k in range(4):
        single = rb.add_(single, jax.tree.map(lambda x, k=k: x[k], steps))
    start = rb.init(ROOMY)
    made = [
        rb.add(start, steps),
        rb.add(start, grid),
        rb.add(start, column),
        rb.add(start, rb.items(buffer), mask=np.arange(6) < 4),
    ]
    for forest in made:
        for ours, theirs in zip(jax.tree.leaves(forest.arrays), jax.tree.leaves(single.arrays), strict=True):
            np.testing.assert_array_equal(library.numpy(ours), library.numpy(theirs))
    asked = {"at": np.array([0, 1, 4], np.int32), "sign": np.zeros(3, bool)}
    assert rb.lookup(single, asked).tolist() == [0, 1, -1]
    assert rb.visits(single, asked).tolist() == [3, 1, 0]
    assert rb.visits(single, asked, np.array([1, 1, 0], np.int32)).tolist() == [2, 0, 0]
    assert int(rb.size(start)) == 0


def test_a_random_edge_has_several_results_with_their_counts(library: Backend) -> None:
    rb = library.rb
    rows = np.array([[0, 0, 2, 1, 0]] * 3 + [[0, 0, 6, 2, 1]], np.int32)
    forest = rb.add(rb.init(ROOMY), steps_of(rows))
    tree = rb.trees.view(forest, {"at": np.int32(0), "sign": np.bool_(False)})
    assert [tree.visits[k] for k in range(3)] == [4, 3, 1]
    assert tree.steps.reward.tolist() == [2.0, 6.0]
    assert tree.value[0] == 3.0
    assert tree.terminal.tolist() == [False, False, True]
    assert tree.selected_actions().tolist() == [0, 0]
    assert tree.fully_expanded(actions=1)
    assert not tree.fully_expanded()


def test_forests_consume_and_refuse(library: Backend) -> None:
    rb = library.rb
    old = rb.init(ROOMY)
    rb.add_(old, steps_of(FULL))
    with pytest.raises(RuntimeError, match="consumed"):
        rb.size(old)
    new = rb.init(ROOMY)
    steps = steps_of(FULL)
    tree = frb.trees.TreeSpec(frb.Unbounded(()), capacity=4, children=2)
    for use, text in (
        (lambda: rb.init(tree), "init: expected a frb.trees.Expansion, got NoneType"),
        (lambda: rb.init(new.spec, items=steps), "init: a ForestSpec has no use for items; leave it out"),
        (lambda: rb.items(new), "items: expected State or HashMap, got Forest; use rb.trees.view("),
        (lambda: rb.add_(new, 3), "add_: "),
    ):
        with pytest.raises(TypeError, match="^" + text.replace("(", r"\(").replace(")", r"\)")):
            use()
    for use, name in (
        (lambda: rb.add(new, steps, priorities=np.ones(3)), "add: a Forest has no use for priorities"),
        (lambda: rb.add_(new, steps, validate=True), "add_: a Forest has no use for validate"),
        (lambda: rb.add(new, steps, time_major=False), "add: a Forest has no use for time_major"),
        (lambda: rb.size(new, each=True), "size: a Forest has no use for each"),
        (lambda: rb.init(ROOMY, items=steps), "init: a ForestSpec has no use for items"),
    ):
        with pytest.raises(TypeError, match=f"^{name}; leave it out$"):
            use()
    for reward in ([1.0] * 4, "x", None):
        with pytest.raises(TypeError, match=r"leaf 'next/reward': expected an array of dtype float32, got .*; give"):
            rb.add(new, {**steps, "next": {**steps["next"], "reward": reward}})
    others = (torch_backend if library.library == "jax" else jax_backend).init(ROOMY)
    for use in (rb.counts, lambda x: rb.add(x, steps)):
        with pytest.raises(TypeError, match=r"a forest of this backend; bring it over by rb\.from_dlpack\(forest\)"):
            use(others)
    for part, text in (("action", "with 'action'"), ("next", "with 'next'"), ("at", r"leaves \['at', 'sign'\]")):
        with pytest.raises(ValueError, match=text):
            rb.add(new, {name: x for name, x in steps.items() if name != part})
    for name in ("reward", "terminated"):
        less = {key: x for key, x in steps["next"].items() if key != name}
        with pytest.raises(ValueError, match=f"expected '{name}' in 'next'"):
            rb.add(new, {**steps, "next": less})
        with pytest.raises(ValueError, match=f"leaf 'next/{name}': expected shape"):
            rb.add(new, {**steps, "next": {**steps["next"], name: steps["next"][name][:2]}})
    with pytest.raises(ValueError, match="the same axes in front"):
        rb.add(new, {**steps, "action": steps["action"][:2]})
    with pytest.raises(KeyError, match="does not have this observation"):
        rb.trees.view(new, {"at": np.int32(0), "sign": np.bool_(False)})
    with pytest.raises(ValueError, match=r"with the axes \(2,\) in front"):
        rb.trees.view(new, {"at": np.zeros(2, np.int32), "sign": np.zeros(2, bool)})
    with pytest.raises(ValueError, match="expected max_nodes >= 1"):
        rb.trees.view(new, {"at": np.int32(0), "sign": np.bool_(False)}, max_nodes=0)
    with pytest.raises(ValueError, match="expected actions with the axes"):
        rb.visits(new, {"at": np.int32(0), "sign": np.bool_(False)}, np.zeros(2, np.int32))


def test_what_may_be_given_is_told_whether_or_not_forests_were_imported() -> None:
    program = "from functional_rb.public.structures import called_on; called_on(3, 'add')"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False).stderr
    assert told.endswith("TypeError: add: expected State, HashMap or Forest, got int\n"), told


def test_a_forest_under_jit_and_scan() -> None:
    rb = jax_backend
    steps = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), steps_of(FULL))
    run = jax.jit(lambda forest: jax.lax.scan(lambda forest, x: (rb.add(forest, x), None), forest, steps)[0])
    made = run(rb.init(ROOMY))
    assert made.spec is ROOMY
    assert made.arrays.visits.tolist() == [6, 2, 0, 0, 0, 0, 0, 0]


def test_in_a_loop_nothing_is_copied() -> None:
    rb, spec = jax_backend, frb.trees.ForestSpec(OBSERVATION, frb.Categorical(3), 1000, 4)
    steps = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 3), steps_of(FULL))

    def run(forest: Any, steps: Any) -> Any:
        return jax.lax.scan(lambda forest, x: (rb.add(forest, x), None), forest, steps)[0]

    program = jax.jit(run, donate_argnums=0).lower(rb.init(spec), steps).compile(AS_USERS)
    assert big_copies(program.as_text(), 500) == []


def test_a_forest_compiled_by_torch_as_one_graph() -> None:
    rb = torch_backend
    steps = jax.tree.map(torch.from_numpy, steps_of(FULL))
    compiled = torch.compile(rb.add, fullgraph=True, backend="aot_eager")
    ours, theirs = (extend(rb.init(ROOMY), steps) for extend in (compiled, rb.add))
    for one, other in zip(jax.tree.leaves(ours.arrays), jax.tree.leaves(theirs.arrays), strict=True):
        assert torch.equal(one, other)


def test_specs_of_forests() -> None:
    assert pickle.loads(pickle.dumps(ROOMY)) == ROOMY != TIGHT
    assert repr(torch_backend.init(TIGHT)) == f"Forest({TIGHT!r})"
    made = torch_backend.init(ROOMY).arrays
    nbytes = sum(4 * x.numel() for x in jax.tree.leaves(made)) - 4 * 7  # the counters
    assert ROOMY.node_bytes * ROOMY.capacity == pytest.approx(nbytes, abs=ROOMY.capacity)
    with pytest.raises(ValueError, match="expected at least one element"):
        frb.trees.ForestSpec(frb.Unbounded((0,)), frb.Categorical(2), 3, 1)
    with pytest.raises(ValueError, match="children: expected 1 to"):
        frb.trees.ForestSpec(frb.Unbounded(()), frb.Categorical(2), 2**20, 2**10)
