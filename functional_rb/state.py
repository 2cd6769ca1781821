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
        counters: int32 [n], see `counters.Counters`.
        kept: what else the sampler and the writer keep, arrays by name.
        spec: the buffer's description, static.
    """

    rows: Array
    wide: tuple[Array, ...]
    tree: Array | None
    counters: Array
    kept: dict[str, Array]
    spec: BufferSpec

    def __repr__(self) -> str:
        """The description, not the arrays."""
        return f"State({self.spec!r})"


class Sample(NamedTuple, Generic[Items]):
    """A batch drawn from a buffer.

    Where nothing could be drawn (under jit), indices are -1, weights and probabilities 0, and the mask, if there is
    one, False; the items there are meaningless.

    Attributes:
        items: the structure that was added, leaves [B, *shape]; of slices [B, length, *shape].
        indices: int32 [B], handles for `update` and `get`; of slices [B, length], of each step.
        weights: float32 [B], importance weights in (0, 1].
        probabilities: float32 [B], the probability of each draw; each sampler says of what.
        mask: bool in the shape of the indices, which of them are real; None for samplers of which all always are.
        is_first: bool [B, length], of slices only: whether a step is the first of its trajectory.
        is_last: likewise: whether it is known to be the last of its trajectory.
        truncated: likewise: whether the slice ends there though the trajectory goes on.
    """

    items: Items
    indices: Array
    weights: Array
    probabilities: Array
    mask: Array | None = None
    is_first: Array | None = None
    is_last: Array | None = None
    truncated: Array | None = None


class Crop(NamedTuple, Generic[Items]):
    """Random pieces of trajectories.

    Attributes:
        items: the structure that was given, leaves [B, length, *shape].
        starts: int32 [B], where each piece begins.
        mask: bool [B, length], which steps are real.
    """

    items: Items
    starts: Array
    mask: Array
