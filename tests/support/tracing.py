"""How torch.compile traces: without what it does for its own developers, which takes longer than some programs."""

from __future__ import annotations

import functools
import sys
from typing import Any


def trace_quickly() -> None:
    """Let torch not time its guards, for which it empties the caches of the processor, and keep the code it has read.

    It keeps that of 128 functions, and a traced step calls more than that, one after the other. Nothing is changed
    before torch's compiler has been imported, which takes seconds, or where it has no such functions.
    """
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = _untimed
    code: Any = sys.modules.get("torch._dynamo.bytecode_transformation")
    read = getattr(code, "_cached_cleaned_instructions", None)
    if hasattr(read, "cache_parameters") and read.cache_parameters()["maxsize"] is not None:
        code._cached_cleaned_instructions = functools.cache(read.__wrapped__)


def _untimed(*_: object) -> float:
    """Microseconds, which are logged."""
    return 0.0
