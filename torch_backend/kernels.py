"""The compiled twins of the core's functions, for states in the CPU's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from functional_rb.buffer_spec import BufferSpec
from functional_rb.native import calls, plan
from functional_rb.native.memory import NO_ADDRESSES
from functional_rb.samplers import Drawn
from torch_backend import ops
from torch_backend.memory import Memory, Saved


class Addresses:
    """Where the arrays of a memory lie.

    Attributes:
        plan: of the buffer's spec.
        storage: int64 [1 + wide], addresses.
        tree: address, 0 for none.
        tree_size: elements of the tree.
    """

    __slots__ = ("plan", "storage", "tree", "tree_size")

    def __init__(self, spec: BufferSpec, memory: Memory) -> None:
        """Look them up."""
        self.plan = plan.encode(spec)
        self.storage = np.array([memory.rows.data_ptr(), *(x.data_ptr() for x in memory.wide)], np.int64)
        self.tree = 0 if memory.tree is None else memory.tree.data_ptr()
        self.tree_size = 0 if memory.tree is None else memory.tree.numel()


def addresses(spec: BufferSpec, memory: Memory) -> Addresses:
    """Looked up once; each time where others hold the arrays, as torch moves those it shares between processes."""
    if memory.native is None or memory.pinned:
        memory.native = Addresses(spec, memory)
    assert isinstance(memory.native, Addresses)
    return memory.native


def _pointers(tensors: Sequence[torch.Tensor]) -> Any:
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def save_for_add(
    spec: BufferSpec, memory: Memory, counters: torch.Tensor, batch: int, mask: torch.Tensor | None
) -> Saved:
    """Copy what `add` will overwrite."""
    at = addresses(spec, memory)
    slots = calls.next_slots(at.plan, counters.data_ptr(), batch, _address(mask))
    return _save(at, memory, slots, rows=True, values=memory.tree is not None)


def save_for_update(
    spec: BufferSpec, memory: Memory, counters: torch.Tensor, handles: torch.Tensor, rows: bool, values: bool
) -> Saved:
    """Copy what `update` will overwrite."""
    at = addresses(spec, memory)
    slots = calls.live_slots(at.plan, counters.data_ptr(), handles.data_ptr(), handles.shape[0])
    return _save(at, memory, slots, rows, values)


def _save(at: Addresses, memory: Memory, slots: Any, rows: bool, values: bool) -> Saved:
    n = slots.size
    kept = [torch.empty((n, *x.shape[1:]), dtype=x.dtype) for x in (memory.rows, *memory.wide)] if rows else []
    leaves = torch.empty(n) if values else None
    pointers = _pointers(kept) if kept else NO_ADDRESSES
    calls.save(at.plan, at.storage, at.tree, at.tree_size, slots, pointers, _address(leaves))
    return Saved(torch.from_numpy(slots), kept[0] if rows else None, tuple(kept[1:]), leaves)


def add(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
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
        _pointers(leaves),
        batch,
        _address(mask),
        _address(priorities),
    )
    return new


def update(
    spec: BufferSpec,
    memory: Memory,
    counters: torch.Tensor,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
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
    )
    return new


def sample(
    spec: BufferSpec, memory: Memory, counters: torch.Tensor, key: int, batch: int, beta: float
) -> tuple[list[torch.Tensor], Drawn, bool]:
    """Draw items: the leaves, what is told of them, and whether anything could be drawn."""
    at = addresses(spec, memory)
    leaves = [torch.empty((batch, *leaf.shape), dtype=ops.DTYPES[leaf.dtype]) for leaf in spec.leaves]
    handles = torch.empty(batch, dtype=torch.int32)
    weights, chances = torch.empty(batch), torch.empty(batch)
    drawable = calls.sample(
        at.plan,
        at.storage,
        at.tree,
        at.tree_size,
        counters.data_ptr(),
        key,
        spec.sampler.words(spec.capacity),
        beta,
        _pointers(leaves),
        batch,
        handles.data_ptr(),
        weights.data_ptr(),
        chances.data_ptr(),
    )
    return leaves, Drawn(handles, weights, chances), drawable
