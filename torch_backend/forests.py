"""Forests on torch: `rb.forests`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from functional_rb.buffer.api import documented_by
from functional_rb.trees import forest as functions
from functional_rb.trees import forest_tree
from functional_rb.trees.forest import FOREST_FIELDS, Forest
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.view import TreeView
from torch_backend import carried


def _flatten(forest: Forest) -> tuple[list[Any], ForestSpec]:
    return [forest.arrays], forest.spec


def _flatten_with_keys(forest: Forest) -> tuple[list[tuple[Any, Any]], ForestSpec]:
    return [(pytree.GetAttrKey(name), getattr(forest, name)) for name in FOREST_FIELDS], forest.spec


def _unflatten(fields: Any, spec: ForestSpec) -> Forest:
    (arrays,) = fields
    return Forest(arrays, spec)


pytree.register_pytree_node(
    Forest, _flatten, _unflatten, serialized_type_name="functional_rb.Forest", flatten_with_keys_fn=_flatten_with_keys
)


@documented_by(functions.init)
def init(spec: ForestSpec, device: Any = None) -> Forest:
    return functions.init(carried, spec, device)


@documented_by(functions.extend)
def extend(forest: Forest, steps: Any, mask: Any = None) -> Forest:
    return functions.extend(carried, forest, steps, mask)


@documented_by(functions.extend_)
def extend_(forest: Forest, steps: Any, mask: Any = None) -> Forest:
    made = functions.extend_(carried, forest, steps, mask)
    if not torch.compiler.is_compiling():
        object.__setattr__(forest, "arrays", None)  # its memory is the new forest's
    return made


@documented_by(functions.lookup)
def lookup(forest: Forest, observation: Any) -> torch.Tensor:
    found: torch.Tensor = functions.lookup(carried, forest, observation)
    return found


@documented_by(functions.count)
def count(forest: Forest, observation: Any, action: Any = None) -> torch.Tensor:
    found: torch.Tensor = functions.count(carried, forest, observation, action)
    return found


@documented_by(functions.size)
def size(forest: Forest) -> torch.Tensor:
    found: torch.Tensor = functions.size(carried, forest)
    return found


@documented_by(functions.refused)
def refused(forest: Forest) -> torch.Tensor:
    found: torch.Tensor = functions.refused(carried, forest)
    return found


@documented_by(forest_tree.tree)
def tree(
    forest: Forest, observation: Any, max_depth: int | None = None, max_nodes: int = 100_000, compact: bool = False
) -> TreeView:
    return forest_tree.tree(carried, forest, observation, max_depth, max_nodes, compact)
