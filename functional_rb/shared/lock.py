"""A lock among processes and threads that is released when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref

from functional_rb import _native
from functional_rb.base import files
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.errors import LIMIT


class FileLock(_native.Lock):
    """`flock` on a file, behind a lock for the threads of this process; `_native.Lock.hold` takes both.

    The kernel releases `flock` when its holder dies, at whatever instant. POSIX record locks (`lockf`) would also be
    released when any other code of this process opens and closes the file, for example to copy the directory; and they
    do not keep threads of one process apart.

    After a fork the child's descriptor holds the same lock: if the parent died, a child that knows nothing of the lock
    would keep it. So a child opens the file anew, and closes the descriptor that it inherited.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = files.open_own(path)
        self.reset(self._file.fd)
        _LOCKS.add(self)

    def refuse(self) -> None:
        """Say why it cannot be held: it is not open, or else this thread has it.

        Raises:
            OSError: in a forked process that could not open the file anew.
            RuntimeError: if this thread holds the lock, as in a signal handler that runs in the midst of a write.
        """
        if self.fd < 0:
            raise OSError(errno.EBADF, f"the lock is not open in this process; {LIMIT}", self.path)
        raise RuntimeError(
            f"{self.path}: this thread is writing to the shared buffer already; do not use it in a signal handler"
        )

    def is_at(self, path: str) -> bool:
        """Whether a path still names the locked file, which others may have removed and made anew."""
        return files.is_at(self.fd, path)

    def close(self) -> None:
        self.reset(-1)
        self._file.close()

    # In a child: open the same file anew, whether it still has a name or not.
    def _after_fork(self) -> None:
        # Whatever fails below, the lock must neither stay the parent's nor use the next file that gets this number.
        self.reset(-1)
        with self._file as inherited:
            if inherited.fd < 0:  # closed
                return
            try:
                self._file = Descriptor(os.open, f"/proc/self/fd/{inherited.fd}", os.O_RDWR)
            except OSError:  # a system without /proc
                with contextlib.suppress(OSError):  # `refuse` raises it
                    own = Descriptor(os.open, self.path, os.O_RDWR)
                    if os.path.samestat(os.fstat(own.fd), os.fstat(inherited.fd)):  # not another buffer's file
                        self._file = own
        self.reset(self._file.fd)


_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock._after_fork()


os.register_at_fork(after_in_child=_after_fork)
