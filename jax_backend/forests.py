"""Forests on JAX: `rb.forests`."""

from __future__ import annotations

from functional_rb.trees import forest as functions
from functional_rb.trees import forest_growth, forest_tree
from jax_backend import carried
from jax_backend.binder import Binder

_binds = Binder(lambda _: carried)

init = _binds(functions.init)
extend = _binds(functions.extend)
extend_ = _binds(functions.extend_)
with_spec = _binds(forest_growth.with_spec)
merge = _binds(forest_growth.merge)
lookup = _binds.array(functions.lookup)
count = _binds.array(functions.count)
size = _binds.array(functions.size)
refused = _binds.array(functions.refused)
tree = _binds(forest_tree.tree)

__all__ = [
    "count",
    "extend",
    "extend_",
    "init",
    "lookup",
    "merge",
    "refused",
    "size",
    "tree",
    "with_spec",
]
__dir__ = __all__.copy
