"""Search trees with leaves that no function of the library made: files are refused, and every search ends."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend, mostly_on_torch

SPEC = frb.trees.TreeSpec(
    {"x": frb.Unbounded((2,)), "image": frb.Unbounded((40, 40), "uint8")}, 12, 3, frb.Unbounded(()), ("squares",)
)
BATCH = 2


class Model:
    """Nodes that are all alike, on one backend, and trees of them."""

    def __init__(self, library: Backend) -> None:
        self.rb, self.array = library.rb, library.array

    def expansion(self, x: Any) -> Any:
        nothing, slots = x[:, 0] * 0, self.array(np.zeros((BATCH, 3), np.float32))
        node = {"x": x, "image": self.array(np.zeros((BATCH, 40, 40), np.uint8))}
        return frb.trees.Expansion(node, slots, nothing, nothing + 1, 0.9, actions=slots)

    def step(self, node: Any, action: Any, key: Any) -> Any:
        return self.expansion(node["x"] + 1)

    def searched(self, tree: Any, simulations: int) -> Any:
        return self.rb.trees.search(tree, self.rb.key(0), self.step, simulations)[0]

    def tree(self, simulations: int) -> Any:
        root = self.expansion(self.array(np.ones((BATCH, 2), np.float32)))
        return self.searched(self.rb.init(SPEC, items=root), simulations)


@functools.cache
def made(simulations: int) -> Any:
    """On torch, which compiles nothing."""
    with backends.make("torch") as library:
        return Model(library).tree(simulations)


def searched(library: Backend, simulations: int = 8) -> Any:
    """Trees with some nodes."""
    return library.rb.from_dlpack(made(simulations), copy=True)


def changed(library: Backend, tree: Any, name: str, at: Any, value: Any) -> Any:
    array = np.array(library.numpy(getattr(tree, name)))
    array[at] = value
    return dataclasses.replace(tree, **{name: library.array(array)})


FORGED = {
    "more nodes than fit": ("size", 1, 13, "its size is 13"),
    "fewer nodes than none": ("size", 1, -1, "its size is -1"),
    "a circle": ("parent", (1, 3), 7, "node 3 has the parent 7"),
    "its own parent": ("parent", (0, 2), 2, "node 2 has the parent 2"),
    "a parent far away": ("parent", (0, 4), 2**30, f"node 4 has the parent {2**30}"),
    "a slot beyond all": ("slot", (1, 1), 3, "node 1 has the parent 0 and the slot 3"),
    "a root with a parent": ("parent", (1, 0), 5, "its root has the parent 5"),
    "another child": ("children", (0, 0, 0), 5, "slot"),
    "children of nobody": ("children", (0, 11, 1), 2**30, "slots have a node behind them"),
    "one node fewer": ("size", 0, 3, "slots have a node behind them"),
    "another depth": ("depth", (1, 2), 9, "has the depth 9"),
    "visits below nothing": ("visits", (0, 1), -1, "visits: expected 0 to"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_tree_neither_loads_nor_is_read(library: Backend, tmp_path: Path, kind: str) -> None:
    name, at, value, text = FORGED[kind]
    tree = searched(library)
    forged = changed(library, tree, name, at, value)
    frb.save({"tree": forged}, tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=f"Tree: .*{text}"):
        frb.load(tmp_path, library.rb)
    with pytest.raises(ValueError, match=rf"trees\.view: .*{text}.*; the tree was not made by rb\.trees"):
        library.rb.trees.view(forged.at(at if isinstance(at, int) else at[0]))


def test_trees_of_other_sizes_than_their_spec_do_not_load(library: Backend, tmp_path: Path) -> None:
    tree = searched(library)
    for name, array in (
        ("parent", tree.parent[:, :3]),
        ("visits", library.array(np.zeros((BATCH, 12), np.float32))),
        ("low", tree.low[:1]),
        ("wide", ()),
        ("statistics", {"log_weights": tree.prior}),
    ):
        frb.save(dataclasses.replace(tree, **{name: array}), tmp_path)
        with pytest.raises(frb.errors.CorruptCheckpointError, match=r"Tree: .*(expected|stacked|by its spec)"):
            frb.load(tmp_path, library.rb)


def test_what_is_left_of_a_tree_is_sound(library: Backend, tmp_path: Path) -> None:
    """Subtrees, trees begun anew, empty and full ones; single ones and batches of batches."""
    rb, tree = library.rb, searched(library, 20)
    assert int(tree.refused.sum()) > 0
    trees = [rb.trees.subtree(tree, library.array(np.array([0, -1], np.int32)))]
    trees += [tree, rb.trees.subtree(trees[0], library.array(np.array([1, 1], np.int32)))]
    for one in trees:
        frb.save({"batch": one, "alone": one.at(0)}, tmp_path)
        loaded = frb.load(tmp_path, rb)
        assert rb.trees.view(loaded["alone"]).to_string() == rb.trees.view(loaded["batch"].at(0)).to_string()


@mostly_on_torch
@pytest.mark.parametrize("name", ["children", "parent"])
def test_every_search_ends(library: Backend, name: str) -> None:
    """Ways down and up that lead back to where they were."""
    tree = searched(library)
    array = library.numpy(getattr(tree, name))
    for forged in (np.zeros_like(array), np.full_like(array, 1), np.maximum(array[:, ::-1], 0)):
        made = dataclasses.replace(tree, **{name: library.array(np.ascontiguousarray(forged))})
        assert Model(library).searched(made, 4).parent.shape == tree.parent.shape
