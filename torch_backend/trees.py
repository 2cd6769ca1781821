"""Trees on torch: `rb.trees`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from functional_rb.ops import part_kernels
from functional_rb.trees import api, forest_tree, nodes, reuse
from functional_rb.trees import search as core
from functional_rb.trees.policies import Policy
from functional_rb.trees.scores import Score
from functional_rb.trees.search import Draws, Evaluated, Leaf
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import FIELDS, Tree
from torch_backend import convert, modes, ops, random, tree_loops
from torch_backend.lib import LIB


class _Backend:
    """`functional_rb.trees.api.Backend` on torch; what writes in place writes to a copy."""

    build_mapping = staticmethod(convert.build_mapping)
    cast = staticmethod(ops.cast)

    def convert(self, leaf: Any, expected: Any, name: str) -> torch.Tensor:
        """Tensors without their autograd history."""
        return convert.convert(leaf, expected, name)

    def check_tree(self, tree: Tree, function: str) -> None:
        """Refuse trees of JAX."""
        if not isinstance(tree.parent, torch.Tensor):
            raise TypeError(f"{function}: expected a tree of torch_backend; bring it over by rb.from_dlpack(tree)")

    def full(self, shape: tuple[int, ...], value: float, dtype: str, like: torch.Tensor) -> torch.Tensor:
        """An array of one value."""
        return torch.full(shape, value, dtype=ops.DTYPES[dtype], device=like.device)

    def init(self, spec: TreeSpec, root: Evaluated, device: Any) -> Tree:
        """Trees of one node each."""
        where = root.prior.device if device is None else torch.device(device)
        return core.init(ops, spec, pytree.tree_map(lambda x: x.to(where), root), where)

    def select(self, tree: Tree, key: torch.Tensor, score: Score, max_depth: int) -> Leaf:
        """Go down from the root."""
        bits = random.draws(random.check_key(key).to(tree.size.device), tree.batch[0], 1)[:, 0]
        with _loops():
            return core.select_by(ops, tree, score, bits, max_depth)

    def expand(self, tree: Tree, leaf: Leaf, found: Evaluated) -> tuple[Tree, Leaf]:
        """Store what lies behind edges."""
        return core.expand(ops, _copied(tree), core.within(ops, tree, leaf), found)

    def backup(self, tree: Tree, leaf: Leaf, score: Score) -> Tree:
        """Bring values back to the root."""
        with _loops():
            return core.backup(ops, *core.valued(ops, _copied(tree), core.within(ops, tree, leaf)), score)

    def content(self, tree: Tree, leaf: Leaf) -> tuple[list[torch.Tensor], Any]:
        """The leaves of nodes and of actions."""
        return core.content_of(ops, tree, core.within(ops, tree, leaf))

    def search(
        self,
        tree: Tree,
        key: torch.Tensor,
        step: Callable[..., Any],
        simulations: int,
        policy: Policy,
        max_depth: int,
        chance_step: Callable[..., Any] | None,
    ) -> tuple[Tree, torch.Tensor, torch.Tensor]:
        """Search."""
        batch, slots = tree.batch[0], tree.spec.children
        keys = random.split(random.check_key(key).to(tree.size.device), 1 + simulations)
        bits = random.draws(keys[0], batch, 1 + slots * policy.words + simulations)
        draws = Draws.of(bits, keys[1:], slots, policy.words)
        with modes.without_gradients(), _loops():
            asked, by_chance = api.callers(self, tree, step, chance_step)
            return core.search(ops, _copied(tree), draws, asked, policy, simulations, max_depth, by_chance)

    def summary(self, tree: Tree) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The fields of a `Summary`."""
        return core.summary(ops, tree)

    def subtree(self, tree: Tree, slot: torch.Tensor) -> Tree:
        """Go on from a child."""
        return reuse.subtree(ops, tree, nodes.empty(ops, tree.spec, tree.batch[0], tree.size.device), slot)

    def reset(self, tree: Tree, mask: torch.Tensor, root: Evaluated) -> Tree:
        """Begin some trees anew."""
        return reuse.reset(ops, tree, self.init(tree.spec, root, tree.size.device), mask)


def _loops() -> part_kernels.using:
    """What stands in for the loops: nothing, unless torch.compile is at work."""
    return part_kernels.using(tree_loops.TABLE if torch.compiler.is_compiling() else part_kernels.NONE)


def _copied(tree: Tree) -> Tree:
    """A tree with memory of its own, which is written in place."""
    return dataclasses.replace(tree, **{name: _cloned(getattr(tree, name)) for name in FIELDS})


def _cloned(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(y.clone() for y in x)
    return {name: y.clone() for name, y in x.items()} if isinstance(x, dict) else x.clone()


_backend = _Backend()


_lib = LIB.within("trees")

init = _lib.bind_to(_backend, api.init)
expand = _lib.bind_to(_backend, api.expand)
backup = _lib.bind_to(_backend, api.backup)
content = _lib.bind_to(_backend, api.content)
summary = _lib.bind_to(_backend, api.summary)
subtree = _lib.bind_to(_backend, api.subtree)
reset = _lib.bind_to(_backend, api.reset)
select = _lib.bind_to(_backend, api.select)
search = _lib.bind_to(_backend, api.search)
view = _lib.bind(forest_tree.view)

__all__ = [*api.NAMES]
__dir__ = __all__.copy
