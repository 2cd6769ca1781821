"""Forests on torch: `rb.forests`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from functional_rb.buffer.api import documented_by
from functional_rb.buffer.binding import bound
from functional_rb.trees import forest as functions
from functional_rb.trees import forest_tree
from functional_rb.trees.forest import Forest
from torch_backend import carried

P = ParamSpec("P")
A = TypeVar("A")


def _binds(core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
    """Bind a function of the core."""
    return bound(core, lambda _: carried)


def _reads(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, torch.Tensor]:
    """Bind a function of the core that reads a tensor off a forest."""
    return bound(core, lambda _: carried, "torch.Tensor")


init = _binds(functions.init)
extend = _binds(functions.extend)
lookup = _reads(functions.lookup)
count = _reads(functions.count)
size = _reads(functions.size)
refused = _reads(functions.refused)
tree = _binds(forest_tree.tree)


@documented_by(functions.extend_)
def extend_(forest: Forest, steps: Any, mask: Any = None) -> Forest:
    made = functions.extend_(carried, forest, steps, mask)
    if not torch.compiler.is_compiling():
        object.__setattr__(forest, "arrays", None)  # its memory is the new forest's
    return made
