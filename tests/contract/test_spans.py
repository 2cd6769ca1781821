"""Slices that reach out by a number of steps, and slices that are longer than what a lane holds."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

ITEM = {"id": frb.Unbounded((), "int32"), "done": frb.Binary()}
LOOSE: dict[str, Any] = {"strict_length": False, "weighting": "window"}


def filled(library: Backend, sampler: Any, ends: str, capacity: int, lanes: int | None = None) -> Any:
    """A buffer of numbered steps, the trajectories of which end at the marks."""
    marks, ids = np.array(list(ends)) == "|", np.arange(len(ends), dtype=np.int32)
    if lanes:
        marks, ids = np.stack([marks] * lanes, 1), np.stack([ids] * lanes, 1)
    return library.add(library.init(frb.BufferSpec(ITEM, capacity, sampler, lanes=lanes)), {"id": ids, "done": marks})


def drawn(library: Backend, state: Any, n: int = 300) -> set[tuple[int, ...]]:
    """The numbers of the steps of all slices that come; a short batch is padded."""
    _, sample = library.sample(state, library.rb.key(0), n)
    ids, mask = library.numpy(sample.items["id"]), library.numpy(sample.mask)
    return {tuple(row[real].tolist()) for row, real in zip(ids, mask, strict=True) if real.any()}


def test_reaching_out_by_a_number_of_steps(library: Backend) -> None:
    story = ".....|.|"  # six steps, and two
    whole = {tuple(range(k, k + 4)) for k in range(3)}
    both = drawn(library, filled(library, frb.Slices(4, span=1, **LOOSE), story, 8))
    assert both == whole | {(0, 1, 2), (3, 4, 5)} | {(6, 7)}  # of which no step can be left out
    right = drawn(library, filled(library, frb.Slices(4, span=(False, 2), **LOOSE), story, 8))
    assert right == whole | {(3, 4, 5), (4, 5)} | {(6, 7)}
    left = drawn(library, filled(library, frb.Slices(4, span=(2, 0), **LOOSE), story, 8))
    assert left == whole | {(0, 1, 2), (0, 1)} | {(6, 7)}
    by_priority = frb.PrioritizedSlices(4, span=(0, 2), strict_length=False)
    assert drawn(library, filled(library, by_priority, story, 8)) == right


def test_spans_are_told_in_one_way() -> None:
    some = [frb.Slices(3, span=span, **LOOSE) for span in (False, 1, True)]
    assert len({*some}) == len({frb.BufferSpec(ITEM, 8, each) for each in some}) == 3
    assert frb.Slices(3, span=2, **LOOSE) == some[2]
    assert frb.Slices(3, span=(0, 2), **LOOSE).span == (False, True)
    for each in some:
        spec = frb.BufferSpec(ITEM, 8, each)
        assert frb.convert.from_json(frb.convert.to_json(spec)) == pickle.loads(pickle.dumps(spec)) == spec
        assert dataclasses.replace(each, period=2).span == each.span
    assert frb.convert.to_json(frb.BufferSpec(ITEM, 8, frb.Slices(3, span=2, **LOOSE))) == frb.convert.to_json(spec)


@pytest.mark.parametrize("kind", [frb.Slices, frb.PrioritizedSlices, frb.SlicesWithoutReplacement])
def test_slices_longer_than_a_lane(library: Backend, kind: Any) -> None:
    state = filled(library, kind(7, strict_length=False), "..|....", 8, lanes=2)
    assert drawn(library, state, 8) == {(3, 4, 5, 6)}  # four fit into a lane
    state = library.add(state, {"id": np.full((1, 2), 7, np.int32), "done": np.ones((1, 2), bool)})
    assert drawn(library, state, 8) == {(4, 5, 6, 7)}
    state = library.add(state, {"id": np.full((1, 2), 8, np.int32), "done": np.zeros((1, 2), bool)})
    assert drawn(library, state, 64) == {(5, 6, 7), (8,)}
    with pytest.raises(ValueError, match=r"never fits into the 4 of a lane; .*strict_length=False"):
        frb.BufferSpec(ITEM, 8, kind(7), lanes=2)
