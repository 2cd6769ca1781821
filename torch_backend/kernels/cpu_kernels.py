"""The kernels for tensors in the CPU's memory; see `functional_rb.native.kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch

from functional_rb.native.calls import Calls
from functional_rb.native.kernels import fill_draws
from functional_rb.ops.part_kernels import Table
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout, LeafLayout
from torch_backend.arrays import ops
from torch_backend.kernels.chain import CHAIN

# Bytes of a leaf in a batch from which on torch's threads copy faster than one kernel.
LARGE: Final = 2**18


_calls = Calls(ops, CHAIN)
_table = _calls.table
call = _calls.call


def _read(layout: Layout, rows: torch.Tensor, wide: Sequence[torch.Tensor], slots: torch.Tensor) -> list[torch.Tensor]:
    """The leaves [B, *shape] of some rows, as `row_layout.read` gives them; torch's threads read large ones."""
    read, batch = _table[row_layout.read], slots.shape[0]
    large = [
        leaf.nbytes * batch >= LARGE and (leaf.wide is not None or leaf.nbytes == 4 * layout.row_words)
        for leaf in layout.leaves
    ]
    if not any(large):
        return cast("list[torch.Tensor]", read(layout, rows, wide, slots))
    # A large leaf has an array, or the rows, for itself.
    others = tuple(k for k, is_large in enumerate(large) if not is_large)
    arrays = [wide[place] for place in (layout.leaves[k].wide for k in others) if place is not None]
    rest = iter(read(layout.part(others), rows, arrays, slots) if others else [])
    return [
        _taken(leaf, rows if leaf.wide is None else wide[leaf.wide], slots) if is_large else next(rest)
        for leaf, is_large in zip(layout.leaves, large, strict=True)
    ]


def _read_batches(
    layout: Layout,
    rows: torch.Tensor,
    wide: Sequence[torch.Tensor],
    batches: Sequence[torch.Tensor],
    chosen: tuple[int, ...],
) -> list[list[torch.Tensor]]:
    """The leaves of several batches of rows, by `row_layout.read_batches`: read as one batch, which is then cut."""
    arrays = [wide[place] for place in (layout.leaves[k].wide for k in chosen) if place is not None]
    if len(batches) == 1:
        return [_read(layout.part(chosen), rows, arrays, batches[0])]
    together = _read(layout.part(chosen), rows, arrays, torch.cat(list(batches)))
    sizes = [slots.shape[0] for slots in batches]
    return [list(leaves) for leaves in zip(*(leaf.split(sizes) for leaf in together), strict=True)]


def _taken(leaf: LeafLayout, array: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return ops.take(array, slots).view(ops.DTYPES[leaf.dtype]).view(slots.shape[0], *leaf.shape)


def draws(key: torch.Tensor, batch: int, words: int) -> torch.Tensor:
    """Uniform int32 [batch, words] in [0, 2^31) by a key, the bits of `random.draws`."""
    drawn: torch.Tensor = call(fill_draws(key, batch, words))
    return drawn


# What replaces which function of the core; see `functional_rb.ops.part_kernels`.
TABLE: Final[Table] = {**_table, row_layout.read: _read, row_layout.read_batches: _read_batches}
