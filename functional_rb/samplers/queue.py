"""Items and windows are taken out as they are sampled."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from functional_rb.core import counters
from functional_rb.core.sample import Items, MaskedSample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import SamplerBase, check_count, need_one_lane
from functional_rb.samplers.in_order import in_turn
from functional_rb.structures import episode_windows, ring
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.ring import RingState

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan


@dataclasses.dataclass(frozen=True)
class Queue(SamplerBase):
    """First in, first out: sampling takes the oldest items and makes room for new ones; the key is not used.

    Nothing is ever lost silently: adding more than there is room for is an error, as is sampling from an empty queue;
    while tracing, items are refused and counted (`counts(state).refused`), and what is not there is masked.

    Attributes:
        length: None to take single items; else windows of so many consecutive steps, [B, length], each of one lane:
            the batch size counts windows and is a multiple of the lanes, window `w * lanes + e` is the w-th of lane
            e. A lane with fewer steps gives none (masked), and keeps them.

    Raises:
        ValueError: if the length is not positive, for a writer that overwrites, or for lanes without a length.

    Example:
        >>> Queue(length=16)
        Queue(length=16)
    """

    length: int | None = None

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> MaskedSample[Items]: ...

    def __post_init__(self) -> None:
        if self.length is not None:
            check_count(self, "length", "a positive int or None")

    @property
    def remembers(self) -> bool:
        return True

    @property
    def why_nothing(self) -> str:
        return f"completes a window of {self.length} steps; add more"

    @property
    def takes_out(self) -> bool:
        return True

    def most_left(self, size: int, draws: int) -> int:
        # All but the windows, and of a lane that has not so many what makes no window.
        length = self.length or 1
        return max(min(size, length - 1), size - draws * length)

    @property
    def heeds_wanted(self) -> bool:
        # No more are taken out than count.
        return True

    def check(self, plan: Plan) -> None:
        # Nothing may be overwritten before it is taken.
        need_order(plan, type(self).__name__)
        if plan.overwrites:
            raise ValueError(
                f"Queue: {plan.writer} would overwrite items before they are taken; leave the writer out, or use "
                f"writer=frb.StopWhenFull()"
            )
        if self.length is None:
            need_one_lane(plan, type(self).__name__, "give Queue(length=...) to take windows of each lane")
        elif self.length > plan.ring.length:
            raise ValueError(
                f"Queue: a window of {self.length} steps never fits into the {plan.ring.length} of a lane; "
                f"give a larger BufferSpec.capacity"
            )

    def check_batch(self, plan: Plan, batch: int) -> None:
        # Windows come one of each lane at a time.
        if self.length is not None and batch % plan.ring.lanes:
            raise ValueError(
                f"sample: expected batch_size as a multiple of lanes={plan.ring.lanes}, as a queue gives windows "
                f"of all lanes in step, got {batch}"
            )

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        return batch, 0

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        return (batch,) if self.length is None else (batch, self.length)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # The oldest of each lane; the rings become shorter by them.
        ends, lanes, length = draft.counters.ends, draft.plan.ring.lanes, self.length or 1
        place = ops.arange(batch * length, like=ends.sizes)
        lane = place // length % lanes
        position = place // (length * lanes) * length + place % length
        held = ring.of_lane(ops, ends.sizes, lane)
        # Whether the window that the step is in is stored to its end.
        whole = position // length * length + length <= held
        windows = ops.full_like(ends.sizes, batch // lanes)
        if draft.wanted is not None:
            # Windows are of the lanes in turn, so of those that are wanted the first lanes may give one more.
            windows = (draft.wanted + (lanes - 1) - ops.arange(lanes, like=lane)) // lanes
            whole = whole & (place // length < draft.wanted)
        taken = ops.minimum(ends.sizes // length, windows) * length
        inside = ops.where(whole, position, ops.full_like(position, 0))
        slots, handles = ring.item_at(ops, draft.plan.ring, ends, lane, inside)
        draft.counters = draft.counters.replace(ends=RingState(ends.cursors, ends.sizes - taken))
        selection = in_turn(ops, handles, whole)
        if self.length is None:
            return slots, selection
        one = selection.weights.reshape(batch, length)[:, 0]
        shaped = selection.handles.reshape(batch, length), one, one, whole.reshape(batch, length)
        return slots, Selection(*shaped)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # The first step of each lane's next window comes.
        ring, sizes = draft.plan.ring, draft.counters.ends.sizes
        lane, back = episode_windows.step_at(ops, Lanes(ring, draft.counters.ends), slots)
        held = ops.take(sizes, lane)
        return ops.cast((back == held) & (held >= (self.length or 1)), "float32")

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        sizes = draft.counters.ends.sizes
        rounds = -(-n // sizes.shape[0])
        return counters.total(ops, ops.minimum(sizes // (self.length or 1), ops.full_like(sizes, rounds))) >= n
