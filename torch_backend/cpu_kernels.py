"""The kernels for tensors in the CPU's memory; see `functional_rb.native.part_kernels`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch

from functional_rb import _native
from functional_rb.native import part_kernels
from functional_rb.native.addresses import caller
from functional_rb.ops.part_kernels import Table
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout, LeafLayout
from torch_backend import ops
from torch_backend.addresses import addresses

LARGE: Final = 2**18
"""Bytes of a leaf in a batch from which on torch's threads copy faster than one kernel."""


class Tensors:
    """How tensors are found and made; see `functional_rb.native.addresses.Library`."""

    ops = ops
    addresses = staticmethod(addresses)
    none = torch.empty(0, device=ops.CPU)
    empty = staticmethod(ops.empty)
    dtypes = ops.DTYPES

    @staticmethod
    def ready(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor. Of another dtype the kernel would read past its end."""
        assert tensor.dtype == dtype, (tensor.dtype, dtype)
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    @staticmethod
    def leaves(layout: Layout, batch: int) -> list[torch.Tensor]:
        """A tensor for each leaf, on the CPU whatever the default device is."""
        return [
            torch.empty_strided(shape, strides, dtype=dtype, device=ops.CPU)
            for shape, strides, dtype in _leaves(layout, batch)
        ]


@functools.lru_cache(maxsize=1024)
def _leaves(layout: Layout, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each leaf of a batch: allocated by strides, torch is twice as fast."""
    shapes = [(batch, *leaf.shape) for leaf in layout.leaves]
    strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
    dtypes = [ops.DTYPES[leaf.dtype] for leaf in layout.leaves]
    return list(zip(shapes, strides, dtypes, strict=True))


class PartKernels(part_kernels.PartKernels):
    """The part kernels on tensors, of which large ones are read by torch's threads."""

    def read(
        self, layout: Layout, rows: torch.Tensor, wide: Sequence[torch.Tensor], slots: torch.Tensor
    ) -> list[torch.Tensor]:
        """Do what `row_layout.read` does."""
        batch = slots.shape[0]
        large = [
            leaf.nbytes * batch >= LARGE and (leaf.wide is not None or leaf.nbytes == 4 * layout.row_words)
            for leaf in layout.leaves
        ]
        if not any(large):
            return super().read(layout, rows, wide, slots)
        # A large leaf has an array, or the rows, for itself.
        others = tuple(k for k, is_large in enumerate(large) if not is_large)
        arrays = [wide[own] for own in (layout.leaves[k].wide for k in others) if own is not None]
        rest = iter(super().read(layout.part(others), rows, arrays, slots) if others else [])
        return [
            _taken(leaf, rows if leaf.wide is None else wide[leaf.wide], slots) if is_large else next(rest)
            for leaf, is_large in zip(layout.leaves, large, strict=True)
        ]

    def read_batches(
        self,
        layout: Layout,
        rows: torch.Tensor,
        wide: Sequence[torch.Tensor],
        batches: Sequence[torch.Tensor],
        chosen: tuple[int, ...],
    ) -> list[list[torch.Tensor]]:
        """Do what `row_layout.read_batches` does: as one, and then cut."""
        arrays = [wide[own] for own in (layout.leaves[k].wide for k in chosen) if own is not None]
        if len(batches) == 1:
            return [self.read(layout.part(chosen), rows, arrays, batches[0])]
        together = self.read(layout.part(chosen), rows, arrays, torch.cat(list(batches)))
        sizes = [slots.shape[0] for slots in batches]
        return [list(leaves) for leaves in zip(*(leaf.split(sizes) for leaf in together), strict=True)]


def _taken(leaf: LeafLayout, array: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return ops.take(array, slots).view(ops.DTYPES[leaf.dtype]).view(slots.shape[0], *leaf.shape)


def draws(key: torch.Tensor, batch: int, words: int) -> torch.Tensor:
    """Do what `random.draws` does: uniform int32 [batch, words]."""
    numbers = ops.empty((batch, words), dtype=torch.int32)
    _call(_native.fill_draws, (numbers,), int(key), batch * words)
    return numbers


_call = caller(addresses)
_parts = PartKernels(Tensors())
TABLE: Final[Table] = {**_parts.table, row_layout.read_batches: _parts.read_batches}
"""What replaces which function of the core; see `functional_rb.ops.part_kernels`."""
importance_weights = _parts.importance_weights
