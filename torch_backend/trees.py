"""Trees on torch."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import FIELDS, Tree


def _flatten(tree: Tree) -> tuple[list[Any], TreeSpec]:
    return [getattr(tree, name) for name in FIELDS], tree.spec


def _flatten_with_keys(tree: Tree) -> tuple[list[tuple[Any, Any]], TreeSpec]:
    return [(pytree.GetAttrKey(name), getattr(tree, name)) for name in FIELDS], tree.spec


def _unflatten(fields: Any, spec: TreeSpec) -> Tree:
    return Tree(**dict(zip(FIELDS, fields, strict=True)), spec=spec)


pytree.register_pytree_node(
    Tree, _flatten, _unflatten, serialized_type_name="functional_rb.Tree", flatten_with_keys_fn=_flatten_with_keys
)
