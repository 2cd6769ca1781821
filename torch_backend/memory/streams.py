"""Streams of an accelerator that work on the same memory, and the order between them.

States share memory of which their users know nothing: so whatever reads or writes it, by a launch or by torch's
operations, comes after what was asked for before, and before what is asked for later, whichever streams are torch's
current ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

# Of these torch has one stream alone.
_IN_ORDER = ("cpu", "meta", "mps")
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


@functools.cache
def _has_streams(kind: str) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return kind not in _IN_ORDER and accelerator is not None and accelerator.type == kind


def current(array: torch.Tensor) -> torch.Stream | None:
    """Torch's current stream where an array lies; None where all is in order, and while somebody traces or maps."""
    # Trees of arrays may have anything in the arrays' place, as those of `in_dims` have that torch's maps make.
    if type(array) is not torch.Tensor or (kind := array.device.type) == "cpu":
        return None
    if torch.compiler.is_compiling() or _is_wrapped(array):
        return None
    return torch.accelerator.current_stream(array.device) if _has_streams(kind) else None


def cross(before: torch.Stream, now: torch.Stream, arrays: Iterable[torch.Tensor]) -> None:
    """Have a stream wait for another one, which worked on arrays before, and keep these for it.

    While a CUDA graph is captured, its user has seen to that.
    """
    if now.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    now.wait_event(before.record_event())
    for array in arrays:
        array.record_stream(now)


def keep(array: torch.Tensor) -> None:
    """Have torch's allocator give an array's memory to nobody before the current stream has read it."""
    now = current(array)
    if now is not None:
        array.record_stream(now)
