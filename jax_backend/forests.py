"""Forests on JAX: `rb.forests`."""

from __future__ import annotations

from typing import Any

import jax

from functional_rb.buffer.api import documented_by
from functional_rb.trees import forest as functions
from functional_rb.trees import forest_tree
from functional_rb.trees.forest import FOREST_FIELDS, Forest
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.view import TreeView
from jax_backend import carried, rules

jax.tree_util.register_dataclass(Forest, data_fields=FOREST_FIELDS, meta_fields=("spec",))
jax.tree_util.register_static(ForestSpec)


@rules.transfers
@documented_by(functions.init)
def init(spec: ForestSpec, device: Any = None) -> Forest:
    return functions.init(carried, spec, device)


@rules.transfers
@documented_by(functions.extend)
def extend(forest: Forest, steps: Any, mask: Any = None) -> Forest:
    return functions.extend(carried, forest, steps, mask)


@rules.transfers
@documented_by(functions.extend_)
def extend_(forest: Forest, steps: Any, mask: Any = None) -> Forest:
    return functions.extend_(carried, forest, steps, mask)


@rules.transfers
@documented_by(functions.lookup)
def lookup(forest: Forest, observation: Any) -> jax.Array:
    found: jax.Array = functions.lookup(carried, forest, observation)
    return found


@rules.transfers
@documented_by(functions.count)
def count(forest: Forest, observation: Any, action: Any = None) -> jax.Array:
    found: jax.Array = functions.count(carried, forest, observation, action)
    return found


@rules.transfers
@documented_by(functions.size)
def size(forest: Forest) -> jax.Array:
    found: jax.Array = functions.size(carried, forest)
    return found


@rules.transfers
@documented_by(functions.refused)
def refused(forest: Forest) -> jax.Array:
    found: jax.Array = functions.refused(carried, forest)
    return found


@rules.transfers
@documented_by(forest_tree.tree)
def tree(
    forest: Forest, observation: Any, max_depth: int | None = None, max_nodes: int = 100_000, compact: bool = False
) -> TreeView:
    return forest_tree.tree(carried, forest, observation, max_depth, max_nodes, compact)
