"""The loops of a search while torch.compile is at work: each one operation, as data say how often it turns."""

from __future__ import annotations

import torch

from functional_rb.base.arrays import Nest
from functional_rb.base.tracing import constant
from functional_rb.ops.part_kernels import Table
from functional_rb.trees import policies
from functional_rb.trees import search as core
from functional_rb.trees.scores import Score
from functional_rb.trees.search import Leaf
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import FIELDS, Tree
from torch_backend.arrays import ops

constant(policies.visits_wanted)

# What is static, by number: what is traced may carry a number as a constant, but no object.
_STATIC: list[tuple[TreeSpec, Score]] = []


@constant
def _number(spec: TreeSpec, score: Score) -> int:
    if (spec, score) not in _STATIC:
        _STATIC.append((spec, score))
    return _STATIC.index((spec, score))


def _arrays(tree: Tree) -> list[torch.Tensor]:
    arrays: list[torch.Tensor] = []
    for name in FIELDS:
        x = getattr(tree, name)
        arrays += x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else [x]
    return arrays


def _tree(arrays: list[torch.Tensor], spec: TreeSpec) -> Tree:
    left, fields = list(arrays), dict[str, Nest]()
    wide = spec.node_content.layout.wide
    actions = () if spec.action_content is None else spec.action_content.layout.wide
    for name in FIELDS:
        if name == "statistics":
            fields[name] = {statistic: left.pop(0) for statistic in spec.statistics}
        elif name in ("wide", "action_wide"):
            fields[name] = tuple(left.pop(0) for _ in (wide if name == "wide" else actions))
        else:
            fields[name] = left.pop(0)
    return Tree(**fields, spec=spec)


@torch.library.custom_op("functional_rb::tree_select", mutates_args=())
def _select(
    arrays: list[torch.Tensor], slot: torch.Tensor, bits: torch.Tensor, number: int, max_depth: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spec, score = _STATIC[number]
    leaf = core.select.core(ops.OPS, _tree(arrays, spec), score, slot, bits, max_depth)
    return leaf.node.clone(), leaf.slot.clone(), leaf.child.clone()


@_select.register_fake
def _(arrays: object, slot: torch.Tensor, bits: object, number: int, max_depth: int) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(slot), torch.empty_like(slot), torch.empty_like(slot)


@torch.library.custom_op("functional_rb::tree_backup", mutates_args=("arrays",))
def _backup(
    arrays: list[torch.Tensor],
    from_node: torch.Tensor,  # an argument called node clashes with one of inductor's
    slot: torch.Tensor,
    child: torch.Tensor,
    value: torch.Tensor,
    number: int,
) -> None:
    spec, score = _STATIC[number]
    tree = core.backup.core(ops.OPS, _tree(arrays, spec), Leaf(from_node, slot, child, value), score)
    for old, new in zip(arrays, _arrays(tree), strict=True):
        if old.data_ptr() != new.data_ptr():  # low and high; what else is new was written in place
            old.copy_(new)


def select(tree: Tree, score: Score, slot: torch.Tensor, bits: torch.Tensor, max_depth: int) -> Leaf:
    """`search.select` as one operation."""
    node, slot, child = _select(_arrays(tree), slot, bits, _number(tree.spec, score), max_depth)
    return Leaf(node, slot, child, torch.zeros_like(tree.low))


def backup(tree: Tree, leaf: Leaf, score: Score) -> Tree:
    """`search.backup` as one operation, which writes in place."""
    _backup(_arrays(tree), *leaf, _number(tree.spec, score))
    return tree


# What stands in for the loops while tracing.
TABLE: Table = {core.select: select, core.backup: backup}
