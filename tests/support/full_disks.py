"""Disks that are full, for files that are mapped to memory."""

from __future__ import annotations

import errno
import os

import pytest

from functional_rb.storage import mapped_array

PAGE = 4096


def fill_after(patch: pytest.MonkeyPatch, chunks: int, number: int = errno.ENOSPC) -> list[int]:
    """From now on the disk has room for so many chunks, of a page each, and the system says why not for more.

    The list that is returned has the number of chunks that there is still room for, and may be given another.
    """
    left = [chunks]

    def allocate(descriptor: int, start: int, nbytes: int) -> None:
        if left[0] <= 0:
            raise OSError(number, os.strerror(number))
        left[0] -= 1
        os.posix_fallocate(descriptor, start, nbytes)

    patch.setattr(mapped_array, "CHUNK", PAGE)
    patch.setattr(mapped_array, "allocate", allocate)
    return left
