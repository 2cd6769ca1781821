"""What mixtures do where torchrl's ensembles and flashbax's mixer do something else; see docs/departures.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.mixtures import UNIFORM, filled, numbers


def three(library: Backend, **how: Any) -> frb.Mixture:
    return frb.Mixture([filled(library, UNIFORM, 10 * k, 4) for k in range(3)], **how)


def ids(library: Backend, mixture: frb.Mixture, seed: int, batch: int) -> list[int]:
    found = numbers(library, library.rb.sample(mixture, library.rb.key(seed), batch)[1])["ids"]
    return np.bincount(found, minlength=3).tolist()


def test_no_buffer_gets_the_whole_remainder(library: Backend) -> None:
    assert ids(library, three(library, p=[1, 1, 1]), 0, 8) == [3, 3, 2]
    assert ids(library, three(library, p=[0.1, 0.45, 0.45]), 0, 16) == [2, 7, 7]


def test_a_batch_that_the_buffers_do_not_divide_is_given(library: Backend) -> None:
    assert ids(library, three(library), 0, 4) == [2, 1, 1]
    with pytest.raises(ValueError, match="expected batch_size as a multiple of the mixture's 3 parts, got 4; give"):
        ids(library, three(library, how="buffers"), 0, 4)


def test_shares_are_of_items_and_not_of_buffers(library: Backend) -> None:
    """Of each batch, not of many: a batch of 12 whole from one buffer is one in 177,147."""
    assert all(max(ids(library, three(library, how="items"), seed, 12)) < 12 for seed in range(3))
    assert all(ids(library, three(library), seed, 12) == [4, 4, 4] for seed in range(3))


def test_all_follows_from_the_key(library: Backend) -> None:
    mixture = three(library, how="buffers")
    first, again = (numbers(library, library.rb.sample(mixture, library.rb.key(5), 12)[1]) for _ in range(2))
    assert (first["indices"] == again["indices"]).all()
    assert len({tuple(ids(library, mixture, seed, 12)) for seed in range(8)}) > 1
