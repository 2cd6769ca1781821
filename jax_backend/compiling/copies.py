"""The warning for calls outside of jit that copy much of a buffer, where the in-place forms would not."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import jax

from functional_rb.base.errors import LargeCopyWarning
from functional_rb.buffer.state import State

# Bytes that may be copied without a word.
LARGE = 16 * 2**20
_OURS = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("functional_rb", "jax_backend"))
# The functions that have warned in this process: each does so once.
_warned: set[str] = set()

REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "add": "state = rb.add_(state, ...)",
        "sample": "state, sample = rb.sample_(state, ...)",
        "update": "state = rb.update_(state, ...)",
    }
)


def warned(function: str, before: State, after: State) -> State:
    """The state after a function, with a warning if its arrays are copies of more than `LARGE` bytes."""
    if function in _warned or isinstance(after.counters, jax.core.Tracer):
        return after
    pairs = [(before.rows, after.rows), *zip(before.wide, after.wide, strict=True), (before.tree, after.tree)]
    pairs += [(before.auxiliary[name], array) for name, array in after.auxiliary.items()]
    copied = sum(new.nbytes for old, new in pairs if new is not None and new is not old)
    if copied > LARGE:
        warn(
            function,
            f"rb.{function}: copied {copied / 1e6:.0f} MB, because the older state may still be needed; write "
            f"{REMEDIES[function]}, which consumes the older state and writes in place, compile the loop by rb.jit, "
            f"or keep the buffer on the host (BufferSpec(storage=frb.Host()))",
        )
    return after


def warn(function: str, message: str) -> None:
    """Warn once of a function, at the line of the user's that called this library."""
    if function in _warned:
        return
    _warned.add(function)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, LargeCopyWarning, stacklevel=level)
