"""Stored items sorted by a key: groups of items that lie anywhere in the storage, read off it as they are needed.

Nothing is kept of them, so writes cost nothing, and finding them costs sorting all slots.
"""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.ops.protocol import Array, Ops


class KeyGroups(NamedTuple):
    """The groups among n slots that have enough items, in an order of their keys' words."""

    slots: Array  # int32 [n], those of items first, by their keys, and slots of one key in the order that was given
    # int32 [n], at the place in `slots` where a group begins that has enough items, how many it has; else 0.
    sizes: Array
    counted: Array  # int32 [n], how many such groups begin up to each place

    @property
    def number(self) -> Array:
        """How many groups have enough items, int32 scalar."""
        return self.counted[-1]


def find(ops: Ops, words: Array, live: Array, order: Array, least: int) -> KeyGroups:
    """The groups of slots.

    Args:
        words: int32 [n, w], the key of each slot, as words that are equal exactly if keys are.
        live: bool [n], in which slots there are items.
        order: int32 [n], the slots in the order in which those of a group shall come.
        least: of fewer items no group is counted.
    """
    # A stable sort by one word after the other leaves an order by all of them.
    for column in range(words.shape[1]):
        order = ops.take(order, ops.argsort(ops.take(words[:, column], order)))
    # Sorting is stable, so this leaves the order by keys among those that are there.
    order = ops.take(order, ops.argsort(ops.cast(~ops.take(live, order), "int32")))
    ordered, place = ops.take(words, order), ops.arange(words.shape[0], like=words)
    before = ops.concat([ordered[:1], ordered[:-1]], 0)
    begins = place == 0
    for column in range(words.shape[1]):
        begins = begins | (ordered[:, column] != before[:, column])
    size = ops.count(live)
    begins = begins & (place < size)
    reached = ops.cumsum(ops.cast(begins, "int32"))
    # A group ends where the next one begins, and the last one with the items.
    ends = ops.minimum(ops.searchsorted(reached, reached + 1, "left"), size + ops.full_like(place, 0))
    sizes = ends - place
    sizes = ops.where(begins & (sizes >= least), sizes, ops.full_like(sizes, 0))
    return KeyGroups(order, sizes, ops.cumsum(ops.cast(sizes > 0, "int32")))


def select(ops: Ops, groups: KeyGroups, ranks: Array) -> Array:
    """Where in `slots` groups begin, int32 [B], by their ranks int32 [B]; any place for a rank that none has."""
    positions = ops.searchsorted(groups.counted, ranks + 1, "left")
    return ops.minimum(positions, ops.full_like(positions, groups.counted.shape[0] - 1))


def begins_of(ops: Ops, groups: KeyGroups, slots: Array) -> tuple[Array, Array]:
    """Where the groups begin that slots int32 [B] are in, int32 [B], and which are in one that has enough, bool [B]."""
    place = ops.arange(groups.slots.shape[0], like=groups.slots)
    where = ops.take(ops.set_at(ops.full_like(place, 0), groups.slots, place), slots)
    begins = ops.take(ops.cummax(ops.where(groups.sizes > 0, place, ops.full_like(place, 0))), where)
    return begins, where - begins < ops.take(groups.sizes, begins)
