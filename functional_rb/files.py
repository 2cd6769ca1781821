"""Files that others may have made, opened so that nothing which lies under their names does harm.

A name may lead anywhere: to a pipe, which keeps whoever opens it waiting, to a directory, to itself; and a file of
holes may claim to be larger than any disk. Here these are told apart, before anything is read or any room is made.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What a process or a machine is short of says nothing about a file."""
SMALL = 2**26
"""So many bytes are believed to be in a file whatever the disk holds of it."""
DENSEST = 4096
"""Beyond, no file is so many times larger than what the disk holds of it; compression does not get so far."""
_SAFE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Not blocking, so that no pipe keeps us waiting."""


class UnusableFileError(Exception):
    """A file is not what can be read.

    Attributes:
        file: its path.
        reason: why.
    """

    def __init__(self, file: str, reason: str) -> None:
        """Name the file."""
        super().__init__(f"{file}: {reason}")
        self.file, self.reason = file, reason


def open_regular(path: str, flags: int = os.O_RDONLY) -> tuple[int, int]:
    """A regular file's descriptor, and its size in bytes.

    Raises:
        FileNotFoundError: if there is none of that name.
        UnusableFileError: if it is something else, or cannot be opened.
        OSError: if the process or the machine is short of something, which is not the file's fault.
    """
    try:
        descriptor = os.open(path, flags | _SAFE)
    except OSError as error:
        if error.errno in SHORTAGES or (isinstance(error, FileNotFoundError) and not os.path.islink(path)):
            raise
        raise UnusableFileError(path, f"cannot be opened: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnusableFileError(path, "no regular file")
    return descriptor, status.st_size


def extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that hold data, as (start, stop) in bytes; all of it, where the file system cannot tell."""
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole until the end
                return
            yield at, size
            return
        stop = min(os.lseek(descriptor, at, os.SEEK_HOLE), size)
        if at < stop:
            yield at, stop
        at = stop


def holds(descriptor: int, size: int, claimed: int) -> bool:
    """Whether a file of a size may be believed if so many bytes of it are to be read: not if it is mostly holes."""
    if claimed <= SMALL:
        return True
    there = 0
    for start, stop in extents(descriptor, size):
        there += stop - start
        if claimed <= DENSEST * there:
            return True
    return False
