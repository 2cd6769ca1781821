"""Forks while it holds a lock: PATH. The parent has the lock afterwards, and the child has not."""

import fcntl
import os
import sys
import threading

from functional_rb.shared.lock import FileLock

lock = FileLock(sys.argv[1])
told: list[object] = []
read, write = os.pipe()


def fork() -> int:
    child = os.fork()
    if child:
        told.append(os.read(read, 9))
        return child
    other = os.open(lock.path, os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(write, b"held")  # by the parent
    os.close(other)
    return 0


child = lock.hold(fork, int)
thread = threading.Thread(target=lock.hold, args=(int, int), daemon=True)
lock.hold(lambda: (thread.start(), thread.join(0.2), told.append(thread.is_alive())), int)
thread.join(30)
assert told.pop(), "two threads have it"
if not child:
    os._exit(thread.is_alive())
assert os.waitpid(child, 0)[1] == 0
assert told == [b"held"]
assert not thread.is_alive()
print("done")
