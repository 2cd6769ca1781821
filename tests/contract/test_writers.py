"""Writers that choose: by medians, and what is rewritten to NaN; histories have the rest."""

from __future__ import annotations

import numpy as np

import functional_rb as frb
from tests.support.backends import Backend


def test_the_best_by_their_median(library: Backend) -> None:
    item = {"score": frb.Unbounded((4,)), "id": frb.Unbounded((), "int32")}
    state = library.init(frb.BufferSpec(item, 2, writer=frb.MaxValue("score", "median")))
    scores = np.float32([[9, 9, 0, 0], [1, 5, 3, 2], [8, -1, -1, 8], [np.nan, 9, 9, 9], [-np.inf, 1, np.inf, 7]])
    state = library.add(state, {"score": scores, "id": np.arange(5, dtype=np.int32)})
    assert sorted(library.numpy(library.rb.items(state)["id"]).tolist()) == [1, 4]  # 2 and 1, above 0 and -1
    assert int(library.rb.counts(state).refused) == 1


def test_a_rank_that_is_rewritten_to_nan_stays(library: Backend) -> None:
    item = {"score": frb.Unbounded(()), "id": frb.Unbounded((), "int32")}
    state = library.init(frb.BufferSpec(item, 2, writer=frb.MaxValue("score")))
    state = library.add(state, {"score": np.float32([1, 2]), "id": np.arange(2, dtype=np.int32)})
    best = [k for k in range(2) if int(library.numpy(library.rb.items(state)["id"])[k]) == 1]
    handles = library.array(np.array(best, np.int32))
    state = library.rb.update(state, handles, items={"score": library.array(np.float32([np.nan]))})
    state = library.add(state, {"score": np.float32([1.5]), "id": np.int32([2])})
    assert sorted(library.numpy(library.rb.items(state)["id"]).tolist()) == [1, 2]
