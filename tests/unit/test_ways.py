"""Sets of numbers that share what they have in common, against Python's sets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from functional_rb.trees.ways import Ways


@pytest.mark.parametrize("n", [1, 64, 65, 300])
def test_each_set_has_what_was_put_in_it_and_nothing_else(n: int) -> None:
    rng, ways = random.Random(n), Ways(n)
    numbers, sets = [Ways.EMPTY], [frozenset[int]()]
    for _ in range(20):  # levels of a tree: sets that are extended together, some of the same one
        chosen = [rng.randrange(len(sets)) for _ in range(3)]
        more = [rng.choice([0, n - 1, rng.randrange(n)]) for _ in chosen]
        numbers += ways.extended(np.array([numbers[k] for k in chosen]), np.array(more)).tolist()
        sets += [sets[k] | {x} for k, x in zip(chosen, more, strict=True)]
    every = np.arange(n)
    for number, expected in zip(numbers, sets, strict=True):
        assert set(np.flatnonzero(ways.have(np.full(n, number), every)).tolist()) == expected
