"""Trees on JAX."""

from __future__ import annotations

import jax

from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import FIELDS, Tree

jax.tree_util.register_dataclass(Tree, data_fields=FIELDS, meta_fields=("spec",))
jax.tree_util.register_static(TreeSpec)
