"""What of the core is computed in another form on TPUs, with the same bits."""

from __future__ import annotations

import functools

import jax

from functional_rb.ops.part_kernels import NONE, Table
from functional_rb.structures import sum_tree, tree_columns
from jax_backend.arrays import ops

TABLE: Table = {
    sum_tree.set_leaves: functools.partial(tree_columns.set_leaves, ops.OPS),
    sum_tree.descend: functools.partial(tree_columns.descend, ops.OPS),
}


def core_table() -> Table:
    """What stands in for functions of the core where no kernels do."""
    return TABLE if jax.default_backend() == "tpu" else NONE
