"""Forests on torch: `rb.forests`."""

from __future__ import annotations

from typing import Any

import torch

from functional_rb.buffer.binding import documented_by
from functional_rb.trees import forest as functions
from functional_rb.trees import forest_growth, forest_tree
from functional_rb.trees.forest import Forest
from torch_backend import carried
from torch_backend.binder import Binder

_binds = Binder(lambda _: carried)

init = _binds(functions.init)
extend = _binds(functions.extend)
with_spec = _binds(forest_growth.with_spec)
merge = _binds(forest_growth.merge)
lookup = _binds.array(functions.lookup)
count = _binds.array(functions.count)
size = _binds.array(functions.size)
refused = _binds.array(functions.refused)
tree = _binds(forest_tree.tree)


@documented_by(functions.extend_)
def extend_(forest: Forest, steps: Any, mask: Any = None) -> Forest:
    made = functions.extend_(carried, forest, steps, mask)
    if not torch.compiler.is_compiling():
        object.__setattr__(forest, "arrays", None)  # its memory is the new forest's
    return made
