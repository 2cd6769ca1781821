"""Any history of saves: with branches, loads, states that know nothing of their past, all to one directory."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests.checkpoint.mapped_lives import LIVES, Life, walk
from tests.support import backends
from tests.support.checkpoints import SPEC, advanced, bits, numpy_state, small_blocks, stored_bits
from tests.support.effort import effort


@pytest.mark.parametrize("name", LIVES)
@hypothesis.settings(max_examples=effort(4, 8), phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_histories_with_branches_and_saves_to_one_place(
    name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, backends.make("torch") as backend:
        small_blocks(patch)
        life = Life(rng, LIVES[name], tmp_path_factory.mktemp("life"), backend)
        does = [life.add] * 5 + [life.sample] * 2 + [life.in_place, life.load, life.other_library] + [life.save] * 5
        walk(does, 25, rng)
        life.load()


@hypothesis.settings(max_examples=effort(6, 12), phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_any_change_of_plain_arrays_is_seen(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        state = numpy_state(SPEC)
        for _ in range(8):
            state = advanced(state, rng, int(rng.integers(0, 8)))
            size = int(state.counters[1])
            if size and rng.random() < 0.5:  # a rewritten leaf
                state.rows[rng.integers(size), rng.integers(2)] = rng.integers(2**31)
            frb.save(state, path, incremental=bool(rng.random() < 0.9), keep=1)
            assert stored_bits(path) == stored_bits(path, mmap=True) == bits(state)
