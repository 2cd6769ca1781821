"""The kernel of `frame_ring.places` as an XLA FFI handler.

A module of its own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import frame_ring
from functional_rb.cpu_kernels.xla_frame import handler, length, operand, source, target, vector


@handler
def places(call: Any) -> None:
    """XLA passes plan, at, slots; the result is places."""
    capacity, count = length(operand(call, 1)), length(operand(call, 2))
    frame_ring.places(source(call, 1), source(call, 2), target(call, 0), vector(call, 0), capacity, count)
