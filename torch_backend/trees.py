"""Trees on torch: `rb.trees`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.utils import _pytree as pytree

from functional_rb.base.arrays import DeviceLike, Nest
from functional_rb.ops import part_kernels
from functional_rb.trees import api, forest_tree
from functional_rb.trees import search as core
from functional_rb.trees.lib import Search, TreesLib
from functional_rb.trees.search import Draws
from functional_rb.trees.state import Tree
from torch_backend import lib
from torch_backend.arrays import modes, ops, random
from torch_backend.compiling import tree_loops


def _run(
    function: Callable[..., object], *operands: Nest, static: tuple[object, ...] = (), writes: bool = False
) -> Nest:
    with _loops():
        return function(ops, *((_copied(operands[0]), *operands[1:]) if writes else operands), *static)


def _loops() -> part_kernels.using:
    # Only torch.compile needs them: it cannot trace a loop whose end depends on numbers.
    return part_kernels.using(tree_loops.TABLE if torch.compiler.is_compiling() else part_kernels.NONE)


def _copied(tree: Tree) -> Tree:
    # The loops of a search write into the tree that they are given.
    return tree.each(torch.clone)


def _draws(key: torch.Tensor, rows: int, words: int, like: torch.Tensor) -> torch.Tensor:
    return random.draws(key.to(like.device), rows, words)


def _put(nest: Nest, device: DeviceLike) -> Nest:
    return nest if device is None else pytree.tree_map(lambda x: x.to(torch.device(device)), nest)


def _searching(
    lib: TreesLib[torch.Tensor], tree: Tree, key: torch.Tensor, search: Search
) -> tuple[Tree, torch.Tensor, torch.Tensor]:
    batch, slots = tree.batch[0], tree.spec.children
    keys = random.split(key.to(tree.size.device), 1 + search.simulations)
    bits = random.draws(keys[0], batch, 1 + slots * search.policy.words + search.simulations)
    draws = Draws.of(bits, keys[1:], slots, search.policy.words)
    with modes.without_gradients(), _loops():
        asked, by_chance = api.callers(lib, tree, search)
        return core.search(
            ops.OPS, _copied(tree), draws, asked, search.policy, search.simulations, search.max_depth, by_chance
        )


LIB: Final[TreesLib[torch.Tensor]] = TreesLib.of(
    lib.LIB.within("trees"),
    run=_run,
    check_key=random.check_key,
    draws=_draws,
    device_of=lambda x: x.device,
    device_by_default=torch.get_default_device,
    put=_put,
    searching=_searching,
)

backup = LIB.bind(api.backup)
expand = LIB.bind(api.expand)
reset = LIB.bind(api.reset)
search = LIB.bind(api.search)
select = LIB.bind(api.select)
subtree = LIB.bind(api.subtree)
view = LIB.bind(forest_tree.view)

__all__ = [*api.NAMES]
__dir__ = __all__.copy
