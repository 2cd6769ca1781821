"""Every call to the file system that a save or a load makes to write: the one place where tests let it fail."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from functional_rb.base import files
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.errors import FULL, CheckpointFullError, CheckpointWriteError, StorageFullError

T = TypeVar("T")
# Which thread holds, or waits for, the lock of which file: by its device and number, as another may have its path now.
_locking: set[tuple[int, int, int]] = set()
# A forked child has the lock no more: what it opens is not what its parent has locked.
os.register_at_fork(after_in_child=_locking.clear)


def make_directory(path: str) -> None:
    """Make a directory and those above it, so that they last; it may be there."""
    above = os.path.dirname(path)
    if os.path.isdir(path):
        return
    if above != path:
        make_directory(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    # A name lasts once the directory that has it has been stored.
    fsync_directory(above)


def create(path: str) -> Descriptor:
    return files.create(path)


def write(fd: int, content: Any) -> None:
    rest = memoryview(content).cast("B")
    # The system may take fewer bytes than it is given.
    while len(rest):
        rest = rest[os.write(fd, rest) :]


def begin_to_store(fd: int, first: int, nbytes: int) -> None:
    """Have the system begin to store bytes that were written, so that `fsync` has less to wait for; or do nothing.

    Advice that they will not be needed makes Linux do that. It drops from memory only what is on the disk by then:
    nothing of what was written just now.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, first, nbytes, os.POSIX_FADV_DONTNEED)


def fsync(fd: int) -> None:
    os.fsync(fd)


def truncate(fd: int, size: int) -> None:
    os.ftruncate(fd, size)
    os.lseek(fd, size, os.SEEK_SET)


def rename(old: str, new: str) -> None:
    os.rename(old, new)


def unlink(path: str) -> None:
    os.unlink(path)


def fsync_directory(path: str) -> None:
    """Wait until the names in a directory last."""
    with Descriptor(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as directory:
        os.fsync(directory.fd)


def while_locked(path: str, work: Callable[[], T]) -> T:
    """Work with a lock file held, waiting for its holder: a thread, or a process, whose death frees it.

    No context manager: an interrupt may come between its lines and the block. Then the lock would be held for as long
    as somebody keeps the error, as a notebook does, and who tries again there would wait for ever.

    Raises:
        RuntimeError: if this thread holds it, or waits for it: a signal handler has come in the midst of that.
    """
    with files.open_own(path) as file:
        status = os.fstat(file.fd)
        place = threading.get_ident(), status.st_dev, status.st_ino
        if place in _locking:
            raise RuntimeError(
                f"{path}: this thread is writing there already, and would wait for itself for ever; let a signal "
                f"handler note that the signal came, and write once the call has returned that is under way"
            )
        try:
            _locking.add(place)  # before it is held: a handler may come between any two lines
            fcntl.flock(file.fd, fcntl.LOCK_EX)
            return work()
        finally:
            _locking.discard(place)
            fcntl.flock(file.fd, fcntl.LOCK_UN)  # closing would not do: a forked child may have the descriptor too


@contextlib.contextmanager
def explained_if_full(path: str, remedy: str) -> Iterator[None]:
    """Raise errors of a full disk with the place and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StorageFullError(error.errno, f"{error.strerror}; {remedy}", error.filename or path) from error


@contextlib.contextmanager
def typed(path: str) -> Iterator[None]:
    """Raise errors of the system as errors of checkpoints."""
    try:
        yield
    except CheckpointWriteError:
        raise
    except OSError as error:
        kind = CheckpointFullError if error.errno in FULL else CheckpointWriteError
        raise kind(error.errno, error.strerror or str(error), error.filename or path) from error
