"""Parts of the core as compiled kernels, for plain tensors in the CPU's memory; see `functional_rb.ops.Native`.

Like `ops.set_at`, what writes does so in place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from functional_rb.layout import Layout
from functional_rb.native import calls, plan
from torch_backend import ops


def descend(tree: torch.Tensor, capacity: int, draws: torch.Tensor) -> torch.Tensor:
    """`sum_tree.descend`: leaves int32 [B] by draws int32 [B, levels]."""
    draws = _ready(draws, torch.int32)
    batch, words = draws.shape
    leaves = torch.empty(batch, dtype=torch.int32)
    calls.descend(
        plan.encode_tree(capacity), tree.data_ptr(), tree.numel(), draws.data_ptr(), batch, words, leaves.data_ptr()
    )
    return leaves


def set_leaves(tree: torch.Tensor, capacity: int, leaves: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`sum_tree.set_leaves`: leaves int32 [n], values float32 [n]."""
    leaves, values = _ready(leaves, torch.int32), _ready(values, torch.float32)
    calls.set_leaves(
        plan.encode_tree(capacity),
        tree.data_ptr(),
        tree.numel(),
        leaves.data_ptr(),
        values.data_ptr(),
        leaves.shape[0],
    )
    return tree


def settle(arrays: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same arrays: torch computes one thing after the other."""
    return list(arrays)


def read(layout: Layout, rows: torch.Tensor, wide: Sequence[torch.Tensor], slots: torch.Tensor) -> list[torch.Tensor]:
    """`layout.read`: the leaves [B, *shape] in slots int32 [B]."""
    slots = _ready(slots, torch.int32)
    batch = slots.shape[0]
    leaves = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in _results(layout, batch)]
    calls.read(plan.encode_layout(layout), _addresses([rows, *wide]), slots.data_ptr(), batch, _addresses(leaves))
    return leaves


def store(
    layout: Layout,
    rows: torch.Tensor,
    wide: Sequence[torch.Tensor],
    slots: torch.Tensor,
    source: torch.Tensor | None,
    live: torch.Tensor | None,
    leaves: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """`layout.store`: rows of leaves [B, *shape], those of source int32 [n], to slots int32 [n] where live bool [n]."""
    slots = _ready(slots, torch.int32)
    source = None if source is None else _ready(source, torch.int32)
    live = None if live is None else _ready(live, torch.bool)
    leaves = [leaf.contiguous() for leaf in leaves]
    calls.store(
        plan.encode_layout(layout),
        _addresses([rows, *wide]),
        slots.data_ptr(),
        slots.shape[0],
        0 if source is None else source.data_ptr(),
        0 if live is None else live.data_ptr(),
        _addresses(leaves),
        leaves[0].shape[0] if leaves else 0,
    )
    return rows, tuple(wide)


def _ready(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor as a kernel reads it. The core makes no other dtype; if it did, the kernel would read past the end."""
    assert tensor.dtype == dtype, (tensor.dtype, dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _addresses(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Where tensors lie, int64 [n]."""
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


@functools.lru_cache(maxsize=1024)
def _results(layout: Layout, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each leaf of a batch: allocated by strides, torch is twice as fast."""
    shapes = [(batch, *leaf.shape) for leaf in layout.leaves]
    strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
    dtypes = [ops.DTYPES[leaf.dtype] for leaf in layout.leaves]
    return list(zip(shapes, strides, dtypes, strict=True))
