"""Ctrl-C amid a write to a mixture in place: all of its buffers are as they were, or all are consumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.support import interrupts
from tests.support.effort import effort

SAMPLERS = frb.Prioritized(), frb.Staleness("made", 100), frb.WithoutReplacement()
HANDLES = np.array([[0, 1], [1, 2], [2, 3], [1, 0]], np.int32)
ITEM = {"x": frb.Unbounded(()), "made": frb.Unbounded((), "int32")}


def begun() -> frb.Mixture:
    items = {"x": np.arange(4, dtype=np.float32), "made": np.arange(4, dtype=np.int32)}
    return frb.Mixture([rb.add(rb.init(frb.BufferSpec(ITEM, 6, sampler)), items) for sampler in SAMPLERS])


def content(mixture: Any) -> list[Any]:
    """What is in the buffers, of which nothing is given out."""
    named = np.array([(k, handle) for k in range(3) for handle in range(4)], np.int32)
    drawn = rb.sample(mixture, rb.key(1), 6)[1]
    read = [rb.get(mixture, named)["x"], rb.priorities(mixture, named), drawn.indices, drawn.weights]
    return [array.tolist() for array in read]


CALLS: dict[str, Any] = {
    "priorities": lambda mixture: rb.update_(mixture, HANDLES, np.array([5, 6, 7, 8], np.float32)),
    "leaves": lambda mixture: rb.update_(mixture, HANDLES, items={"x": np.full(4, 9, np.float32)}),
    "a version": lambda mixture: rb.update_(mixture, version=50),
    "all": lambda mixture: rb.update_(
        mixture, HANDLES, np.ones(4, np.float32), {"x": np.ones(4, np.float32)}, version=3
    ),
    "draws": lambda mixture: rb.sample_(mixture, rb.key(2), 6)[0],
}


def is_alive(state: Any) -> bool:
    try:
        state.check_alive()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", CALLS)
def test_all_buffers_are_as_they_were_or_consumed(name: str) -> None:
    before, after = content(begun()), content(CALLS[name](begun()))
    seen = set()
    places = interrupts.lines(CALLS[name], begun())
    for line in interrupts.chosen(
        places, effort(6, None), len(name), always=("torch_backend/mixtures.py", "versions/engine.py")
    ):
        mixture = begun()
        assert interrupts.interrupted(line, CALLS[name], mixture)
        alive = {is_alive(state) for state in mixture.buffers}
        assert len(alive) == 1, places[line]
        seen |= alive
        if alive == {True}:
            assert content(mixture) == before, places[line]
            assert content(CALLS[name](mixture)) == after
    assert True in seen
