"""How JAX makes programs for XLA, and for what: that takes the tests longer than XLA takes to compile them quickly."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import numpy as np

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


def take_arrays_without_programs() -> None:
    """Let `jnp.asarray` take an array of NumPy's by a copy to the device.

    Otherwise JAX 0.10 compiles a program for each new shape, as if the array were a constant of a program: a quarter of
    all that the tests compile, in a hundred times the time of a copy. As before where JAX looks for transfers that were
    not asked for, and where it traces.
    """
    numpy: Any = sys.modules.get("jax.numpy")
    core: Any = sys.modules.get("jax._src.core")
    is_clean = getattr(core, "trace_state_clean", None)
    if numpy is None or is_clean is None or hasattr(numpy.asarray, "compiles_nothing"):
        return
    import jax

    plain = numpy.asarray

    def may_copy() -> bool:
        return jax.config.jax_transfer_guard in (None, "allow") and is_clean()

    @functools.wraps(plain)
    def asarray(a: Any, *args: Any, **settings: Any) -> Any:
        if args or settings or type(a) is not np.ndarray or not may_copy():
            return plain(a, *args, **settings)
        dtype = jax.dtypes.canonicalize_dtype(a.dtype)
        with np.errstate(over="ignore"):
            return plain(a.astype(dtype, copy=False), dtype)

    asarray.compiles_nothing = True  # type: ignore[attr-defined]
    numpy.asarray = asarray


def _shared() -> Any:
    if not hasattr(_kept, "context"):
        _kept.context = _make()
    return _kept.context


_make: Any = None
