"""The kernels of `structures.hash_map` as XLA FFI handlers.

A module of its own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import hash_map
from functional_rb.cpu_kernels.xla_frame import handler, operand, rows_of, source, target, vector


@handler
def map_lookup(call: Any) -> None:
    """XLA passes plan, table, keys, counts, counters, rows; the result is ids."""
    table, keys, rows = source(call, 1), source(call, 2), source(call, 5)
    hash_map.lookup(table, keys, rows, target(call, 0), vector(call, 0), rows_of(operand(call, 5)))


@handler
def map_insert(call: Any) -> None:
    """XLA passes plan, table, keys, counts, counters, rows, mask (empty for none).

    The results are the four arrays of the map, which are written in place, ids, and fresh.
    """
    table, keys, counts, counters = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    rows, mask, ids, fresh = source(call, 5), source(call, 6), target(call, 4), target(call, 5)
    plan, batch = vector(call, 0), rows_of(operand(call, 5))
    hash_map.insert(table, keys, counts, counters, rows, mask, ids, fresh, plan, batch)
