"""The holes of files that lie in memory (tmpfs), which take room as soon as they are read.

On a disk a hole is read as zeros. In a tmpfs the page is made, and if there is no room for it, the process is killed
(SIGBUS). So pages of zeros, which take no room either, lie in the place of each hole until room is reserved there.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from collections.abc import Callable

# MAP_FIXED and MAP_NORESERVE of Linux, where alone there is a tmpfs.
FIXED, NO_RESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value


def take_room(descriptor: int) -> bool:
    """Whether the holes of an open file are of that kind."""
    if sys.platform != "linux":
        return False
    device = os.fstat(descriptor).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            kinds = [line.partition(" - ")[2] for line in mounts if line.split()[2] == name]
    except OSError:  # there is no /proc, or no descriptor left to look into it
        return False
    return any(kind.startswith("tmpfs ") for kind in kinds)


def hide(address: int, start: int, stop: int, access: int) -> None:
    """Have zeros in the place of a part of a mapping, in bytes from its address; the start is that of a page."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED | NO_RESERVE
    _map(address + start, stop - start, access, flags, -1, 0)


def show(address: int, start: int, stop: int, descriptor: int) -> None:
    """Have the file there again, to be written to, from the page on that the start is in. Errors as from `hide`."""
    start -= start % mmap.PAGESIZE
    _map(address + start, stop - start, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | FIXED, descriptor, start)


def _map(*arguments: int) -> None:
    if _mmap()(*arguments) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# The C library's, as Python's own maps nothing at a place that is given.
@functools.cache
def _mmap() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    function.restype = ctypes.c_void_p
    return function
