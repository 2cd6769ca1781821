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
    """Let `jnp.asarray` take an array of NumPy's as it takes one whose dtype is named: by a copy to the device.

    Otherwise JAX 0.10 compiles a program for each new shape, as if the array were a constant of a program: a quarter of
    all that the tests compile, in hundreds of times the time of a copy. As before where JAX looks for transfers that
    were not asked for, and where it traces.
    """
    numpy: Any = sys.modules.get("jax.numpy")
    core: Any = sys.modules.get("jax._src.core")
    is_clean = getattr(core, "trace_state_clean", None)
    if numpy is None or is_clean is None or hasattr(numpy.asarray, "compiles_nothing"):
        return
    import jax

    plain = numpy.asarray

    @functools.wraps(plain)
    def asarray(a: Any, *args: Any, **settings: Any) -> Any:
        usual = args or settings or type(a) is not np.ndarray or jax.config.jax_transfer_guard not in (None, "allow")
        if usual or not is_clean():
            return plain(a, *args, **settings)
        return plain(a, jax.dtypes.canonicalize_dtype(a.dtype))

    asarray.compiles_nothing = True  # type: ignore[attr-defined]
    numpy.asarray = asarray


def _shared() -> Any:
    if not hasattr(_kept, "context"):
        _kept.context = _make()
    return _kept.context


_make: Any = None
