"""What type checkers read of the public functions: mypy checks this file as it does the packages."""

from typing import Any, assert_type

import numpy as np

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.hash_maps.functions import HashMap
from functional_rb.trees import Expansion
from functional_rb.trees.forest import Forest
from functional_rb.trees.view import TreeView

BUFFER = frb.BufferSpec({"x": frb.Unbounded(())}, 4)
MAP = frb.HashMapSpec(frb.Unbounded(()), 4)
FOREST = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=4, children=2)
TREE = frb.trees.TreeSpec({"x": frb.Unbounded(())}, capacity=9, children=2)


def test_init_gives_what_the_spec_is_of() -> None:
    made = jax_backend.init(BUFFER), jax_backend.init(MAP), jax_backend.init(FOREST, device=None)
    assert_type(made, tuple[frb.State, HashMap, Forest])
    assert [type(x).__name__ for x in made[1:]] == ["HashMap", "Forest"]
    same = torch_backend.init(BUFFER, items=None), torch_backend.init(MAP), torch_backend.init(FOREST)
    assert_type(same, tuple[frb.State, HashMap, Forest])
    assert [type(x).__name__ for x in same[1:]] == ["HashMap", "Forest"]
    assert isinstance(made[0], frb.State)
    assert isinstance(same[0], frb.State)


def nothing() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(1, np.float32)


def test_functions_of_users_may_say_what_they_are_given() -> None:
    def step(node: dict[str, Any], action: Any, key: np.ndarray[Any, Any]) -> Expansion:
        return Expansion(node, np.zeros((1, 2), np.float32), nothing())

    def label(tree: TreeView, node: int) -> str:
        return f"{tree.visits[node]} visits"

    def has_room(state: frb.State) -> bool:
        return int(torch_backend.size(state)) < state.spec.capacity

    root = Expansion({"x": nothing()}, np.zeros((1, 2), np.float32), nothing())
    tree, _ = torch_backend.trees.search(torch_backend.init(TREE, items=root), torch_backend.key(0), step, 1)
    assert torch_backend.trees.view(tree.at(0)).to_string(label, max_nodes=1).startswith("2 visits")
    frb.Cell(torch_backend.init(BUFFER)).wait_for(has_room, timeout=60)
