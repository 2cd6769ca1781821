"""Forests on JAX: `rb.forests`."""

from functional_rb.trees import forest, forest_growth, forest_tree
from jax_backend.lib import LIB

_lib = LIB.within("forests")

count = _lib.bind(forest.count)
extend = _lib.bind(forest.extend)
extend_ = _lib.bind(forest.extend_)
init = _lib.bind(forest.init)
lookup = _lib.bind(forest.lookup)
merge = _lib.bind(forest_growth.merge)
refused = _lib.bind(forest.refused)
size = _lib.bind(forest.size)
tree = _lib.bind(forest_tree.tree)
with_spec = _lib.bind(forest_growth.with_spec)

__all__ = [*forest_tree.NAMES]
__dir__ = __all__.copy
