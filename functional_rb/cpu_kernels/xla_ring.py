"""The kernel of `ring.choose_slots` as an XLA FFI handler: what it hands on.

A module of its own, as handlers are compiled when their module is imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import ring
from functional_rb.cpu_kernels.xla_frame import handler, length, result, source, target, vector


@handler
def choose_slots(call: Any) -> None:
    """plan, steps, cursors, sizes, mask -> slots, source, live, written, cursors, sizes (no mask: all empty)."""
    plan, steps, count = vector(call, 0), vector(call, 1)[0], length(result(call, 0))
    cursors, sizes, mask = source(call, 2), source(call, 3), source(call, 4)
    slots, chosen, live, written = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    new_cursors, new_sizes = target(call, 4), target(call, 5)
    ring.choose_slots(
        cursors, sizes, mask, slots, chosen, live, written, new_cursors, new_sizes, plan, np.int64(steps), count
    )
