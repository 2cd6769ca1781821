"""The compiled twins of the core's functions, for states in the CPU's memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from functional_rb.buffer_spec import BufferSpec
from functional_rb.layout import KEPT_AS
from functional_rb.native import calls, plan
from functional_rb.samplers import Drawn
from torch_backend import ops
from torch_backend.memory import Memory, SavedSlots

NO_ADDRESSES = np.empty(0, np.int64)
NO_COUNT = np.empty(1, np.int64)


class Addresses:
    """Where the arrays of a memory lie.

    Attributes:
        plan: of the buffer's spec.
        storage: int64 [1 + wide], addresses.
        tree: address, 0 for none.
        tree_size: elements of the tree.
        leaves: int64 [leaves], for the addresses of a batch; used under the state's lock.
    """

    __slots__ = ("leaves", "plan", "storage", "tree", "tree_size")

    def __init__(self, spec: BufferSpec, memory: Memory) -> None:
        """Look them up."""
        self.plan = plan.encode(spec)
        self.storage = np.array([memory.rows.data_ptr(), *(x.data_ptr() for x in memory.wide)], np.int64)
        self.tree = 0 if memory.tree is None else memory.tree.data_ptr()
        self.tree_size = 0 if memory.tree is None else memory.tree.numel()
        self.leaves = np.empty(len(spec.layout.leaves), np.int64)

    def of_leaves(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The addresses of a batch's leaves."""
        for k, tensor in enumerate(tensors):
            self.leaves[k] = tensor.data_ptr()
        return self.leaves


def addresses(spec: BufferSpec, memory: Memory) -> Addresses:
    """Looked up once; each time where others hold the arrays, as torch moves those it shares between processes."""
    if memory.native is None or memory.pinned:
        memory.native = Addresses(spec, memory)
    assert isinstance(memory.native, Addresses)
    return memory.native


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@functools.cache
def _stored(spec: BufferSpec) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of what an item is stored as: its row, and its wide leaves."""
    wide = [(leaf.shape, ops.DTYPES[KEPT_AS.get(leaf.dtype, leaf.dtype)]) for leaf in spec.layout.wide]
    return [((spec.layout.row_words,), torch.int32), *wide]


def room(spec: BufferSpec, n: int, rows: bool, values: bool) -> SavedSlots:
    """Where a kernel may save what it overwrites in up to n slots; nothing is in it yet."""
    copies = [torch.empty((n, *shape), dtype=dtype) for shape, dtype in _stored(spec)] if rows else []
    return SavedSlots(torch.empty(n, dtype=torch.int32), copies, torch.empty(n) if values else None)


def _places(saved: SavedSlots | None) -> tuple[int, int, Any, int, Any]:
    """Room as a kernel takes it: how many slots, and the addresses of slots, copies and values."""
    if saved is None:
        return 0, 0, NO_ADDRESSES, 0, NO_COUNT
    copies = np.array([x.data_ptr() for x in saved.copies], np.int64) if saved.copies else NO_ADDRESSES
    return saved.slots.shape[0], saved.slots.data_ptr(), copies, _address(saved.values), saved.count


def add(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
    saved: SavedSlots | None,
) -> torch.Tensor:
    """Write a batch; returns the new counters."""
    at = addresses(spec, memory)
    new = torch.empty_like(counters)
    calls.add(
        at.plan,
        at.storage,
        at.tree,
        at.tree_size,
        counters.data_ptr(),
        new.data_ptr(),
        at.of_leaves(leaves),
        batch,
        _address(mask),
        _address(priorities),
        *_places(saved),
    )
    return new


def update(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
    saved: SavedSlots | None,
) -> torch.Tensor:
    """Set priorities and rewrite leaves; returns the new counters."""
    at = addresses(spec, memory)
    new = torch.empty_like(counters)
    leaves = NO_ADDRESSES
    if replacements:
        leaves = np.array([_address(replacements.get(k)) for k in range(len(spec.leaves))], np.int64)
    calls.update(
        at.plan,
        at.storage,
        at.tree,
        at.tree_size,
        counters.data_ptr(),
        new.data_ptr(),
        handles.data_ptr(),
        handles.shape[0],
        _address(priorities),
        leaves,
        *_places(saved),
    )
    return new


@functools.lru_cache(maxsize=1024)
def _results(spec: BufferSpec, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each leaf of a sample: allocated by strides, torch is twice as fast."""
    shapes = [(batch, *leaf.shape) for leaf in spec.layout.leaves]
    strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
    dtypes = [ops.DTYPES[leaf.dtype] for leaf in spec.layout.leaves]
    return list(zip(shapes, strides, dtypes, strict=True))


def sample(
    spec: BufferSpec, memory: Memory, counters: torch.Tensor, key: int, batch: int, beta: float
) -> tuple[list[torch.Tensor], Drawn, bool]:
    """Draw items: the leaves in the layout, what is told of them, and whether anything could be drawn."""
    at = addresses(spec, memory)
    leaves = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in _results(spec, batch)]
    handles = torch.empty(batch, dtype=torch.int32)
    weights, chances = torch.empty(batch), torch.empty(batch)
    drawable = calls.sample(
        at.plan,
        at.storage,
        at.tree,
        at.tree_size,
        counters.data_ptr(),
        key,
        spec.sampler.draw_shape(spec, batch)[1],
        beta,
        at.of_leaves(leaves),
        batch,
        handles.data_ptr(),
        weights.data_ptr(),
        chances.data_ptr(),
    )
    return leaves, Drawn(handles, weights, chances), drawable
