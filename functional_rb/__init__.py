"""functional_rb: replay buffers as immutable values, written once for JAX and torch.

This package has the specs and the algorithms, and imports neither JAX nor torch. Use them through a backend:
`import jax_backend as rb` or `import torch_backend as rb`.
"""

from functional_rb import datasets, items, schedules, ted, text, trees
from functional_rb.base import moved as _moved
from functional_rb.base.containers import record
from functional_rb.base.errors import (
    CheckpointError,
    CheckpointFullError,
    CheckpointWriteError,
    CorruptCheckpointError,
    LargeCopyWarning,
    NoCheckpointError,
    StorageFullError,
    StorageInUseError,
    StorageLayoutError,
)
from functional_rb.buffer import json_classes as _json_classes  # noqa: F401  # which `from_json` reads
from functional_rb.buffer.frame_dedup import Compact
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import Crop, MaskedSample, Sample, SliceSample, State
from functional_rb.buffer.storage_kinds import Device, Host, Memmap, Objects
from functional_rb.checkpoint import checkpoints, load, load_spec, save, save_async
from functional_rb.convert import (
    from_dm_env,
    from_gymnasium,
    from_json,
    from_torchrl,
    to_dm_env,
    to_gymnasium,
    to_json,
    to_torchrl,
)
from functional_rb.iteration.batches import Batches, iterate
from functional_rb.iteration.cell import Cell
from functional_rb.maps.functions import Inserted, Map
from functional_rb.maps.spec import MapSpec
from functional_rb.mixture.value import Mixture
from functional_rb.native.switch import kernels
from functional_rb.samplers import (
    Fifo,
    Groups,
    Lifo,
    Prioritized,
    PrioritizedSlices,
    Queue,
    Recency,
    Slices,
    SlicesWithoutReplacement,
    Uniform,
    WithoutReplacement,
)
from functional_rb.specs import (
    ArraySpec,
    Binary,
    Bounded,
    Categorical,
    Composite,
    Domain,
    Graph,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    OneOf,
    Sequence,
    Stacked,
    Text,
    Unbounded,
    cardinality,
    consolidate,
    has_exclusive_keys,
    has_stacked,
    spec_of,
    stack,
)
from functional_rb.ted.check_env import check_env
from functional_rb.ted.items import item_from_env
from functional_rb.text.kl import AdaptiveKL, ConstantKL
from functional_rb.text.records import PairwiseDataset, PromptData, RewardData
from functional_rb.transforms import her, map_items, n_step
from functional_rb.trees.forest import Forest
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.policies import GumbelMuZero, MuZero
from functional_rb.trees.scores import EXP3, PUCT, UCB1, CompletedQ, UCB1Tuned
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import Expansion, Tree
from functional_rb.writers import Immutable, MaxValue, Reservoir, RoundRobin, StopWhenFull

_moved.name_as_earlier()

__version__ = "0.1.0"

__all__ = [
    "EXP3",
    "PUCT",
    "UCB1",
    "AdaptiveKL",
    "ArraySpec",
    "Batches",
    "Binary",
    "Bounded",
    "BufferSpec",
    "Categorical",
    "Cell",
    "CheckpointError",
    "CheckpointFullError",
    "CheckpointWriteError",
    "Compact",
    "CompletedQ",
    "Composite",
    "ConstantKL",
    "CorruptCheckpointError",
    "Crop",
    "Device",
    "Domain",
    "Expansion",
    "Fifo",
    "Forest",
    "ForestSpec",
    "Graph",
    "Groups",
    "GumbelMuZero",
    "Host",
    "Immutable",
    "Inserted",
    "LargeCopyWarning",
    "Lifo",
    "Map",
    "MapSpec",
    "MaskedSample",
    "MaxValue",
    "Memmap",
    "Mixture",
    "MuZero",
    "MultiCategorical",
    "MultiOneHot",
    "NoCheckpointError",
    "NonTensor",
    "Objects",
    "OneHot",
    "OneOf",
    "PairwiseDataset",
    "Prioritized",
    "PrioritizedSlices",
    "PromptData",
    "Queue",
    "Recency",
    "Reservoir",
    "RewardData",
    "RoundRobin",
    "Sample",
    "Sequence",
    "SliceSample",
    "Slices",
    "SlicesWithoutReplacement",
    "Stacked",
    "State",
    "StopWhenFull",
    "StorageFullError",
    "StorageInUseError",
    "StorageLayoutError",
    "Text",
    "Tree",
    "TreeSpec",
    "UCB1Tuned",
    "Unbounded",
    "Uniform",
    "WithoutReplacement",
    "cardinality",
    "check_env",
    "checkpoints",
    "consolidate",
    "datasets",
    "from_dm_env",
    "from_gymnasium",
    "from_json",
    "from_torchrl",
    "has_exclusive_keys",
    "has_stacked",
    "her",
    "item_from_env",
    "items",
    "iterate",
    "kernels",
    "load",
    "load_spec",
    "map_items",
    "n_step",
    "record",
    "save",
    "save_async",
    "schedules",
    "spec_of",
    "stack",
    "ted",
    "text",
    "to_dm_env",
    "to_gymnasium",
    "to_json",
    "to_torchrl",
    "trees",
]
