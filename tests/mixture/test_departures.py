"""What mixtures do where torchrl's ensembles and flashbax's mixer do something else; see docs/departures.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.mixture.mixtures import UNIFORM, filled, numbers
from tests.support.backends import Backend

BATCH = 8


def three(library: Backend, **how: Any) -> frb.Mixture:
    return frb.Mixture([filled(library.rb, UNIFORM, 10 * k, 4) for k in range(3)], **how)


def ids(library: Backend, mixture: frb.Mixture, seed: int, batch: int = BATCH, p: Any = (1, 1, 1)) -> list[int]:
    """How many rows each buffer gave."""
    shares = library.array(np.array(p, np.float32))
    _, sample = library.rb.sample(mixture, library.rb.key(seed), batch, p=shares)
    return np.bincount(numbers(library, sample)["ids"], minlength=3).tolist()


def test_no_buffer_gets_the_whole_remainder(library: Backend) -> None:
    mixture = three(library)
    shared = [ids(library, mixture, seed) for seed in range(24)]
    assert {tuple(sorted(one)) for one in shared} == {(2, 3, 3)}
    assert len({tuple(one) for one in shared}) == 3  # the row that is missing is another buffer's each time
    first, *others = ids(library, mixture, 0, p=[0.1, 0.45, 0.45])
    assert first in (0, 1)
    assert set(others) <= {3, 4}


def test_batches_need_not_be_divisible(library: Backend) -> None:
    assert sum(ids(library, three(library), 0)) == BATCH
    with pytest.raises(ValueError, match="expected batch_size as a multiple of the mixture's 3 parts, got 4; give"):
        ids(library, three(library, how="buffers"), 0, 4)


def test_shares_are_of_items_and_not_of_buffers(library: Backend) -> None:
    """Of each batch, not of many: a batch of 8 whole from one buffer is one in 2,187."""
    drawn, exact = three(library, how="items"), three(library)
    assert all(max(ids(library, drawn, seed)) < BATCH for seed in range(3))
    assert all(sorted(ids(library, exact, seed)) == [2, 3, 3] for seed in range(3))


def test_all_follows_from_the_key(library: Backend) -> None:
    """Which buffer is drawn as well."""
    mixture = three(library, how="items")
    first, again = (numbers(library, library.rb.sample(mixture, library.rb.key(5), BATCH)[1]) for _ in range(2))
    assert (first["indices"] == again["indices"]).all()
    assert len({tuple(ids(library, mixture, seed)) for seed in range(8)}) > 1


def test_the_page_names_the_tests_that_show_its_rows() -> None:
    folder = Path(__file__).parent
    page = (folder.parents[1] / "docs" / "departures.md").read_text()
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./tests/mixture/(\w+\.py)\)", page)
    assert len(named) == 9
    for test, module in named:
        assert f"def {test}(" in (folder / module).read_text(), test
