"""The kernels of `structures.hash_map` as XLA FFI handlers.

A module of its own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import hash_map
from functional_rb.cpu_kernels.xla_frame import calls, handler, ints, marks, operand, result


@handler
def map_lookup(frame: Any) -> Any:
    """XLA passes plan, table, keys, counts, counters, rows; the result is ids."""
    for number in range(calls(frame)):
        call = frame, number
        hash_map.lookup(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            ints(operand(call, 2)),
            ints(operand(call, 5)),
            ints(result(call, 0)),
        )
    return 0


@handler
def map_insert(frame: Any) -> Any:
    """XLA passes plan, table, keys, counts, counters, rows, mask (empty for none).

    The results are the four arrays of the map, which are written in place, ids, and fresh.
    """
    for number in range(calls(frame)):
        call = frame, number
        hash_map.insert(
            ints(operand(call, 0)),
            ints(result(call, 0)),
            ints(result(call, 1)),
            ints(result(call, 2)),
            ints(result(call, 3)),
            ints(operand(call, 5)),
            marks(operand(call, 6)),
            ints(result(call, 4)),
            marks(result(call, 5)),
        )
    return 0
