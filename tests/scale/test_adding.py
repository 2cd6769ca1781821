"""How a batch is added to a dealt buffer, in NumPy on one shard: the index against the buffer that is not dealt."""

from __future__ import annotations

from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.buffer import functions
from functional_rb.buffer.state import State
from functional_rb.core import counters
from functional_rb.ops import numpy_ops as ops
from functional_rb.sharding import adding, deal

LANES, LENGTH = 2, 8


def added(dealing: deal.Dealing, index: Any, part: Any, leaves: list[Any], batch: int, priorities: Any) -> Any:
    """The index and the part of the one shard with a batch."""

    def add(buffer: Any, leaves: Any, batch: int, mask: Any, priorities: Any) -> Any:
        return State(*functions.add(ops, buffer, buffer.spec, leaves, batch, mask, priorities), buffer.spec)

    def run(buffer: Any, function: Any, *given: Any) -> Any:
        return State(*function(ops, buffer, buffer.spec, *given), buffer.spec)

    shard = adding.Shard(
        ops, dealing, np.int32(0), index, part, add, run, read=NotImplemented, everyones=list, draws=NotImplemented
    )
    return adding.added(shard, leaves, batch, None, priorities)


def test_one_step_may_take_the_frames_of_several_items() -> None:
    """Of a run each item has a frame of its own, and a step that goes on from none takes two."""
    item = {"x": frb.Unbounded(()), "next_x": frb.Unbounded(())}
    spec = frb.BufferSpec(item, LANES * LENGTH, frb.Prioritized(), lanes=LANES, compact=frb.Compact(spare=0))
    dealing = deal.deal(spec, 1)
    whole = functions.init(ops, spec)
    index, part = (State(*functions.init(ops, one), one) for one in (dealing.index, dealing.part))
    run = np.arange(LENGTH, dtype=np.float32).repeat(LANES)
    for x in (run, run[:LANES] + 90, run[:LANES] + 100):
        leaves = [{"x": x, "next_x": x + 1}[name] for name in spec.plan.names]
        priorities = np.ones(len(x), np.float32)
        whole = functions.add(ops, whole, spec, leaves, len(x), None, priorities)
        index, part = added(dealing, index, part, leaves, len(x), priorities)
        assert index.counters.tolist()[:2] == whole.counters.tolist()[:2]
        assert index.tree.tolist() == whole.tree.tolist()
    assert whole.counters[counters.SIZE] == LANES * (LENGTH - 1), "an item more is gone than came"
