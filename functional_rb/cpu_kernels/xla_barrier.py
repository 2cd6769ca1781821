"""A custom call that does nothing, to keep XLA's reads before its writes; see `jax_backend.custom_call.barrier`."""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels.xla_frame import handler


@handler
def barrier(call: Any) -> None:
    """Arrays, and others to wait for -> the same arrays, which lie in the same memory."""
