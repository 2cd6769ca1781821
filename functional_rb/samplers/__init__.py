"""How items are drawn: each sampler is a frozen dataclass in a module of its own."""

from functional_rb.samplers.base import DRAW_LIMIT, LEAST_CHANCE
from functional_rb.samplers.groups import Groups
from functional_rb.samplers.importance import importance_weights
from functional_rb.samplers.in_order import InOrder
from functional_rb.samplers.prioritized import Prioritized
from functional_rb.samplers.prioritized_slices import PrioritizedSlices
from functional_rb.samplers.queue import Queue
from functional_rb.samplers.recency import Recency
from functional_rb.samplers.slices import Slices
from functional_rb.samplers.slices_without_replacement import SlicesWithoutReplacement
from functional_rb.samplers.staleness import Staleness
from functional_rb.samplers.uniform import Uniform
from functional_rb.samplers.without_replacement import WithoutReplacement

__all__ = [
    "DRAW_LIMIT",
    "LEAST_CHANCE",
    "Groups",
    "InOrder",
    "Prioritized",
    "PrioritizedSlices",
    "Queue",
    "Recency",
    "Slices",
    "SlicesWithoutReplacement",
    "Staleness",
    "Uniform",
    "WithoutReplacement",
    "importance_weights",
]
