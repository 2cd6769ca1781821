"""Lets a lock go when the interpreter has taken modules apart: PATH."""

import sys

from functional_rb.shared import lock

held = lock.FileLock(sys.argv[1])
lock.os = lock._LOCKS = None  # type: ignore[assignment]  # as when modules are taken apart
del held
