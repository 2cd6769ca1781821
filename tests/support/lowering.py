"""How JAX makes a program for XLA, which takes the tests longer than XLA takes to compile it quickly."""

from __future__ import annotations

import sys
import threading
from typing import Any

_kept = threading.local()


def share_contexts() -> None:
    """Let all programs of a thread be made in one context of MLIR, begun anew at each call of this function.

    JAX makes one for each program, which is a sixth of the time in which it makes the program. What a context holds it
    holds until it goes, so that a test module gets one of its own. Nothing is changed where JAX was not imported or
    has no such function.
    """
    mlir: Any = sys.modules.get("jax._src.interpreters.mlir")
    make = getattr(mlir, "make_ir_context", None)
    if make is None:
        return
    _kept.__dict__.clear()
    if make is not _shared:
        global _make
        _make, mlir.make_ir_context = make, _shared


def _shared() -> Any:
    if not hasattr(_kept, "context"):
        _kept.context = _make()
    return _kept.context


_make: Any = None
