"""Large arrays on large pages, where the system gives such to those who ask; NumPy asks by itself.

Draws read rows, and nodes of trees, at random. With pages of 4 KB a processor takes about as long to look up where each
of them lies as to read it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import Final

import torch

from functional_rb.base.arrays import DeviceLike

# From so many bytes on an array has pages of its own, as NumPy has it.
LEAST: Final = 2**22


def large(shape: Sequence[int], dtype: torch.dtype, device: DeviceLike = None) -> torch.Tensor | None:
    """A fresh tensor on large pages; None where torch is to make it: if it is small, or elsewhere than on the CPU."""
    if torch.compiler.is_compiling() or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST:
        return None
    like = torch.empty(0, device=device)
    if type(like) is not torch.Tensor or like.device.type != "cpu":  # a fake one, say
        return None
    # There is no such memory, or none is so large: torch words the error, if there is none at all.
    with contextlib.suppress(OSError, OverflowError):
        room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        room.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(room, dtype=dtype).view(tuple(shape))
    return None
