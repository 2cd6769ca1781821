"""What functions give back, for annotations, and what few take. `frb.State` and `frb.Sample` stand in `frb` itself."""

from functional_rb.base.containers import record
from functional_rb.buffer.state import Counts, Crop, MaskedSample, SliceSample
from functional_rb.hash_maps.functions import HashMap, Inserted
from functional_rb.iteration.batches import Batches, Prefetch

__all__ = ["Batches", "Counts", "Crop", "HashMap", "Inserted", "MaskedSample", "Prefetch", "SliceSample", "record"]
__dir__ = __all__.copy
