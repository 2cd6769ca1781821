"""The classes of this library that JSON texts may name, and the modules that have them.

Reading a text imports a module of these tables and no other. The names of the classes are part of the format.
"""

from __future__ import annotations

import functools
from typing import Final

from functional_rb.base import lazy

_BY_MODULE: Final[dict[str, str]] = {
    "functional_rb.specs": (
        "ArraySpec Unbounded Bounded Binary Categorical OneHot MultiCategorical MultiOneHot Text NonTensor Composite "
        "Stacked Sequence Graph OneOf"
    ),
    "functional_rb.buffer.spec": "BufferSpec",
    "functional_rb.buffer.frame_dedup": "Compact",
    "functional_rb.buffer.storage_kinds": "Device Host Memmap",
    "functional_rb.samplers": (
        "InOrder Groups Prioritized PrioritizedSlices Queue Recency Slices SlicesWithoutReplacement Staleness Uniform "
        "WithoutReplacement"
    ),
    "functional_rb.writers": "Immutable MaxValue Reservoir RoundRobin StopWhenFull",
    "functional_rb.transforms.her": "Hindsight",
    "functional_rb.transforms.map_items": "MapOfAdded MapOfSampled",
    "functional_rb.transforms.n_step_added": "NStepOfAdded",
    "functional_rb.transforms.n_step_stored": "NStepOfStored",
    "functional_rb.items.burn_in": "BurnIn",
    "functional_rb.items.cast": "Cast",
    "functional_rb.items.choices": "ActionDiscretize OneHotted",
    "functional_rb.items.color_jitter": "ColorJitter",
    "functional_rb.items.compose": "Compose",
    "functional_rb.items.crops": "CenterCrop RandomCrop RandomShift",
    "functional_rb.items.discounts": "RewardToGo",
    "functional_rb.items.frame_stack": "FrameStack",
    "functional_rb.items.grayscale": "Grayscale",
    "functional_rb.items.joining": "Cat Flatten Split",
    "functional_rb.items.leafwise": "Inverse",
    "functional_rb.items.names": "Rename Select",
    "functional_rb.items.normalize": "Normalize",
    "functional_rb.items.resize": "Resize",
    "functional_rb.items.rewards": "ClipReward",
    "functional_rb.items.to_image": "ToImage",
    "functional_rb.hash_maps.spec": "HashMapSpec",
    "functional_rb.text.padding": "Padded",
    "functional_rb.trees.forest_spec": "ForestSpec",
    "functional_rb.trees.spec": "TreeSpec",
}
# By the name of a class, which stands as "type" in a text.
CLASSES: Final = {name: module for module, names in _BY_MODULE.items() for name in names.split()}
# Containers of arrays and Python's own types, which a text names in full as it names those of users.
CONTAINERS: Final = frozenset(
    [
        *("builtins:bool", "builtins:dict", "builtins:float", "builtins:int", "builtins:list", "builtins:set"),
        *("builtins:str", "builtins:tuple", "collections:OrderedDict", "collections:defaultdict"),
        "functional_rb.hash_maps.functions:HashMap",
        "functional_rb.items.moments:Moments",
        "functional_rb.mixture.value:Mixture",
        "functional_rb.structures.hash_map:HashTable",
        "functional_rb.text.records:PairwiseDataset",
        "functional_rb.text.records:PromptData",
        "functional_rb.text.records:RewardData",
        "functional_rb.trees.forest:Forest",
        "functional_rb.trees.forest:ForestArrays",
        "functional_rb.trees.state:Tree",
    ]
)


@functools.cache
def class_named(name: str) -> type | None:
    """The class that "type" says in a text; None for a name of another version, or of nothing."""
    module = CLASSES.get(name)
    return None if module is None else getattr(lazy.imported(module), name)


@functools.cache
def container_named(name: str) -> type | None:
    """The class of a name "module:class" if a text may name it without the user's leave."""
    module, _, short = name.partition(":")
    return getattr(lazy.imported(module), short) if name in CONTAINERS else None
