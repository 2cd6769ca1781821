"""What happens at the first write to memory: so a process halts, or dies, amid native code as everybody runs it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.signal.restype = ctypes.c_void_p
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
# Handlers, which the system calls without holding them.
_KEPT: list[Any] = []


def before_writing(arrays: Sequence[np.ndarray], function: Callable[[], object]) -> None:
    """Have a function called when one of the arrays is first written to, which is then carried out.

    For a process of its own: the signal is that of any write to memory that is not there. The arrays lie in mapped
    files, so that nothing else has a share in their pages.
    """
    ranges = []
    for array in arrays:
        start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        ranges.append((ctypes.c_void_p(start), ctypes.c_size_t(array.ctypes.data + array.nbytes - start)))

    def allow(access: int) -> None:
        for at, size in ranges:
            if LIBC.mprotect(at, size, access):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    @_HANDLER
    def touched(number: int) -> None:
        allow(mmap.PROT_READ | mmap.PROT_WRITE)
        function()

    _KEPT.append(touched)
    LIBC.signal(int(signal.SIGSEGV), touched)
    allow(mmap.PROT_READ)
