"""Every sampler and writer, in the settings that differ in kind: the table that they all have to pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import functional_rb as frb
from tests.support.effort import effort

ITEM = {
    "id": frb.Unbounded((), "int32"),
    "x": frb.Unbounded((2,)),
    "done": frb.Binary(()),
    "episode": frb.Unbounded((), "int32"),
    "note": frb.Unbounded(()),
}
# Rows that are added at a time, and the batch size; a multiple of the lanes and of the slices' length.
BATCH = 6
LANES = 3


@dataclasses.dataclass(frozen=True)
class Member:
    """A sampler, and what it is tried with; compiled too, unless others are close enough: that takes seconds each."""

    sampler: Any
    writer: Any = None
    lanes: int | None = None
    capacity: int = 12
    compiled: bool = True

    @property
    def spec(self) -> frb.BufferSpec:
        writer = {} if self.writer is None else {"writer": self.writer}
        return frb.BufferSpec(ITEM, self.capacity, self.sampler, batch_size=BATCH, lanes=self.lanes, **writer)


MEMBERS = {
    "uniform": Member(frb.Uniform(), lanes=LANES),
    "uniform, with a limit": Member(frb.Uniform(max_times_sampled=2), lanes=LANES, compiled=False),
    "uniform, stopping when full": Member(frb.Uniform(), frb.StopWhenFull(), LANES, 36),
    "prioritized": Member(frb.Prioritized(), lanes=LANES),
    "prioritized, with a limit": Member(frb.Prioritized(alpha=1.0, new_priority="ever", max_times_sampled=2)),
    "prioritized, distinct": Member(frb.Prioritized(replacement=False), lanes=LANES),
    "prioritized, of the best": Member(frb.Prioritized(), frb.MaxValue("id"), LANES),
    "recency": Member(frb.Recency(3), lanes=LANES),
    "staleness": Member(frb.Staleness("id", max_staleness=4), lanes=LANES, compiled=False),
    "fifo": Member(frb.InOrder(), compiled=False),
    "fifo, with a limit": Member(frb.InOrder(2)),
    "lifo, with a limit": Member(frb.InOrder(1, newest_first=True), compiled=False),
    "queue": Member(frb.Queue(), compiled=False),
    "queue of windows": Member(frb.Queue(2), lanes=LANES),
    "without replacement": Member(frb.WithoutReplacement(), lanes=LANES),
    "without replacement, in order": Member(frb.WithoutReplacement(drop_last=True, shuffle=False), lanes=LANES),
    "without replacement, of a reservoir": Member(frb.WithoutReplacement(drop_last=True), frb.Reservoir(), LANES),
    "slices": Member(frb.Slices(2), lanes=LANES),
    "slices, by windows": Member(
        frb.Slices(3, weighting="window", strict_length=False, span=True, period=2), lanes=LANES
    ),
    "slices, fresh ones first": Member(frb.Slices(2, strict_length=False, fresh_first=True), lanes=LANES),
    "slices, flat": Member(frb.Slices(2, batch="steps", flat=True), compiled=False),
    "slices of a dataset": Member(frb.Slices(2, strict_length=False), frb.Immutable(), compiled=False),
    "slices, prioritized": Member(frb.PrioritizedSlices(2), lanes=LANES),
    "groups": Member(frb.Groups(2, "episode", "id", whole=False), lanes=LANES, compiled=False),
    "groups, furthest apart": Member(
        frb.Groups(2, "episode", "id", whole=False, take="spread"), lanes=LANES, compiled=False
    ),
    "slices without replacement": Member(frb.SlicesWithoutReplacement(2, strict_length=False), lanes=LANES),
    "slices without replacement, by windows": Member(
        frb.SlicesWithoutReplacement(2, trajectory_key="episode", weighting="window")
    ),
}
# Members that have every structure and every writer among them.
COVERING = (
    *("prioritized, with a limit", "prioritized, distinct", "prioritized, of the best", "recency", "queue of windows"),
    *("without replacement, of a reservoir", "slices, by windows", "slices, prioritized"),
    "slices without replacement, by windows",
)
# For programs in which members differ by what they keep, and not by what they draw.
USUAL = {name: MEMBERS[name] for name in effort(COVERING, MEMBERS)}
