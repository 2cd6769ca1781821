"""The classes of a buffer's spec that JSON texts may name; `convert.json` has those of the specs of items."""

from functional_rb import samplers, writers
from functional_rb.buffer import storage_kinds
from functional_rb.buffer.frame_dedup import Compact
from functional_rb.buffer.spec import BufferSpec
from functional_rb.convert import json
from functional_rb.items import KINDS
from functional_rb.transforms.her import Hindsight
from functional_rb.transforms.map_items import MapOfAdded, MapOfSampled
from functional_rb.transforms.n_step_added import NStepOfAdded
from functional_rb.transforms.n_step_stored import NStepOfStored

PARTS = (
    samplers.InOrder,
    samplers.Groups,
    samplers.Prioritized,
    samplers.PrioritizedSlices,
    samplers.Queue,
    samplers.Recency,
    samplers.Slices,
    samplers.SlicesWithoutReplacement,
    samplers.Uniform,
    samplers.WithoutReplacement,
    writers.Immutable,
    writers.MaxValue,
    writers.Reservoir,
    writers.RoundRobin,
    writers.StopWhenFull,
    storage_kinds.Device,
    storage_kinds.Host,
    storage_kinds.Memmap,
    storage_kinds.Objects,
    Compact,
    Hindsight,
    MapOfAdded,
    MapOfSampled,
    NStepOfAdded,
    NStepOfStored,
    *KINDS,
)

json.register(PARTS, whole=BufferSpec)
