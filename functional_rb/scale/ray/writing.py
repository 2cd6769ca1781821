"""What `add` and `update` are given, checked and made arrays of NumPy."""

from __future__ import annotations

import numpy as np

from functional_rb.base.arrays import ArrayLike, NumpyArray
from functional_rb.buffer import checked_items, checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.scale.ray.arrays import as_numpy, convert, optional
from functional_rb.scale.ray.channel import Content


def addition(spec: BufferSpec, items: object, mask: ArrayLike, priorities: ArrayLike, version: int) -> Content:
    """The write that adds items, leaves [B, *shape], with lanes [T, E, *shape]."""
    marks, ranks = optional(mask, "mask", "bool"), optional(priorities, "priorities", "float32")
    batch = checked_items.batch(spec, items, convert, marks, ranks)
    lead = (batch.size,) if spec.lanes is None else (batch.size // spec.lanes, spec.lanes)
    pairs = zip(batch.leaves, spec.added.leaves, strict=True)
    leaves = {k: leaf.reshape(*lead, *expected.shape) for k, (leaf, expected) in enumerate(pairs)}
    companions = {"mask": batch.mask, "priorities": batch.priorities}
    named = {name: array.reshape(lead) for name, array in companions.items() if array is not None}
    count = batch.size if batch.mask is None else int(np.count_nonzero(batch.mask))
    return Content("add", leaves, named, count, int(version))


def change(spec: BufferSpec, handles: NumpyArray, priorities: ArrayLike, items: object) -> Content:
    """The write that sets priorities and leaves of stored items, by handles int32 [B, 2]."""
    named = {"indices": handles}
    ranks = optional(priorities, "priorities", "float32")
    if ranks is not None:
        checks.check_prioritized(spec, "update")
        checks.check_dtype("priorities", ranks, "float32")
        if ranks.shape not in ((len(handles),), (len(handles), 1)):
            raise ValueError(f"priorities: expected shape ({len(handles)},), one for each handle, got {ranks.shape}")
        named["priorities"] = ranks.reshape(-1)
    return Content("update", checked_items.replacements(spec, items, convert, len(handles)), named)


def handles_of(indices: ArrayLike, who: str) -> NumpyArray:
    handles = np.asarray(indices) if isinstance(indices, list) else as_numpy(indices, "indices")
    if handles.ndim != 2 or handles.shape[1] != 2:
        raise ValueError(
            f"{who}: indices: expected shape (B, 2), shard and handle, as sample.indices has it, got {handles.shape}"
        )
    if handles.dtype.kind not in "iu":
        raise TypeError(f"{who}: indices: expected int32, got {handles.dtype}")
    return handles.astype(np.int32)
