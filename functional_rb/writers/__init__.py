"""Where new items go: each writer is a frozen dataclass in a module of its own."""

from functional_rb.writers.immutable import Immutable
from functional_rb.writers.max_value import MaxValue
from functional_rb.writers.reservoir import Reservoir
from functional_rb.writers.round_robin import RoundRobin
from functional_rb.writers.stop_when_full import StopWhenFull

__all__ = ["Immutable", "MaxValue", "Reservoir", "RoundRobin", "StopWhenFull"]
