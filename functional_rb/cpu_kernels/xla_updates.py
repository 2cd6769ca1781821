"""The kernels of updates of priorities as XLA FFI handlers: what each hands on."""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import updates
from functional_rb.cpu_kernels.xla_frame import handler, length, operand, source, target, vector


@handler
def updated_values(call: Any) -> None:
    """XLA passes plan, slots, live, priorities; the results are values, replaced, bad, peak."""
    slots, live, priorities = source(call, 1), source(call, 2), source(call, 3)
    found = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    updates.updated_values(slots, live, priorities, *found, vector(call, 0), length(operand(call, 1)))
