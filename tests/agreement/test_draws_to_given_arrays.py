"""The version chain's draws to arrays that are given for the rows, of which several threads draw a share each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_backend as rb
from tests.agreement.given_arrays import SAMPLERS, filled, room
from tests.support.backends import needs_native
from torch_backend.kernels import chain
from torch_backend.memory.library import TORCH

pytestmark = needs_native


# So large that 61 of them are worth several threads.
@pytest.mark.parametrize("count", [1, 7, 61])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_and_all_that_is_told_are_the_same(sampler: str, count: int) -> None:
    state, key = filled(sampler), rb.key(count)
    bits = TORCH.kernels.draws(key, *state.spec.draw_shape(count))
    given = room(state.spec, count)
    after, leaves, *told = TORCH.chain.draw(state, bits, count, 0.4, given, None, True)
    expected_after, expected_leaves, *expected = TORCH.chain.draw(state, key, count, 0.4, None, None, True)
    assert leaves is given
    for found, wanted in zip([*given, *told], [*expected_leaves, *expected], strict=True):
        assert (found is None and wanted is None) or torch.equal(found, wanted)
    assert torch.equal(rb.counts(after).epochs_done, rb.counts(expected_after).epochs_done)


@pytest.mark.parametrize("wrong", ["rows", "dtype", "stride", "count"])
def test_arrays_that_do_not_fit_stay_as_they_are(wrong: str) -> None:
    state, key, given = filled("uniform"), rb.key(0), room(filled("uniform").spec, 9)
    k = next(k for k, x in enumerate(given) if x.dtype == torch.float32)
    changed = {"rows": given[k][:8], "dtype": given[k].int(), "stride": given[k].repeat(1, 2)[:, ::2]}
    given = given[:-1] if wrong == "count" else [changed[wrong] if j == k else x for j, x in enumerate(given)]
    before = [x.clone() for x in given]
    leaves = TORCH.chain.draw(state, key, 9, 0.0, given, None, True)[1]
    expected = TORCH.chain.draw(state, key, 9, 0.0, None, None, True)[1]
    assert all(map(torch.equal, leaves, expected))
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize("sampler", ["uniform", "epochs"])
@pytest.mark.parametrize("interrupted_at", range(1, 6))
def test_an_interrupt_while_arrays_are_looked_at_is_raised(
    sampler: str, interrupted_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, real = 0, chain.look

    def look(tensor: torch.Tensor) -> Any:
        nonlocal looks
        looks += 1
        if looks == interrupted_at:
            raise KeyboardInterrupt
        return real(tensor)

    state, key = filled(sampler), rb.key(0)
    given = room(state.spec, 4)
    monkeypatch.setattr(chain, "look", look)
    by_capsules = chain.made(has_exchange=False)
    with pytest.raises(KeyboardInterrupt):
        by_capsules.draw(state, key, 4, 0.0, given, None, True)


def test_only_the_engine_may_give_random_bits_for_a_key() -> None:
    state = filled("uniform")
    bits = TORCH.kernels.draws(rb.key(0), *state.spec.draw_shape(4))
    with pytest.raises(TypeError, match="key"):
        rb.sample(state, bits, 4)
