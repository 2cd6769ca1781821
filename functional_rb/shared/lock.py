"""A lock among processes and threads, which dies with its holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from functional_rb.base import files
from functional_rb.base.errors import LIMIT

T = TypeVar("T")


class FileLock:
    """`flock` on a file, behind a lock for the threads of this process.

    Why flock: the kernel takes it back when its holder dies, at whatever instant. POSIX record locks (`lockf`) would be
    let go of by any other code of this process that opens and closes the file, such as one that copies the directory;
    and threads do not exclude each other by them.

    What flock does not do by itself is fork: the child's descriptor holds the same lock, so that a parent's death would
    leave it with a child that knows nothing of it. So a child opens the file anew, and closes what it got.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        """Open the file, make it if need be."""
        self.path, self._fd = path, -1
        self._fd = files.open_own(path)
        self._threads = threading.Lock()
        self._holder: int | None = None
        _LOCKS.add(self)

    def hold(self, work: Callable[[], T], finish: Callable[[], None]) -> T:
        """Work under the lock.

        Args:
            work: what is done.
            finish: called afterwards, also where `work` was interrupted.

        Raises:
            OSError: in a forked process that could not open the file anew.
            RuntimeError: where this very thread holds it, as in a signal handler that came in the midst of a write.
        """
        if self._holder == threading.get_ident():
            raise RuntimeError(
                f"{self.path}: this thread is writing to the shared buffer already; do not use it in a signal handler"
            )
        if self._fd < 0:
            raise OSError(errno.EBADF, f"the lock is not open in this process; {LIMIT}", self.path)
        with self._threads:
            try:
                self._holder = threading.get_ident()
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                try:
                    return work()
                finally:
                    finish()
            finally:
                # Letting go of what one does not hold is no error: an interrupt may have come before the lock did.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._holder = None

    def is_at(self, path: str) -> bool:
        """Whether a path names the locked file still: it may have been removed, and made anew by others."""
        return files.is_at(self._fd, path)

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file; also while the interpreter ends, when this module has lost its names."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close(fd)

    def __del__(self) -> None:
        """Leave no descriptor behind."""
        self.close()

    def _after_fork(self) -> None:
        """In a child: a lock of its own on the same file, whether that still has a name or not."""
        inherited, self._fd = self._fd, -1
        if inherited < 0:  # closed
            return
        # Whatever comes: it must not stay the parent's, nor become that of the next file with this number.
        self._threads, self._holder, self._fd = threading.Lock(), None, -1
        try:
            self._fd = os.open(f"/proc/self/fd/{inherited}", os.O_RDWR)
        except OSError:  # a system without /proc
            with contextlib.suppress(OSError):  # told by `hold`
                self._fd = os.open(self.path, os.O_RDWR)
                if not os.path.samestat(os.fstat(self._fd), os.fstat(inherited)):  # that of another buffer
                    self.close()
        finally:
            os.close(inherited)


_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock._after_fork()


os.register_at_fork(after_in_child=_after_fork)
