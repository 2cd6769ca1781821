"""The values that the functions take and return."""

from __future__ import annotations

import dataclasses
from typing import Generic, NamedTuple, TypeVar

from functional_rb.buffer_spec import BufferSpec
from functional_rb.ops import Array

Items = TypeVar("Items")


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """A replay buffer as a value. Use the functions to read it; the fields are for those who write backends.

    Attributes:
        rows: int32 [capacity, words], the packed leaves of the items.
        wide: arrays [capacity, *shape] of the leaves that are not packed.
        tree: float32 [rows, FANOUT], the sampler's sum tree, or None.
        counters: int32 [5], see `ring.Counters`.
        spec: the buffer's description, static.
    """

    rows: Array
    wide: tuple[Array, ...]
    tree: Array | None
    counters: Array
    spec: BufferSpec

    def __repr__(self) -> str:
        """The description, not the arrays."""
        return f"State({self.spec!r})"


class Sample(NamedTuple, Generic[Items]):
    """A batch drawn from a buffer.

    Attributes:
        items: the structure that was added, leaves [B, *shape].
        indices: int32 [B], handles for `update` and `get`; -1 where nothing could be drawn (under jit).
        weights: float32 [B], importance weights in (0, 1]; 0 where nothing could be drawn.
        probabilities: float32 [B], the probability of each draw; 0 where nothing could be drawn.
    """

    items: Items
    indices: Array
    weights: Array
    probabilities: Array
