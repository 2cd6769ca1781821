"""functional_rb: replay buffers as immutable values, written once for JAX and torch.

This package has the specs and the algorithms, and imports neither JAX nor torch. Use them through a backend:
`import jax_backend as rb` or `import torch_backend as rb`.

What is public is imported when it is first used. Type checkers read the same names in `__init__.pyi`.
"""

from functional_rb.base import lazy as _lazy

__version__ = "0.1.0"

_HOMES = {
    "functional_rb": ("datasets", "items", "schedules", "ted", "text", "trees"),
    "functional_rb.base.containers": ("record",),
    "functional_rb.base.errors": (
        "CheckpointError",
        "CheckpointFullError",
        "CheckpointWriteError",
        "CorruptCheckpointError",
        "LargeCopyWarning",
        "NoCheckpointError",
        "StorageFullError",
        "StorageInUseError",
        "StorageLayoutError",
    ),
    "functional_rb.buffer.frame_dedup": ("Compact",),
    "functional_rb.buffer.spec": ("BufferSpec",),
    "functional_rb.buffer.state": ("Counts", "Crop", "MaskedSample", "Sample", "SliceSample", "State"),
    "functional_rb.buffer.storage_kinds": ("Device", "Host", "Memmap", "Objects"),
    "functional_rb.checkpoint": ("checkpoints", "load", "load_spec", "save", "save_async"),
    "functional_rb.convert": (
        "from_dm_env",
        "from_gymnasium",
        "from_json",
        "from_torchrl",
        "to_dm_env",
        "to_gymnasium",
        "to_json",
        "to_torchrl",
    ),
    "functional_rb.native.switch": ("kernels",),
    "functional_rb.iteration.batches": ("Batches", "iterate"),
    "functional_rb.iteration.cell": ("Cell",),
    "functional_rb.maps.functions": ("Inserted", "Map"),
    "functional_rb.maps.spec": ("MapSpec",),
    "functional_rb.mixture.value": ("Mixture",),
    "functional_rb.scale": ("ray", "transfer_queue", "verl"),
    "functional_rb.samplers": (
        "Fifo",
        "Groups",
        "Lifo",
        "Prioritized",
        "PrioritizedSlices",
        "Queue",
        "Recency",
        "Slices",
        "SlicesWithoutReplacement",
        "Uniform",
        "WithoutReplacement",
    ),
    "functional_rb.specs": (
        "ArraySpec",
        "Binary",
        "Bounded",
        "Categorical",
        "Composite",
        "Domain",
        "Graph",
        "MultiCategorical",
        "MultiOneHot",
        "NonTensor",
        "OneHot",
        "OneOf",
        "Sequence",
        "Stacked",
        "Text",
        "Unbounded",
        "cardinality",
        "consolidate",
        "has_exclusive_keys",
        "has_stacked",
        "spec_of",
        "stack",
    ),
    "functional_rb.ted.check_env": ("check_env",),
    "functional_rb.ted.items": ("item_from_env",),
    "functional_rb.text.kl": ("AdaptiveKL", "ConstantKL"),
    "functional_rb.text.records": ("PairwiseDataset", "PromptData", "RewardData"),
    "functional_rb.transforms": ("her", "map_items", "n_step"),
    "functional_rb.trees.forest": ("Forest",),
    "functional_rb.trees.forest_spec": ("ForestSpec",),
    "functional_rb.trees.policies": ("GumbelMuZero", "MuZero"),
    "functional_rb.trees.scores": ("EXP3", "PUCT", "UCB1", "CompletedQ", "UCB1Tuned"),
    "functional_rb.trees.spec": ("TreeSpec",),
    "functional_rb.trees.state": ("Expansion", "Tree"),
    "functional_rb.writers": ("Immutable", "MaxValue", "Reservoir", "RoundRobin", "StopWhenFull"),
}
"""The public names, by the module that has them; those of this package are modules of their own."""

__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__, __dir__ = _lazy.namespace(
    __name__,
    _HOMES,
    "functions of buffers and other values are those of a backend: import jax_backend as rb, or torch_backend as rb",
)
