"""A lock among processes and threads that is released when its holder dies."""

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

    The kernel releases `flock` when its holder dies, at whatever instant. POSIX record locks (`lockf`) would also be
    released when any other code of this process opens and closes the file, for example to copy the directory; and they
    do not keep threads of one process apart.

    After a fork the child's descriptor holds the same lock: if the parent died, a child that knows nothing of the lock
    would keep it. So a child opens the file anew, and closes the descriptor that it inherited.

    Attributes:
        path: of the file.
    """

    _fd = -1  # also of one whose making was interrupted

    def __init__(self, path: str) -> None:
        """Open the file; make it if it is missing."""
        self.path = path
        self._fd = files.open_own(path)
        self._threads = threading.Lock()
        self._holder: int | None = None
        _LOCKS.add(self)

    def hold(self, work: Callable[[], T], finish: Callable[[], None]) -> T:
        """Work under the lock.

        Args:
            work: called under the lock.
            finish: called after `work`, under the lock, even if that raised.

        Raises:
            OSError: in a forked process that could not open the file anew.
            RuntimeError: if this thread holds the lock, as in a signal handler that runs in the midst of a write.
        """
        # Of a lock that is free, the holder is what an interrupt has left there.
        if self._holder == threading.get_ident() and self._threads.locked():
            raise RuntimeError(
                f"{self.path}: this thread is writing to the shared buffer already; do not use it in a signal handler"
            )
        if self._fd < 0:
            raise OSError(errno.EBADF, f"the lock is not open in this process; {LIMIT}", self.path)
        with self._threads:
            try:
                try:
                    self._holder = threading.get_ident()
                    fcntl.flock(self._fd, fcntl.LOCK_EX)
                    try:
                        return work()
                    finally:
                        finish()
                finally:
                    # An interrupt may have come before the lock was taken; releasing it then is no error.
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            finally:  # and another one before it was released
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._holder = None

    def is_at(self, path: str) -> bool:
        """Whether a path still names the locked file, which others may have removed and made anew."""
        return files.is_at(self._fd, path)

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file; `close` is bound here since this module has lost its names when the interpreter ends."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close(fd)

    def __del__(self) -> None:
        """Close the descriptor."""
        self.close()

    def _after_fork(self) -> None:
        """In a child: open the same file anew, whether it still has a name or not."""
        inherited, self._fd = self._fd, -1
        if inherited < 0:  # closed
            return
        # Whatever fails below, the lock must neither stay the parent's nor use the next file that gets this number.
        self._threads, self._holder, self._fd = threading.Lock(), None, -1
        try:
            self._fd = os.open(f"/proc/self/fd/{inherited}", os.O_RDWR)
        except OSError:  # a system without /proc
            with contextlib.suppress(OSError):  # `hold` raises it
                self._fd = os.open(self.path, os.O_RDWR)
                if not os.path.samestat(os.fstat(self._fd), os.fstat(inherited)):  # another buffer's file
                    self.close()
        finally:
            os.close(inherited)


_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock._after_fork()


os.register_at_fork(after_in_child=_after_fork)
