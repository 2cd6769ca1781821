"""This library's laws for rows that TransferQueue stores: groups, staleness limits, priorities.

A law (`law`) knows nothing of TransferQueue, a sampler (`samplers`) is what TransferQueue's controller asks for each
batch, and a `Queue` is what producers and learners have in hand. Samplers are subclasses of TransferQueue's own, so
what is here is imported when it is touched.
"""

from functional_rb.base import lazy as _lazy

_HOMES = {
    "functional_rb.scale.transfer_queue.queue": ("Batch", "Queue", "connect", "start"),
    "functional_rb.scale.transfer_queue.samplers": ("GroupSampler", "LawSampler", "PrioritizedSampler"),
    "functional_rb.scale.transfer_queue.law": ("Law",),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__, __dir__ = _lazy.namespace(__name__, _HOMES)
