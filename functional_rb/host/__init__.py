"""Buffers in the host's memory, in NumPy's arrays: the engine below backends whose own arrays cannot be written to."""

from functional_rb.host import processes as processes  # which tells multiprocessing how states are sent
from functional_rb.host.state import HostState

__all__ = ["HostState"]
