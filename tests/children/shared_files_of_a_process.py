"""Makes shared files, some of which it removes in the end, and forks a child that removes none: DIRECTORY."""

import os
import sys

import functional_rb as frb
from functional_rb.shared.buffer import SharedBuffer

for name, cleanup in ((None, None), (None, False), ("mine", None), ("yours", True)):
    path = None if name is None else os.path.join(sys.argv[1], name)
    storage = frb.Memmap(path, shared=True, auto_cleanup=cleanup)
    buffer = SharedBuffer.open(frb.BufferSpec((frb.Unbounded((), "int32"),), 6, storage=storage))
    print(buffer.files.directory)
if not os.fork():
    raise SystemExit  # a child that was forked removes nothing
os.wait()
assert os.path.exists(buffer.files.directory + "/shared.json")
