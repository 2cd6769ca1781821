"""Sets of numbers that share what they have in common, against Python's sets."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np

from functional_rb.trees.ways import Ways
from tests.support.effort import effort


@hypothesis.settings(max_examples=effort(50, 500))
@hypothesis.given(st.integers(1, 20_000), st.data())
def test_sets_that_share_what_they_have_alike_are_sets(n: int, data: st.DataObject) -> None:
    ways, known = Ways(n), [set[int]()]
    number = st.integers(0, n - 1)
    for _ in range(data.draw(st.integers(1, 5))):
        more = data.draw(st.lists(st.tuples(st.integers(0, len(known) - 1), number), max_size=4))
        made = ways.extended(*np.array(more, np.int64).reshape(-1, 2).T)
        assert made.tolist() == list(range(len(known), len(known) + len(more)))
        known += [known[one] | {added} for one, added in more]
    asked = sorted({x for one in known for x in one} | {0, n - 1, data.draw(number)})
    for one, law in enumerate(known):
        assert ways.have(np.full(len(asked), one), np.array(asked)).tolist() == [x in law for x in asked]
