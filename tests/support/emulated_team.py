"""Short lives of buffers by emulated kernels for GPUs, whose blocks and threads work at the same time.

Run as `python -m tests.support.emulated_team FILE LIVES`, with the emulator as a sanitizer for threads has it, and with
how many of the lives are to be lived.
"""

from __future__ import annotations

import ctypes
import sys

from tests.support import emulated_gpu
from tests.support.gpu_life import LIVES, carried_out

if __name__ == "__main__":
    loaded = ctypes.CDLL(sys.argv[1])
    emulated_gpu.library = lambda: emulated_gpu.declared(loaded)  # type: ignore[assignment]  # in place of its own
    for life in [life for life in reversed(LIVES) if life.spec.capacity < 1000][: int(sys.argv[2])]:
        expected = carried_out(life, "cpu")
        with emulated_gpu.using(emulated_gpu.TEAM, blocks=2, share=500):
            assert carried_out(life, "cpu") == expected, life.spec
    print("done")
