"""The kernel of `frame_ring.places` as an XLA FFI handler.

A module of its own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import frame_ring
from functional_rb.cpu_kernels.xla_frame import calls, handler, ints, operand, result


@handler
def places(frame: Any) -> Any:
    """XLA passes plan, at, slots; the result is places."""
    for number in range(calls(frame)):
        call = frame, number
        frame_ring.places(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            ints(operand(call, 2)),
            ints(result(call, 0)),
        )
    return 0
