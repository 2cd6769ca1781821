"""Where slices begin, in samples of either form: what resets a recurrent state."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

L = 3
ITEM = {"id": frb.Unbounded((), "int32"), "done": frb.Binary(())}
SAMPLERS: dict[str, Any] = {
    "slices": frb.Slices(L),
    "short": frb.Slices(L, strict_length=False, span=True),
    "once": frb.SlicesWithoutReplacement(L, strict_length=False),
    "prioritized": frb.PrioritizedSlices(L, strict_length=False),
}


def filled(library: Backend, sampler: Any) -> Any:
    number = np.arange(16, dtype=np.int32)
    return library.add(
        library.init(frb.BufferSpec(ITEM, 16, sampler)), {"id": number, "done": np.isin(number, [1, 6, 12])}
    )


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("flat", [False, True], ids=["apart", "in a row"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_first_step_of_each_slice(backend: Backend, name: str, flat: bool) -> None:
    sampler = dataclasses.replace(SAMPLERS[name], flat=flat)
    _, sample = backend.sample(filled(backend, sampler), backend.rb.key(0), 20)
    start, mask, first = (backend.numpy(x) for x in (sample.slice_start, sample.mask, sample.is_first))
    assert start.dtype == bool
    assert start.shape == mask.shape == ((20 * L,) if flat else (20, L))
    np.testing.assert_array_equal(start.reshape(20, L), mask.reshape(20, L) & (np.arange(L) == 0))
    assert not (first & ~start).any()
    assert (mask.all() and not first[start].all()) or name != "slices"  # what is_first alone would run through


def test_a_recurrent_state_stays_in_its_slice(library: Backend) -> None:
    """Sums over a flat row that begin anew at each start are those of the slices apart."""
    apart, flat = (
        library.sample(filled(library, frb.Slices(L, flat=flat)), library.rb.key(1), 8)[1] for flat in (False, True)
    )
    total, sums = 0, []
    for number, start in zip(flat.items["id"].tolist(), flat.slice_start.tolist(), strict=True):
        total = number + (0 if start else total)
        sums.append(total)
    np.testing.assert_array_equal(np.reshape(sums, (8, L)), library.numpy(apart.items["id"]).cumsum(1))


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_of_mixtures(library: Backend, flat: bool, stacked: bool) -> None:
    state = filled(library, frb.Slices(L, flat=flat))
    mixture = frb.Mixture([state, state], how="buffers", stacked=stacked)
    _, sample = library.rb.sample(mixture, library.rb.key(0), 4)
    start = library.numpy(sample.slice_start)
    assert start.shape == sample.mask.shape
    assert start.reshape(4, L).tolist() == [[True, False, False]] * 4


def test_other_samplers_have_none(library: Backend) -> None:
    for sampler in (frb.Uniform(), frb.Queue(2), frb.WithoutReplacement()):
        _, sample = library.sample(filled(library, sampler), library.rb.key(0), 2)
        assert sample.slice_start is None


def test_in_compiled_programs(library: Backend) -> None:
    rb = library.rb
    state = filled(library, frb.Slices(L, flat=True))
    if library.library == "jax":
        import jax

        starts = jax.jit(lambda state, key: rb.sample(state, key, 4)[1].slice_start)(state, rb.key(0))
        several = jax.vmap(lambda key: rb.sample(state, key, 4)[1])(rb.split(rb.key(0), 2))
        assert several.slice_start.tolist() == [[True, False, False] * 4] * 2
    else:
        import torch

        program = torch.compile(
            lambda state, key: rb.sample_(state, key, 4)[1].slice_start, fullgraph=True, backend="eager"
        )
        starts = program(state, rb.key(0))
    assert starts.tolist() == [True, False, False] * 4
