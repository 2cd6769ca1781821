"""Batches in which slots may come several times: the last one that applies wins."""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.ops.protocol import Array, Ops


class Batch(NamedTuple):
    """Items that an update names."""

    slots: Array  # int32 [B], in bounds
    live: Array  # bool [B], whether the item is still there


class Duplicates(NamedTuple):
    """A batch of slots sorted, so that equal ones stand together."""

    order: Array  # int32 [B], the positions in sorted order; equal slots keep theirs
    first: Array  # int32 [B], for each position of the batch, where its slot's run begins in sorted order
    last: Array  # int32 [B], and where it ends

    @classmethod
    def of(cls, ops: Ops, slots: Array) -> Duplicates:
        """Sort slots int32 [B], so that equal ones are neighbours."""
        order = ops.argsort(slots)
        ascending = ops.take(slots, order)
        last = ops.searchsorted(ascending, slots, "right") - 1
        return cls(order, ops.searchsorted(ascending, slots, "left"), last)

    def winners(self, ops: Ops, applies: Array) -> tuple[Array, Array]:
        """For each position, the last one with the same slot that applies, and whether there is one.

        All positions of a slot get the same answer and so write the same value: no order of writes is assumed.
        """
        step = ops.arange(self.order.shape[0], like=self.order)
        marked = ops.where(ops.take(applies, self.order), step, ops.full_like(step, -1))
        winner = ops.take(ops.cummax(marked), self.last)
        exists = winner >= self.first
        return ops.take(self.order, ops.where(exists, winner, self.last)), exists


def single(ops: Ops, slots: Array) -> Array:
    """Whether an entry is the first of those with its slot, bool [n]."""
    order = Duplicates.of(ops, slots)
    return ops.take(order.order, order.first) == ops.arange(slots.shape[0], like=slots)
