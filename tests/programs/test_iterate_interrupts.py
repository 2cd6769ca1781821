"""Ctrl-C in the midst of a call on an iterator: nobody waits for ever, and its state is whole: the old, or the new."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.support import interrupts
from tests.support.effort import effort

LINES = effort(8, 1000)
OLD, NEW = [*range(6)], [*range(2, 6), *range(50, 54)]


def items(first: int, n: int) -> dict[str, np.ndarray]:
    return {"id": np.arange(first, first + n, dtype=np.int32)}


def begun() -> Any:
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 8, frb.WithoutReplacement())
    batches = frb.iterate(rb, rb.add(rb.init(spec), items(0, 6)), rb.key(0), batch_size=2, prefetch=2)
    next(batches)
    return batches


def apply(batches: Any) -> None:
    batches.apply(rb.add, items(50, 4))


def assign(batches: Any) -> None:
    batches.state = rb.add(batches.state, items(50, 4))


def ids(state: Any) -> list[int]:
    """Those of what is stored."""
    found: list[int] = sorted(rb.get(state, rb.newest(state, int(rb.size(state))))["id"].tolist())
    return found


def ends(work: Callable[[], Any]) -> Any:
    """What work gives in another thread, which finds what this one has left held."""
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    assert given, "it waits for ever, or has failed"
    return given[0]


@pytest.mark.parametrize("function", [next, apply, assign, operator.methodcaller("close")])
def test_at_every_line(function: Any) -> None:
    batches = begun()
    places = interrupts.lines(function, batches)
    batches.close()
    always = ("iteration/batches.py",) if function is not next else ()
    for line in interrupts.chosen(places, LINES, always=always):
        batches = begun()
        interrupts.interrupted(line, function, batches)
        where = places[line] if line < len(places) else line
        assert ends(lambda given=batches: ids(given.state)) in (OLD, NEW), where
        ends(lambda given=batches: given.apply(rb.add, items(90, 1)))
        ends(batches.close)


def test_a_cell_at_every_line() -> None:
    """The next one's turn comes, and this thread may come again."""
    cell = frb.Cell(rb.init(frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 8)))

    def same(state: frb.State) -> frb.State:
        return state

    for line in range(len(interrupts.lines(cell.apply, same, everywhere=True))):
        assert interrupts.interrupted(line, cell.apply, same, everywhere=True)
        ends(lambda: cell.apply(same))
        assert int(rb.size(cell.state)) == 0, f"line {line}"
