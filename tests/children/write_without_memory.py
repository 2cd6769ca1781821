"""A write to a shared buffer that runs out of memory is taken back: PATH."""

import resource
import sys
from pathlib import Path

import numpy as np

import functional_rb as frb
from functional_rb.shared.buffer import SharedBuffer

MANY = 1 << 24
storage = frb.Memmap(sys.argv[1], shared=True)
spec = frb.BufferSpec((frb.Unbounded((), "uint8"),), 6, frb.Prioritized(alpha=1.0), storage=storage)
shared = SharedBuffer.open(spec)
shared.add([np.arange(3, dtype=np.uint8)], 3, None, None)
leaves, priorities = np.zeros(MANY, np.uint8), np.ones(MANY, np.float32)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + MANY, resource.RLIM_INFINITY))  # the kernel asks for four times as much
try:
    shared.add([leaves], MANY, None, priorities)
except MemoryError:
    print(shared.files.control[0] % 2, shared.counters()[:2], shared.lost(), shared.files.tree.any())
shared.add([np.array([7], np.uint8)], 1, None, None)
print(shared.get(np.array([3], np.int32))[0])
